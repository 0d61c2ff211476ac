#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "models/spec/bert_spec.h"
#include "models/spec/clip_spec.h"
#include "models/spec/clip_vision_spec.h"
#include "models/spec/controlnet_spec.h"
#include "models/spec/qwen_text_spec.h"
#include "models/spec/scheduler_config.h"
#include "models/spec/t5_spec.h"
#include "models/spec/transformer_spec.h"
#include "models/spec/vae_spec.h"
#include "models/spec/wan_vae_spec.h"
#include "models/spec/weight_index.h"

namespace troupe::spec {

/// Scheduler of a model folder, from which a sampler is made. `config` is JSON proper (Python's
/// infinities became strings).
struct SchedulerSpec {
  std::string class_name;
  std::string config;
  std::filesystem::path file;
  /// True if the folder's pipeline corrects outdated settings (`scheduler_config_for`).
  bool mends_old_settings = false;

  bool operator==(const SchedulerSpec&) const = default;
};

/// The tokenizer's files, as far as they are there.
struct TokenizerSpec {
  std::filesystem::path folder;
  std::optional<std::filesystem::path> spiece_model;
  std::optional<std::filesystem::path> tokenizer_json;
  std::optional<std::filesystem::path> tokenizer_config;

  bool operator==(const TokenizerSpec&) const = default;
};

/// The files of a tokenizer's folder. Throws std::runtime_error where it has no vocabulary.
TokenizerSpec find_tokenizer(const std::filesystem::path& folder);

/// Output of a text encoder that a pipeline uses.
enum class TextUse {
  masked_states,       ///< last layer's states; padding is masked out in the encoder and everywhere
  states,              ///< last layer's states; padding is a token like any other
  padded_states,       ///< last layer's states; padding is masked out in the encoder, but computed
  once_padded_states,  ///< masked_states, but behind the encoder one padding token is seen, too
  zeroed_states,       ///< last layer's states; padding is masked out in the encoder, then zeros
  penultimate_states,  ///< states before the last layer; padding is masked out everywhere
  penultimate_pooled,  ///< states before the last layer, and the projected vector of the end token
  pooled,              ///< the vector of the end token alone
};

/// Way in which a pipeline uses a tokenizer's chat template.
enum class ChatTemplate {
  none,              ///< no template
  answer,            ///< a user's message, and the head of an answer
  unthought_answer,  ///< the same with thoughts that are empty (`enable_thinking=False`)
};

/// Length that each token of a guided prediction gets.
enum class GuidanceRenorm {
  none,     ///< length as it is
  of_text,  ///< length of the text's own prediction
  shorten,  ///< length of the text's own prediction, where this is shorter
};

/// Token in a text that stands for each token of a picture.
inline constexpr const char* kPicturePlace = "<|image_pad|>";

/// Text that a pipeline puts around every prompt.
struct PromptFrame {
  std::string before;
  std::string after;
  /// Use of the tokenizer's chat template, which must say the same.
  ChatTemplate chat_template = ChatTemplate::none;
  /// Number of tokens at the beginning whose states are dropped.
  std::int64_t dropped = 0;
  /// Number of tokens that `after` has where it ends also a prompt that is cut; 0: it is cut with
  /// the prompt.
  std::int64_t kept_after = 0;
  /// True if a prompt is cut into tokens apart from `before`, all of whose states are dropped, and
  /// what stands in quotes in it letter by letter.
  bool spells_quotes = false;
  /// Text between `before` and the prompt for each picture that the encoder sees, whose place is
  /// `kPicturePlace`; "{}" in it is the picture's number.
  std::string picture = {};

  std::string around(const std::string& prompt) const { return before + prompt + after; }
  bool operator==(const PromptFrame&) const = default;
};

/// One text encoder with its tokenizer.
struct TextEncoderSpec {
  std::string component;  ///< name of its folder: "text_encoder", "text_encoder_2"
  std::variant<T5Spec, ClipSpec, BertSpec, QwenTextSpec> config;
  WeightIndex weights;
  TokenizerSpec tokenizer;
  TextUse use = TextUse::masked_states;
  /// Number of tokens that prompts are padded or cut to; 0: as many as the request says.
  std::int64_t tokens = 0;
  PromptFrame frame = {};
  /// True if the folder lacks the encoder, which the pipeline allows: its states are zero.
  bool absent = false;
  /// True if learned words of several vectors are written out in prompts: `maybe_convert_prompt`.
  bool textual_inversion = false;
  /// True if the vocabulary has such words; the tokenizers' reader says so.
  bool learned_words = false;

  /// The tower that sees a request's pictures beside its prompts; null where there is none.
  const QwenVisionSpec* vision() const {
    const auto* qwen = std::get_if<QwenTextSpec>(&config);
    return qwen && qwen->vision ? &*qwen->vision : nullptr;
  }
  bool operator==(const TextEncoderSpec&) const = default;
};

/// Shape of a text encoder's output for a prompt: states [tokens, width] and a vector [pooled]; 0 =
/// none.
struct EncoderOutputShape {
  std::int64_t tokens = 0;
  std::int64_t width = 0;
  std::int64_t pooled = 0;

  std::int64_t elements() const { return tokens * width + pooled; }
};
/// Returns the shape for prompts that are padded or cut to `max_sequence_length`, or to the
/// encoder's own number of tokens if it has one.
EncoderOutputShape output_shape(const TextEncoderSpec& encoder, std::int64_t max_sequence_length);

/// Meaning of the pictures that a request brings beside its text.
enum class PictureRole {
  none,         ///< none is taken
  edited,       ///< the text says what becomes of them
  first_frame,  ///< a video begins with the only one
};

/// Size that a picture to edit is brought to.
enum class EditedFit {
  megapixel,    ///< The picture's own, at most a megapixel, without what is beyond whole tokens.
  trained,      ///< The size of the nearest ratio of those that the model was trained at.
  of_megapixel  ///< A megapixel of the picture's ratio, each side rounded to 32 pixels.
};

/// Size of what is made where a request with pictures to edit gives none.
enum class EditedSides {
  model,  ///< The model's own.
  first,  ///< The size of the first picture, as it is brought to the model.
  last,   ///< The same of the last one.
};

/// Meaning of the channels that stand beside the latents in the network's input, the same in every
/// step. They are made once a job of encoded pictures (actors/stage/beside_latents.h).
enum class BesideLatents {
  none,
  /// The picture to begin with, without what its mask paints anew, encoded; then the mask's pixels
  /// of each latent, a channel each.
  masked_picture_and_pixels,
  /// The mask, then the picture to begin with without what the mask paints anew, encoded.
  mask_and_masked_picture,
  control_picture,  ///< the control picture, encoded
  /// A channel for each frame of a latent one, which tells where a frame is given, then the given
  /// frames, with zeros between them, encoded as one video (actors/stage/given_frames.h).
  given_frames,
};

/// Inputs that a pipeline takes beside the text, and beside what image-to-image has.
struct PipelineInputs {
  PictureRole images = PictureRole::none;
  /// The most pictures that are taken.
  std::int32_t most_images = 0;
  bool needs_images = false;
  EditedFit edited = EditedFit::megapixel;
  EditedSides sized_by = EditedSides::model;
  /// Pixels, about, of the size in which the text encoder sees a picture to edit; 0: it sees the
  /// size that is encoded.
  std::int64_t seen_area = 0;
  /// Pixels that each side of a picture to edit has at least, and how many times the shorter one
  /// the longer may be; 0: any.
  std::int32_t least_side = 0;
  std::int32_t most_ratio = 0;
  /// True if a video's last frame may be given, too.
  bool last_image = false;
  bool needs_last_image = false;
  /// True if the steps of a second transformer may have a guidance scale of their own.
  bool second_guidance = false;
  /// Number of control pictures that the pipeline itself needs beside those of ControlNets.
  std::int32_t control_images = 0;
  /// True if ControlNets may be added.
  bool controlnets = false;
  BesideLatents beside = BesideLatents::none;

  /// Returns whether a picture to begin with and its mask are part of the network's input.
  bool beside_mask() const {
    return beside == BesideLatents::masked_picture_and_pixels ||
           beside == BesideLatents::mask_and_masked_picture;
  }
  /// Returns whether latents begin with the picture to begin with, where there is one: those of a
  /// U-Net that is given it are noise alone at full strength, and nothing is drawn for it, as in
  /// diffusers' pipelines of such U-Nets.
  bool begins_with_picture(double strength) const {
    return beside != BesideLatents::mask_and_masked_picture || strength < 1;
  }

  bool operator==(const PipelineInputs&) const = default;
};

/// Values of the fields that a request leaves open.
struct CallDefaults {
  std::int32_t steps = 20;
  double guidance_scale = 4.5;
  double strength = 0.8;
  double control_scale = 1;

  bool operator==(const CallDefaults&) const = default;
};

/// Defaults by task, as the pipelines' calls in diffusers have them. If diffusers has no pipeline
/// for `from_picture` or `inpainting`, they are those of `generation`.
struct TaskDefaults {
  CallDefaults generation;
  CallDefaults from_picture = generation;
  CallDefaults inpainting = generation;

  const CallDefaults& of(PipelineTask task) const {
    return task == PipelineTask::generation     ? generation
           : task == PipelineTask::from_picture ? from_picture
                                                : inpainting;
  }
  bool operator==(const TaskDefaults&) const = default;
};

/// The second of a pipeline's two transformers, of the shape of the first: it computes the steps of
/// little noise.
struct SecondTransformer {
  /// Timestep below which it computes.
  double boundary = 0;
  WeightIndex weights;
  KeptWeights kept;  ///< bytes that actors keep, as TransformerSpec::kept has the first one's

  bool operator==(const SecondTransformer&) const = default;
};

/// A ControlNet in a folder of its own.
struct ControlNet {
  std::filesystem::path folder;
  ControlNetSpec network;
  WeightIndex weights;
  KeptWeights kept;  ///< bytes that actors keep

  bool operator==(const ControlNet&) const = default;
};

/// Everything that a plan must know of a model folder. A plain value.
struct ModelSpec {
  std::filesystem::path folder;
  /// The class that model_index.json names, such as "PixArtAlphaPipeline".
  std::string pipeline_class;
  TransformerSpec transformer;
  /// Text encoders in the order in which the transformer takes their states.
  std::vector<TextEncoderSpec> text_encoders;
  VaeSpec vae;
  /// VAE of videos, whose frames come in groups, where the model has one; `vae` then gives widths
  /// only. A model of pictures decodes one frame with it.
  std::optional<WanVaeSpec> video_vae;
  /// Vision tower that sees the frames which a video is given, where the model has one.
  std::optional<VisionEncoderSpec> vision;
  SchedulerSpec scheduler;
  WeightIndex transformer_weights;
  /// The second transformer of a pipeline that has two.
  std::optional<SecondTransformer> second_transformer;
  WeightIndex vae_weights;
  /// ControlNets, those of the folder first; their residuals add up.
  std::vector<ControlNet> controlnets;

  /// Number of tokens that a prompt is padded or cut to, unless the request says.
  std::int64_t text_tokens = 120;
  /// Values of the fields that a request leaves open, by task.
  TaskDefaults defaults;
  /// Pixels of what is made where a request names no size; 0: as many as the transformer says.
  std::int64_t own_height = 0, own_width = 0;
  /// Prompts are put in lower case and may be cleaned, sizes may be binned: PixArt's customs.
  bool pixart_customs = true;
  /// True for Wan's customs: prompts are mended and their white space is made single.
  bool mends_prompts = false;
  /// True if, with one step, the picture is the clean sample that the step points at.
  bool one_step_is_clean = true;
  /// True if the negative branch's text is zeros when no negative prompt is given, not even an
  /// empty one.
  bool zero_negative = false;
  /// Parts of the folder that are not used and would not change the picture, a line each.
  std::vector<std::string> notes;
  /// True if flow matching's noise levels fall evenly to 1 / steps, not to the schedule's last.
  bool even_sigmas = false;
  /// True if noise levels that shift with the picture's size shift with the number of steps, too,
  /// as FLUX.2's pipelines have it.
  bool shifts_by_steps = false;
  /// Shift of noise levels that would shift with the picture's size, whatever the size; as
  /// SamplerRun has it.
  std::optional<double> fixed_shift;
  /// True if no picture to begin with is taken.
  bool from_text_alone = false;
  /// Inputs beside the text and a picture to begin with.
  PipelineInputs inputs;
  /// True if guided predictions may be brought to the deviation of the text's own
  /// (`guidance_rescale`).
  bool rescales_guidance = false;
  /// True if a job that begins with a picture, without a mask, has that picture's size when none is
  /// given.
  bool keeps_picture_size = false;
  /// True if there is guidance only where a negative prompt is given, if only an empty one.
  bool guided_by_negative = false;
  GuidanceRenorm renorm = GuidanceRenorm::none;

  /// True if guided predictions are the text's own plus the scale times what sets it apart from the
  /// negative one; else the negative one plus that.
  bool adds_guidance = false;

  /// Returns the guidance scale up to which no negative branch is computed.
  double no_guidance() const { return adds_guidance ? 0 : 1; }
  /// Returns whether two branches are computed at this guidance scale.
  bool has_branches(double guidance_scale) const {
    return transformer.guidance == GuidanceKind::branches && guidance_scale > no_guidance();
  }
  /// Returns how many control pictures each request needs.
  std::int32_t control_pictures() const {
    return inputs.control_images + static_cast<std::int32_t>(controlnets.size());
  }
  /// Height and width must be multiples of this many pixels.
  std::int64_t pixel_multiple() const { return vae.scale_factor() * transformer.patch_size; }
  /// Height and width in pixels where a request gives none.
  std::int64_t default_size() const {
    return own_height > 0 ? own_height : transformer.sample_size * vae.scale_factor();
  }
  std::int64_t default_width() const {
    if (own_width > 0) return own_width;
    return transformer.sample_width > 0 ? transformer.sample_width * vae.scale_factor()
                                        : default_size();
  }
  /// Returns whether the second of two transformers computes the step of a timestep.
  bool is_of_second(double timestep) const {
    return second_transformer && timestep < second_transformer->boundary;
  }
  bool makes_videos() const { return transformer.sample_frames > 0; }
  /// Returns the latent frames of `frames` frames; 1 for a picture.
  std::int64_t latent_frames(std::int64_t frames) const {
    return makes_videos() ? video_vae->latent_frames(frames) : 1;
  }

  bool operator==(const ModelSpec&) const = default;
};

/// Reads configs and safetensors headers of a diffusers folder, no weights. Throws
/// std::runtime_error for a missing folder or file, an unknown pipeline or component class, a
/// config value that is not supported (by key and value), and a tensor that is missing, misshapen
/// or not called for.
ModelSpec read_model_spec(const std::filesystem::path& folder);

/// Adds a ControlNet, a folder with its config.json and weights, to a model: its pipeline is then
/// the one that diffusers has for ControlNets. Throws std::runtime_error as `read_model_spec` does,
/// where the two do not fit together, and where the model takes none.
void add_controlnet(ModelSpec& model, const std::filesystem::path& folder);

/// Returns the components of the model in a folder whose tensors a file has, whatever names it
/// gives them: "transformer", "vae", …; both transformers of a model that has two, where it has one
/// of them. The folder's own weights need not be there. Throws std::runtime_error as
/// `read_model_spec` does.
std::vector<std::string> components_of(const WeightIndex& file,
                                       const std::filesystem::path& folder);

/// Returns the short name (`known_models`) of the published model whose transformer or U-Net a file
/// has, by the names and shapes of its tensors, diffusers' or its authors'; "" where it is none of
/// them. That model's folder has the configs and parts that the file lacks. Each of the two
/// transformers of Wan 2.2's A14B has the tensors of Wan 2.1's 14B: "" where the file's name says
/// that it is one of the two.
std::string base_of(const WeightIndex& file);

/// Bytes of weights in their stored dtype, by the part that needs them.
struct WeightBytes {
  /// Bytes of the embeddings of patches and text, which the first stage holds.
  std::uint64_t embed = 0;
  /// Bytes of the layers that make conditions, which every stage holds.
  std::uint64_t shared = 0;
  std::vector<std::uint64_t> blocks;
  /// Bytes of the last modulation and projection, which the last stage holds.
  std::uint64_t final = 0;
  /// Bytes of the text encoders, and of a vision tower.
  std::uint64_t text_encoder = 0;
  /// The largest part of the text encoder that is in use at one time: its embedding or a block.
  std::uint64_t text_encoder_peak = 0;
  std::uint64_t vae_decoder = 0;

  bool operator==(const WeightBytes&) const = default;
};

WeightBytes weight_bytes(const ModelSpec& spec);

/// The largest part of a text encoder that is in use at one time, as it is computed, in a type of
/// `element` bytes: a block, or an embedding, whose rows are looked up in their stored dtype.
std::uint64_t encoder_peak_bytes(const TextEncoderSpec& encoder, std::size_t element);
/// Bytes of all weights that a text encoder computes with except its token embedding, whose rows
/// are looked up in the files: in a type of `element` bytes.
std::uint64_t encoder_bytes(const TextEncoderSpec& encoder, std::size_t element);
/// Weights of the VAE that decoding needs, in a type of `element` bytes.
std::uint64_t decoder_bytes(const ModelSpec& spec, std::size_t element);
/// Bytes of the text encoders and the decoder alone.
WeightBytes weight_bytes_around(const ModelSpec& spec);

}  // namespace troupe::spec
