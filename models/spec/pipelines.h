#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "models/spec/model_spec.h"

namespace troupe::spec {

/// Classes of the VAEs that code pictures alone; the second one's latents are patched.
inline constexpr const char* kPictureVae = "AutoencoderKL";
inline constexpr const char* kPatchedVae = "AutoencoderKLFlux2";

/// Folders of a vision tower and of what prepares its pictures.
inline constexpr const char* kVisionEncoder = "image_encoder";
inline constexpr const char* kPictureProcessor = "image_processor";

/// A text encoder of a pipeline.
struct EncoderRole {
  std::string component;
  std::string tokenizer;
  std::vector<std::string> classes;
  std::vector<std::string> tokenizer_classes;
  TextUse use = TextUse::masked_states;
  std::int64_t tokens = 0;
  bool may_be_absent = false;
  PromptFrame frame = {};
  /// Numbers of the layers whose states are taken, side by side; none: as `use` says.
  std::vector<std::int64_t> layers = {};
  /// Key of model_index.json that may name others instead; "": there is none.
  std::string layers_key = {};
  /// The folder of the processor of pictures that the encoder sees; "": it sees none.
  std::string processor = {};
};

/// A pipeline class of diffusers: its components, and its customs.
struct Pipeline {
  std::string name;
  std::vector<EncoderRole> encoders;
  /// The folder of the network that denoises.
  std::string network = "transformer";
  /// True if the folder has ControlNets, in `controlnet`, `controlnet_1`, ….
  bool has_controlnets = false;
  /// The folder of a second transformer, which a model may have; "": none has one.
  std::string second_network = {};
  std::int64_t text_tokens = 0;
  TaskDefaults defaults = {};
  /// Pixels of what is made where a request names no size; 0: as many as the transformer says.
  std::int64_t height = 0, width = 0;
  bool pixart_customs = false;
  bool one_step_is_clean = false;
  bool even_sigmas = false;
  bool shifts_by_steps = false;
  /// True if the index may say that the model is distilled.
  bool may_be_distilled = false;
  /// Shift of a distilled model's noise levels, whatever the picture's size; none: as others'.
  std::optional<double> distilled_shift = {};
  /// Value that the index must have for `patch_size`; 0: it has no such key.
  std::int64_t patch_size = 0;
  /// True if the guidance scale counts from the text's own prediction, so that 0 means none.
  bool adds_guidance = false;
  bool rescales_guidance = false;
  bool mends_prompts = false;
  /// True if old versions' settings of the scheduler and of the U-Net's size are corrected.
  bool mends_old_settings = false;
  /// True if the VAE's shift_factor is not taken from latents, nor added to them.
  bool ignores_vae_shift = false;
  /// True if a job that begins with a picture, without a mask, has that picture's size when none is
  /// given.
  bool keeps_picture_size = false;
  bool guided_by_negative = false;
  GuidanceRenorm renorm = GuidanceRenorm::none;
  bool from_text_alone = false;
  /// Pictures that are taken beside the text, and a second guidance scale.
  PipelineInputs inputs = {};
  /// The class that diffusers has for the pipeline with ControlNets; "": there is none, or it is
  /// that.
  std::string controlnet_pipeline = {};
  /// True if the index may say that tokens have timesteps of their own: then a video's first frame
  /// may be given, which stands in the place of its latents.
  bool may_expand_timesteps = false;
  /// True if learned words of several vectors are written out in prompts.
  bool textual_inversion = false;
  std::string vae = kPictureVae;
  /// Classes of the network: its family's, which need not be named.
  std::vector<std::string> transformers = {};
};

// Classes of text encoders and tokenizers that several pipelines may have.
inline const std::vector<std::string> kClip = {"CLIPTextModel"};
inline const std::vector<std::string> kProjectedClip = {"CLIPTextModelWithProjection"};
inline const std::vector<std::string> kClipTokenizers = {"CLIPTokenizer", "CLIPTokenizerFast"};
inline const std::vector<std::string> kT5 = {"T5EncoderModel"};
inline const std::vector<std::string> kUmt5 = {"UMT5EncoderModel"};
inline const std::vector<std::string> kT5Tokenizers = {"T5Tokenizer", "T5TokenizerFast"};
inline const std::vector<std::string> kQwen3 = {"Qwen3ForCausalLM", "Qwen3Model"};
inline const std::vector<std::string> kQwen25Vl = {"Qwen2_5_VLForConditionalGeneration"};
inline const std::vector<std::string> kQwen3Vl = {"Qwen3VLModel",
                                                  "Qwen3VLForConditionalGeneration"};
inline const std::vector<std::string> kQwenTokenizers = {"Qwen2Tokenizer", "Qwen2TokenizerFast"};
inline const std::vector<std::string> kQwenProcessors = {"Qwen2VLProcessor", "Qwen2_5_VLProcessor"};
/// Text that Qwen's chat templates put behind a user's message, before an answer.
inline constexpr const char* kQwenAfter = "<|im_end|>\n<|im_start|>assistant\n";
/// Text that Qwen-Image's pipeline puts before a prompt, and others have from it.
inline constexpr const char* kQwenImageBefore =
    "<|im_start|>system\nDescribe the image by detailing the color, shape, size, texture, "
    "quantity, text, spatial relationships of the objects and background:<|im_end|>\n"
    "<|im_start|>user\n";
/// Text that Qwen's chat templates put around a user's only message.
inline const PromptFrame kQwenChat = {"<|im_start|>user\n", kQwenAfter, ChatTemplate::answer};
/// Text that Qwen3's chat template puts around it where an answer is to begin without thinking.
inline const PromptFrame kQwenChatWithoutThinking = {
    "<|im_start|>user\n", "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    ChatTemplate::unthought_answer};

/// The pipeline class that a model_index.json names. Throws std::runtime_error naming those that
/// are supported.
const Pipeline& pipeline_of(const std::string& name, const std::filesystem::path& index_file);

/// Returns the pipeline that a pipeline with ControlNets is, whose folder has some.
Pipeline with_controlnets(Pipeline pipeline, const TaskDefaults& defaults);

/// Returns whether the pipeline is one of this project's, not a plugin's.
bool is_own_pipeline(const std::string& name);

/// "a, b".
std::string joined(const std::vector<std::string>& names);

/// Model whose parts a family's `check_fit` compares with its settings.
class FitCheck {
 public:
  explicit FitCheck(const ModelSpec& of) : model(of) {}

  const ModelSpec& model;
  /// Throws std::runtime_error naming both unless the transformer's setting `what` equals what `of`
  /// has.
  void require(const char* what, std::int64_t wanted, const std::string& of,
               std::int64_t has) const;
  /// A text encoder, which the pipeline's line says is of this kind.
  const T5Spec& t5(std::size_t encoder) const { return text<T5Spec>(encoder); }
  const ClipSpec& clip(std::size_t encoder) const { return text<ClipSpec>(encoder); }
  const BertSpec& bert(std::size_t encoder) const { return text<BertSpec>(encoder); }
  const QwenTextSpec& qwen(std::size_t encoder) const { return text<QwenTextSpec>(encoder); }

 private:
  template <class Spec>
  const Spec& text(std::size_t encoder) const {
    return std::get<Spec>(model.text_encoders.at(encoder).config);
  }
};

/// Returns how many channels a pipeline puts beside the latents.
std::int64_t beside_channels(const ModelSpec& spec);

/// Throws unless the folder's components fit together.
void check_fit(const ModelSpec& spec);

}  // namespace troupe::spec
