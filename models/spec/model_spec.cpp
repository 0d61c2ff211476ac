#include "models/spec/model_spec.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <iterator>
#include <map>
#include <span>
#include <stdexcept>

#include "base/format.h"
#include "models/spec/config.h"
#include "models/spec/gguf.h"
#include "models/spec/json_text.h"
#include "models/spec/original_names.h"
#include "models/spec/pipelines.h"
#include "models/spec/torch_file.h"

namespace troupe::spec {
namespace {

constexpr const char* kControlNet = "controlnet";  // the component, and its folder
constexpr const char* kOneNet = "ControlNetModel";
constexpr const char* kSeveralNets = "MultiControlNetModel";

/// Tensors that the folder's VAE must have to decode pictures, or videos.
std::vector<ExpectedTensor> decoder_tensors(const ModelSpec& spec) {
  return spec.video_vae ? expected_tensors(*spec.video_vae) : expected_tensors(spec.vae);
}

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxSchedulerBytes = 16U << 20U;
/// Most times that a picture's longer side may be as long as the other where a vision tower sees
/// it.
constexpr std::int32_t kMostSeenRatio = 128;

[[noreturn]] void refuse_model(const fs::path& where, const std::string& why) {
  throw std::runtime_error("[read_model] " + where.string() + ": " + why);
}

std::string class_of(const ConfigReader& index, const std::string& key) {
  if (!index.has_value(key)) refuse_model(index.file(), "component \"" + key + "\" is missing");
  const auto& value = index.raw(key);
  if (!value.is_array() || value.size() != 2 || !value[0].is_string() || !value[1].is_string()) {
    index.refuse(key, "must be a pair of library and class");
  }
  return value[1].get<std::string>();
}

/// Optional components that are switched off are written as a pair of nulls.
void accept_absent_components(const ConfigReader& index, bool with_checker, ModelSpec& spec) {
  const auto absent = nlohmann::json::array({nullptr, nullptr});
  if (!spec.vision) index.only("image_encoder", absent);
  // The safety checker blackens pictures, and changes none.
  if (with_checker && index.has_value("safety_checker") && index.raw("safety_checker") != absent) {
    spec.notes.push_back("the folder's safety checker is not run");
  } else {
    index.only("safety_checker", absent);
  }
  // The first two concern a safety checker only; the third prepares messages that rewrite prompts.
  index.harmless({"feature_extractor", "requires_safety_checker", "text_processor"});
}

/// Checks the class that a component's own config names, where it names one.
void check_class(const ConfigReader& config, const std::vector<std::string>& allowed) {
  if (!config.has("_class_name")) return;
  const std::string name = config.text("_class_name");
  if (std::ranges::find(allowed, name) == allowed.end()) {
    config.refuse("_class_name", "is not supported (supported: " + joined(allowed) + ")");
  }
}

/// Pipelines pad prompts to a CLIP tokenizer's model_max_length, which may be left open (written as
/// 1e30, too): refuses one that says another than the pipelines' own number of tokens.
void check_clip_length(const TokenizerSpec& tokenizer) {
  if (!tokenizer.tokenizer_config) return;
  const auto config = ConfigReader::read(*tokenizer.tokenizer_config);
  const auto length = config.optional_number("model_max_length");
  if (length && *length < kMaxWidth && *length != kClipTokens)
    config.refuse("model_max_length", fmt::format("is not supported (only {})", kClipTokens));
}

/// The class that the index names for a component, one of `allowed`; its folder must be there.
std::string component_class(const ConfigReader& index, const std::string& key,
                            const std::vector<std::string>& allowed) {
  const std::string name = class_of(index, key);
  if (std::ranges::find(allowed, name) == allowed.end()) {
    refuse_model(index.file(), "class \"" + name + "\" of component \"" + key +
                                   "\" is not supported (supported: " + joined(allowed) + ")");
  }
  const fs::path folder = index.file().parent_path() / key;
  if (!is_folder(folder)) refuse_model(folder, "component folder is missing");
  return name;
}

bool is_absent(const ConfigReader& index, const std::string& key) {
  return index.has_value(key) && index.raw(key) == nlohmann::json::array({nullptr, nullptr});
}

/// Refuses an encoder that has fewer positions than its pipeline's prompts have tokens.
void check_positions(const ConfigReader& config, std::int64_t positions, std::int64_t tokens) {
  if (positions < tokens) {
    config.refuse("max_position_embeddings",
                  fmt::format("must be at least {}, the tokens of the pipeline's prompts", tokens));
  }
}

/// Returns whether a text encoder's files have a vision tower, too.
bool has_vision_tower(const WeightIndex& weights) {
  return std::ranges::any_of(weights.tensors(), [](const TensorEntry& tensor) {
    return is_qwen_vision_tensor(tensor.name);
  });
}

/// Reads the layers whose states are taken, which rise.
std::vector<std::int64_t> read_taken_layers(const ConfigReader& index, const std::string& key) {
  auto layers = index.integers(key);
  const bool rise =
      std::ranges::adjacent_find(layers, std::ranges::greater_equal()) == layers.end();
  if (layers.empty() || layers.front() < 0 || !rise)
    index.refuse(key, "is not supported (only numbers of layers that rise)");
  return layers;
}

TextEncoderSpec read_text_encoder(const ConfigReader& index, const EncoderRole& role) {
  TextEncoderSpec spec;
  spec.component = role.component;
  spec.use = role.use;
  spec.tokens = role.tokens;
  spec.frame = role.frame;
  if (role.may_be_absent && is_absent(index, role.component) && is_absent(index, role.tokenizer)) {
    spec.absent = true;
    return spec;
  }
  const std::string name = component_class(index, role.component, role.classes);
  component_class(index, role.tokenizer, role.tokenizer_classes);
  const fs::path folder = index.file().parent_path();
  spec.tokenizer = find_tokenizer(folder / role.tokenizer);
  const auto config = ConfigReader::read(folder / role.component / "config.json");
  if (name == "BertModel") {
    const BertSpec bert = read_bert_spec(config);
    check_positions(config, bert.max_position_embeddings, spec.tokens);
    spec.config = bert;
  } else if (name.starts_with("CLIP")) {
    const ClipSpec clip = read_clip_spec(config, name == "CLIPTextModelWithProjection");
    check_positions(config, clip.max_position_embeddings, spec.tokens);
    spec.config = clip;
    check_clip_length(spec.tokenizer);
  } else if (name.starts_with("Qwen")) {
    QwenTextSpec qwen = read_qwen_spec(name, config);
    qwen.taken_layers = role.layers;
    index.harmless({role.layers_key});
    if (index.has_value(role.layers_key))
      qwen.taken_layers = read_taken_layers(index, role.layers_key);
    if (spec.use == TextUse::penultimate_states) qwen.taken_layers = {qwen.num_hidden_layers - 1};
    if (!role.layers.empty() && qwen.taken_layers.back() >= qwen.num_hidden_layers) {
      config.refuse("num_hidden_layers",
                    fmt::format("must be above {}, the last layer whose states the pipeline takes",
                                qwen.taken_layers.back()));
    }
    if (!role.processor.empty()) {
      component_class(index, role.processor, kQwenProcessors);
      qwen.vision =
          read_qwen_vision_spec(config, folder / role.processor, qwen.head_dim, qwen.hidden_size);
    }
    spec.config = qwen;
  } else {
    const T5Spec text = read_t5_spec(config);
    if (text.bias_in_every_block != (name == "UMT5EncoderModel"))
      config.refuse("model_type", "does not fit the class " + name);
    spec.config = text;
  }
  return spec;
}

/// Reads the configs of a vision tower, which the pipeline may have; nothing where it is absent.
std::optional<VisionEncoderSpec> read_vision_encoder(const ConfigReader& index) {
  if (!index.has_value(kVisionEncoder) || is_absent(index, kVisionEncoder)) {
    index.only(kPictureProcessor, nlohmann::json::array({nullptr, nullptr}));
    return std::nullopt;
  }
  component_class(index, kVisionEncoder, {"CLIPVisionModel"});
  component_class(index, kPictureProcessor,
                  {"CLIPImageProcessor", "CLIPImageProcessorFast", "CLIPImageProcessorPil"});
  const fs::path folder = index.file().parent_path();
  VisionEncoderSpec vision;
  vision.config =
      read_clip_vision_spec(ConfigReader::read(folder / kVisionEncoder / "config.json"));
  const auto pictures = ConfigReader::read(folder / kPictureProcessor / "preprocessor_config.json");
  vision.pictures = read_clip_picture_spec(pictures);
  const std::int64_t side = vision.config.image_size;
  if (vision.pictures.crop_height != side || vision.pictures.crop_width != side)
    pictures.refuse("crop_size",
                    fmt::format("must be {0} x {0}, image_size of the vision tower", side));
  return vision;
}

std::vector<Spelling> spellings_of(const TransformerSpec& transformer) {
  const OriginalTensors original = original_tensors(transformer);
  return {{"model.diffusion_model."}, {"model.diffusion_model.", original}, {"", original}};
}

std::vector<Spelling> vae_spellings(OriginalTensors original) {
  return {{"first_stage_model.", original}, {"vae.", original}, {"vae."}, {"", original}};
}

/// Notes files of weights in the network's folder that are not read, because diffusers' own are
/// there, whose variants and shards are no such files.
void note_unread_weights(ModelSpec& spec, const WeightIndex& weights, const fs::path& folder,
                         std::span<const std::string_view> stems) {
  for (const auto& entry : fs::directory_iterator(folder)) {
    const auto name = entry.path().filename().string();
    const bool own = std::ranges::any_of(
        stems, [&name](std::string_view stem) { return name.starts_with(stem); });
    if (own || (!is_weight_file(entry.path()) && !is_torch_name(entry.path())) ||
        std::ranges::count(weights.files(), entry.path()) > 0)
      continue;
    spec.notes.push_back(name + " in " + folder.filename().string() +
                         " is not read: " + weights.label().filename().string() + " is there");
  }
}

/// Reads the VAE of the folder with both of its halves; a file may lack the encoder.
WeightIndex read_vae_weights(const ModelSpec& spec, const WeightIndex& file) {
  const auto read = [&file](const auto& vae) {
    auto both = expected_tensors(vae);
    std::ranges::move(expected_tensors(vae, VaeHalf::encoder), std::back_inserter(both));
    return with_diffusers_names(file, both, [&] { return vae_spellings(original_tensors(vae)); });
  };
  return spec.video_vae ? read(*spec.video_vae) : read(spec.vae);
}

/// Ways in which single files spell a text encoder's tensors: those of whole checkpoints, each
/// encoder below a prefix of its own, and OpenCLIP's.
std::vector<Spelling> spellings_of(const TextEncoderSpec& encoder) {
  const auto* clip = std::get_if<ClipSpec>(&encoder.config);
  if (clip == nullptr) return {{"text_encoders.t5xxl.transformer."}};
  const OriginalTensors open_clip = open_clip_tensors(*clip);
  if (encoder.component == "text_encoder")
    return {{"cond_stage_model.transformer."},
            {"conditioner.embedders.0.transformer."},
            {"text_encoders.clip_l.transformer."},
            {"cond_stage_model.model.", open_clip}};
  return {{"conditioner.embedders.1.model.", open_clip},
          {"text_encoders.clip_g.transformer."},
          {"", open_clip}};
}

void read_weights(TextEncoderSpec& spec, const fs::path& folder) {
  if (spec.absent) return;
  constexpr std::string_view kStems[] = {"model"};
  spec.weights = with_diffusers_names(
      WeightIndex::read_folder(folder / spec.component, kStems),
      std::visit([](const auto& config) { return expected_tensors(config); }, spec.config),
      [&] { return spellings_of(spec); });
  if (const auto* clip = std::get_if<ClipSpec>(&spec.config)) {
    check_tensors(spec.weights, expected_tensors(*clip), is_ignorable_clip_tensor);
  } else if (const auto* bert = std::get_if<BertSpec>(&spec.config)) {
    check_tensors(spec.weights, expected_tensors(*bert), is_ignorable_bert_tensor);
  } else if (const auto* qwen = std::get_if<QwenTextSpec>(&spec.config)) {
    check_tensors(spec.weights, expected_tensors(*qwen), [qwen](std::string_view tensor) {
      return is_ignorable_qwen_tensor(*qwen, tensor);
    });
  } else {
    check_tensors(spec.weights, expected_tensors(std::get<T5Spec>(spec.config)),
                  is_ignorable_t5_tensor);
  }
}

/// Returns whether a U-Net's config was written before diffusers 0.9, if its version can be read.
bool is_before_0_9(const ConfigReader& config) {
  const std::string version = config.text_or("_diffusers_version", "");
  int major = 0, minor = 0;
  return std::sscanf(version.c_str(), "%d.%d", &major, &minor) == 2 && major == 0 && minor < 9;
}

/// A U-Net of Stable Diffusion as its pipelines take it: configs of old versions say the 32 of the
/// class's default where the model is made for 64.
TransformerSpec with_mended_size(TransformerSpec spec, const ConfigReader& config) {
  constexpr std::int64_t kTrainedSize = 64;
  if (spec.unet() == nullptr || spec.sample_size >= kTrainedSize || !is_before_0_9(config))
    return spec;
  UNetSpec unet = *spec.unet();
  unet.sample_size = kTrainedSize;
  return unet;
}

/// "encoder.block.3" of "encoder.block.3.layer.0.…", "text_model.encoder.layers.3",
/// "encoder.layer.3" and "model.layers.3" of the other families; "" where a name has no number.
std::string block_of(const std::string& name) {
  for (std::size_t dot = name.find('.'); dot != std::string::npos; dot = name.find('.', dot + 1)) {
    const auto end = name.find_first_not_of("0123456789", dot + 1);
    if (end != dot + 1 && end != std::string::npos && name[end] == '.') return name.substr(0, end);
  }
  return "";
}

struct EncoderBytes {
  std::uint64_t all = 0;
  std::uint64_t peak = 0;
};

EncoderBytes bytes_of(const TextEncoderSpec& encoder) {
  EncoderBytes bytes;
  if (encoder.absent) return bytes;
  if (const auto* clip = std::get_if<ClipSpec>(&encoder.config))
    return {clip_bytes(*clip, encoder.weights), clip_peak_bytes(*clip, encoder.weights)};
  if (const auto* bert = std::get_if<BertSpec>(&encoder.config)) {
    for (const ExpectedTensor& tensor : expected_tensors(*bert))
      bytes.all += entry_of(encoder.weights, tensor).bytes();
    bytes.peak = entry_of(encoder.weights, expected_tensors(*bert).front()).bytes();
    return bytes;
  }
  const auto expected =
      std::visit([](const auto& config) { return expected_tensors(config); }, encoder.config);
  std::map<std::string, std::uint64_t> blocks;
  for (const ExpectedTensor& tensor : expected) {
    const auto own = entry_of(encoder.weights, tensor).bytes();
    bytes.all += own;
    if (const auto block = block_of(tensor.name); !block.empty()) blocks[block] += own;
  }
  bytes.peak = entry_of(encoder.weights, expected.front()).bytes();
  for (const auto& [block, own] : blocks)
    bytes.peak = std::max(bytes.peak, own);
  return bytes;
}

}  // namespace

TokenizerSpec find_tokenizer(const fs::path& folder) {
  TokenizerSpec spec;
  spec.folder = folder;
  const auto if_there = [&folder](const char* name) -> std::optional<fs::path> {
    const fs::path file = folder / name;
    return is_file(file) ? std::optional(file) : std::nullopt;
  };
  spec.spiece_model = if_there("spiece.model");
  spec.tokenizer_json = if_there("tokenizer.json");
  spec.tokenizer_config = if_there("tokenizer_config.json");
  const bool listed = is_file(folder / "vocab.json") || is_file(folder / "vocab.txt");
  if (!spec.spiece_model && !spec.tokenizer_json && !listed) {
    refuse_model(folder, "has neither spiece.model nor tokenizer.json nor a vocabulary");
  }
  return spec;
}

namespace {

/// Returns the share of the training's timesteps below which the second of two transformers
/// computes; nothing where there is one transformer.
std::optional<double> read_boundary_ratio(const ConfigReader& index, const Pipeline& pipeline) {
  constexpr const char* kRatio = "boundary_ratio";
  const std::string& second = pipeline.second_network;
  if (second.empty()) return std::nullopt;
  const auto ratio = index.optional_number(kRatio);
  if (!index.has_value(second) || is_absent(index, second)) {
    if (ratio) index.refuse(kRatio, "is given, but there is no " + second);
    index.harmless({second});
    return std::nullopt;
  }
  component_class(index, second, pipeline.transformers);
  if (!ratio) index.refuse(second, std::string("needs ") + kRatio + ", which says its steps");
  if (!(*ratio > 0 && *ratio < 1)) index.refuse(kRatio, "must be between 0 and 1");
  return ratio;
}

/// Refuses a second transformer whose shape is not the first's.
void check_second(const fs::path& file, const Pipeline& pipeline, const TransformerSpec& first) {
  const auto config = ConfigReader::read(file);
  check_class(config, pipeline.transformers);
  if (read_transformer_spec(config, pipeline.transformers.front()) != first)
    refuse_model(file, "differs from " + pipeline.network +
                           "/config.json: two transformers must have one shape");
}

/// Reads all that is not weights.
ModelSpec read_configs(const fs::path& folder) {
  if (!is_folder(folder)) refuse_model(folder, "no such folder");
  const fs::path index_file = folder / "model_index.json";
  if (!is_file(index_file)) refuse_model(folder, "has no model_index.json");
  const ConfigReader index = ConfigReader::read(index_file);

  ModelSpec spec;
  spec.folder = folder;
  spec.pipeline_class = index.text_or("_class_name", "");
  const Pipeline& pipeline = pipeline_of(spec.pipeline_class, index_file);
  spec.text_tokens = pipeline.text_tokens;
  spec.defaults = pipeline.defaults;
  spec.own_height = pipeline.height;
  spec.own_width = pipeline.width;
  spec.pixart_customs = pipeline.pixart_customs;
  spec.one_step_is_clean = pipeline.one_step_is_clean;
  spec.even_sigmas = pipeline.even_sigmas;
  spec.shifts_by_steps = pipeline.shifts_by_steps;
  spec.from_text_alone = pipeline.from_text_alone;
  spec.inputs = pipeline.inputs;
  spec.adds_guidance = pipeline.adds_guidance;
  spec.rescales_guidance = pipeline.rescales_guidance;
  spec.keeps_picture_size = pipeline.keeps_picture_size;
  spec.guided_by_negative = pipeline.guided_by_negative;
  spec.renorm = pipeline.renorm;
  spec.mends_prompts = pipeline.mends_prompts;
  const std::string transformer_class =
      component_class(index, pipeline.network, pipeline.transformers);
  for (const EncoderRole& role : pipeline.encoders) {
    spec.text_encoders.push_back(read_text_encoder(index, role));
    spec.text_encoders.back().textual_inversion = pipeline.textual_inversion;
  }
  component_class(index, "vae", {pipeline.vae});
  spec.scheduler.class_name = class_of(index, "scheduler");
  spec.scheduler.mends_old_settings = pipeline.mends_old_settings;
  if (pipeline.inputs.images == PictureRole::first_frame) spec.vision = read_vision_encoder(index);
  accept_absent_components(index, pipeline.network == "unet", spec);
  const auto boundary_ratio = read_boundary_ratio(index, pipeline);
  // Each token has a timestep of its own: 0 in a frame that is given.
  if (pipeline.may_expand_timesteps && index.boolean_or("expand_timesteps", false))
    spec.inputs = {.images = PictureRole::first_frame,
                   .most_images = 1,
                   .needs_images = pipeline.inputs.needs_images};
  const bool is_distilled = pipeline.may_be_distilled && index.boolean_or("is_distilled", false);
  if (is_distilled) spec.fixed_shift = pipeline.distilled_shift;
  if (pipeline.patch_size > 0) index.only("patch_size", pipeline.patch_size);
  if (pipeline.has_controlnets) component_class(index, kControlNet, {kOneNet, kSeveralNets});
  // The pipeline's default is true. No watermark is drawn into pictures.
  if (spec.pipeline_class.starts_with("StableDiffusionXL")) {
    index.harmless({"add_watermarker"});
    index.only("requires_aesthetics_score", false);
    spec.zero_negative = index.boolean_or("force_zeros_for_empty_prompt", true);
  }
  index.finish();

  spec.scheduler.file = folder / "scheduler" / "scheduler_config.json";
  spec.scheduler.config = standard_json(read_text_file(spec.scheduler.file, kMaxSchedulerBytes));
  if (!parse_json(spec.scheduler.config, spec.scheduler.file).is_object()) {
    refuse_model(spec.scheduler.file, "is not a JSON object");
  }

  const auto transformer = ConfigReader::read(folder / pipeline.network / "config.json");
  check_class(transformer, pipeline.transformers);
  spec.transformer = read_transformer_spec(transformer, transformer_class);
  if (const auto* klein = std::get_if<Flux2Spec>(&spec.transformer.family)) {
    Flux2Spec distilled = *klein;
    distilled.is_distilled = is_distilled;
    spec.transformer = distilled;
  }
  if (pipeline.mends_old_settings)
    spec.transformer = with_mended_size(std::move(spec.transformer), transformer);
  if (boundary_ratio) {
    check_second(folder / pipeline.second_network / "config.json", pipeline, spec.transformer);
    // The text comes as either of them projects it, side by side.
    spec.transformer.caption_width *= 2;
    const auto trained = spec::scheduler_config_for(spec.scheduler, "").num_train_timesteps;
    spec.inputs.second_guidance = true;
    spec.second_transformer = {.boundary = *boundary_ratio * trained, .weights = {}, .kept = {}};
  }
  const auto vae = ConfigReader::read(folder / "vae" / "config.json");
  check_class(vae, {pipeline.vae});
  if (pipeline.vae == kPatchedVae) {
    spec.vae = read_flux2_vae_spec(vae);
  } else if (pipeline.vae != kPictureVae) {
    spec.video_vae = read_wan_vae_spec(vae);
    spec.video_vae->one_frame = !spec.makes_videos();
    spec.vae = spec.video_vae->like_pictures();
  } else {
    spec.vae = read_vae_spec(vae);
    if (pipeline.ignores_vae_shift) spec.vae.shift_factor = 0;
  }
  if (spec.makes_videos() && !spec.video_vae)
    refuse_model(folder, "the transformer makes videos, and the VAE, " + pipeline.vae +
                             ", decodes pictures");
  check_fit(spec);
  if (const auto& vision = spec.vision) {
    // A transformer with positions for two pictures needs both, one without takes one.
    const auto positions = std::get<WanSpec>(spec.transformer.family).pos_embed_seq_len;
    spec.inputs.last_image = spec.inputs.needs_last_image = positions > 0;
    // The tower sees a picture by its shorter side: how long the other gets is bounded.
    spec.inputs.most_ratio = kMostSeenRatio;
    spec.transformer.seen_width = vision->config.hidden_size;
    spec.transformer.seen_tokens = (positions > 0 ? 2 : 1) * vision->config.tokens();
  }
  return spec;
}

/// Returns the folders of a model's own ControlNets, as diffusers' MultiControlNetModel names them.
std::vector<fs::path> controlnet_folders(const fs::path& folder) {
  std::vector<fs::path> folders = {folder / kControlNet};
  const ConfigReader index = ConfigReader::read(folder / "model_index.json");
  if (class_of(index, kControlNet) == kOneNet) return folders;
  for (fs::path next; is_folder(next = folder / fmt::format("{}_{}", kControlNet, folders.size()));)
    folders.push_back(next);
  return folders;
}

ControlNet read_controlnet(const fs::path& folder, const ModelSpec& model) {
  if (!is_folder(folder)) refuse_model(folder, "no such folder");
  const auto config = ConfigReader::read(folder / "config.json");
  const UNetSpec* unet = model.transformer.unet();
  check_class(config, {kOneNet});
  ControlNet net{
      .folder = folder, .network = ControlNetSpec::read(config), .weights = {}, .kept = {}};
  if (unet == nullptr) refuse_model(folder, "is for a U-Net, and the model has none");
  check_fit(net.network, config, *unet, model.vae.scale_factor());
  constexpr std::string_view kStems[] = {"diffusion_pytorch_model"};
  net.weights = WeightIndex::read_folder(folder, kStems);
  const auto planned = planned_tensors(net.network);
  check_tensors(net.weights, expected_tensors(net.network), [](std::string_view) { return false; });
  net.kept = KeptWeights(planned, &net.weights);
  return net;
}

/// Returns the name of the folder of the transformer or U-Net.
std::string network_folder(const ModelSpec& spec) {
  return spec.transformer.unet() ? "unet" : "transformer";
}

}  // namespace

ModelSpec read_model_spec(const fs::path& folder) {
  ModelSpec spec = read_configs(folder);
  const std::string network = network_folder(spec);
  constexpr std::string_view kDiffusers[] = {"diffusion_pytorch_model", "model"};
  const auto read_network = [&](const std::string& component) {
    auto weights = with_diffusers_names(WeightIndex::read_folder(folder / component, kDiffusers),
                                        expected_tensors(spec.transformer),
                                        [&] { return spellings_of(spec.transformer); });
    note_unread_weights(spec, weights, folder / component, kDiffusers);
    check_tensors(weights, expected_tensors(spec.transformer), [&](std::string_view name) {
      return is_ignorable_tensor(spec.transformer, name);
    });
    return weights;
  };
  const auto planned = planned_tensors(spec.transformer);
  spec.transformer_weights = read_network(network);
  spec.transformer.kept = KeptWeights(planned, &spec.transformer_weights);
  if (auto& second = spec.second_transformer) {
    second->weights = read_network(pipeline_of(spec.pipeline_class, folder).second_network);
    second->kept = KeptWeights(planned, &second->weights);
  }
  for (TextEncoderSpec& encoder : spec.text_encoders) {
    read_weights(encoder, folder);
    if (!encoder.vision() && has_vision_tower(encoder.weights))
      spec.notes.push_back("the vision tower in " + encoder.component + " is not read");
  }
  if (auto& vision = spec.vision) {
    constexpr std::string_view kStems[] = {"model"};
    vision->weights = WeightIndex::read_folder(folder / kVisionEncoder, kStems);
    check_tensors(vision->weights, expected_tensors(vision->config), [&](std::string_view name) {
      return is_ignorable_clip_vision_tensor(vision->config, name);
    });
  }
  spec.vae_weights = read_vae_weights(spec, WeightIndex::read_folder(folder / "vae", kDiffusers));
  check_tensors(spec.vae_weights, decoder_tensors(spec), [&](std::string_view name) {
    // Wan's authors call the encoder's last layer so.
    return is_ignorable_vae_tensor(name) || (spec.video_vae && name.starts_with("conv1."));
  });
  if (pipeline_of(spec.pipeline_class, folder).has_controlnets)
    for (const auto& part : controlnet_folders(folder))
      spec.controlnets.push_back(read_controlnet(part, spec));
  return spec;
}

void add_controlnet(ModelSpec& model, const fs::path& folder) {
  if (!model.inputs.controlnets)
    refuse_model(folder, "is a ControlNet, and " + model.pipeline_class + " takes none");
  model.controlnets.push_back(read_controlnet(folder, model));
  const auto& own = pipeline_of(model.pipeline_class, model.folder);
  if (own.has_controlnets) return;
  model.pipeline_class = own.controlnet_pipeline;
  model.defaults = pipeline_of(model.pipeline_class, model.folder).defaults;
}

std::vector<std::string> components_of(const WeightIndex& file, const fs::path& folder) {
  const ModelSpec spec = read_configs(folder);
  std::vector<std::string> components;
  const auto look = [&](const std::string& component, const std::vector<ExpectedTensor>& expected,
                        const std::function<std::vector<Spelling>()>& spellings) {
    const WeightIndex own = with_diffusers_names(file, expected, spellings);
    const auto fit = std::ranges::count_if(expected, [&own](const ExpectedTensor& tensor) {
      const TensorEntry* entry = own.find(tensor.name);
      return entry != nullptr && entry->shape == tensor.shape;
    });
    // What lacks a few is told of them when it is read.
    if (2 * static_cast<std::size_t>(fit) > expected.size()) components.push_back(component);
  };
  look(network_folder(spec), expected_tensors(spec.transformer),
       [&] { return spellings_of(spec.transformer); });
  if (spec.second_transformer && !components.empty())
    components.push_back(pipeline_of(spec.pipeline_class, folder).second_network);
  for (const TextEncoderSpec& encoder : spec.text_encoders)
    if (!encoder.absent)
      look(encoder.component,
           std::visit([](const auto& config) { return expected_tensors(config); }, encoder.config),
           [&] { return spellings_of(encoder); });
  look("vae", decoder_tensors(spec), [&] {
    return vae_spellings(spec.video_vae ? original_tensors(*spec.video_vae)
                                        : original_tensors(spec.vae));
  });
  return components;
}

namespace {

constexpr std::string_view kFluxDev = "flux.1-dev";
constexpr std::string_view kFluxDepth = "flux.1-depth-dev";
constexpr std::string_view kKrea2Raw = "krea-2-raw";
constexpr std::string_view kQwenImage = "qwen-image";
constexpr std::string_view kWan14b = "wan2.1-t2v-14b";
constexpr std::string_view kWanI2v480 = "wan2.1-i2v-14b-480p";

/// Returns whether a file's name, in any case, with spaces for its other separators, has one of the
/// words.
bool is_called(const WeightIndex& file, std::initializer_list<std::string_view> words) {
  std::string name = file.label().filename().string();
  std::ranges::transform(name, name.begin(), [](unsigned char c) {
    return static_cast<char>(c == '-' || c == '_' ? ' ' : std::tolower(c));
  });
  return std::ranges::any_of(
      words, [&](std::string_view word) { return name.find(word) != std::string::npos; });
}

}  // namespace

std::string base_of(const WeightIndex& file) {
  struct Mark {
    std::string_view tensor;
    std::int64_t columns = 0;  // 0: any
  };
  struct Base {
    std::string_view name;
    std::vector<Mark> marks;
  };
  // The first whose marks are all there: what is more special goes first.
  static const std::vector<Base> kBases = {
      {"z-image-turbo", {{"x_pad_token"}, {"cap_embedder.1.weight", 2560}}},
      {kKrea2Raw, {{"txtfusion.projector.weight", 12}}},
      {kKrea2Raw, {{"text_fusion.projector.weight", 12}}},
      {kQwenImage, {{"txt_norm.weight"}, {"transformer_blocks.0.img_mlp.net.0.proj.weight"}}},
      {"flux.2-klein-4b", {{"txt_in.weight", 7680}, {"double_stream_modulation_img.lin.weight"}}},
      {"flux.2-klein-9b", {{"txt_in.weight", 12288}, {"double_stream_modulation_img.lin.weight"}}},
      {"flux.2-klein-4b",
       {{"context_embedder.weight", 7680}, {"double_stream_modulation_img.linear.weight"}}},
      {"flux.2-klein-9b",
       {{"context_embedder.weight", 12288}, {"double_stream_modulation_img.linear.weight"}}},
      {"chroma1-hd", {{"distilled_guidance_layer.layers.0.in_layer.weight"}, {"img_in.weight"}}},
      {"chroma1-hd",
       {{"distilled_guidance_layer.layers.0.linear_1.weight"}, {"x_embedder.weight"}}},
      {"flux.1-fill-dev", {{"vector_in.in_layer.weight"}, {"img_in.weight", 384}}},
      {kFluxDepth, {{"vector_in.in_layer.weight"}, {"img_in.weight", 128}}},
      {"flux.1-fill-dev",
       {{"single_transformer_blocks.0.proj_mlp.weight", 3072}, {"x_embedder.weight", 384}}},
      {kFluxDepth,
       {{"single_transformer_blocks.0.proj_mlp.weight", 3072}, {"x_embedder.weight", 128}}},
      {"ovis-image", {{"context_embedder.weight", 2048}, {"timestep_embedder.linear_1.weight"}}},
      {"longcat-image",
       {{"context_embedder.weight", 3584}, {"time_embed.timestep_embedder.linear_1.weight"}}},
      {kFluxDev, {{"vector_in.in_layer.weight"}, {"guidance_in.in_layer.weight"}}},
      {"flux.1-schnell", {{"vector_in.in_layer.weight"}, {"double_blocks.0.img_attn.qkv.weight"}}},
      {kFluxDev,
       {{"single_transformer_blocks.0.proj_mlp.weight", 3072},
        {"time_text_embed.guidance_embedder.linear_1.weight"}}},
      {"flux.1-schnell",
       {{"single_transformer_blocks.0.proj_mlp.weight", 3072},
        {"time_text_embed.text_embedder.linear_1.weight"}}},
      {"sd3.5-large", {{"joint_blocks.37.x_block.attn.qkv.weight"}}},
      {"sd3.5-medium", {{"joint_blocks.0.x_block.attn2.qkv.weight"}}},
      {"sd3-medium", {{"joint_blocks.23.x_block.attn.qkv.weight"}}},
      {"sd3.5-large",
       {{"transformer_blocks.37.attn.to_q.weight"}, {"context_embedder.weight", 4096}}},
      {"sd3.5-medium",
       {{"transformer_blocks.0.attn2.to_q.weight"}, {"context_embedder.weight", 4096}}},
      {"sd3-medium",
       {{"transformer_blocks.23.attn.to_q.weight"}, {"context_embedder.weight", 4096}}},
      {"sdxl", {{"label_emb.0.0.weight", 2816}, {"input_blocks.0.0.weight", 4}}},
      {"sdxl-inpainting", {{"label_emb.0.0.weight", 2816}, {"input_blocks.0.0.weight", 9}}},
      {"sd1.5-inpainting",
       {{"input_blocks.1.1.transformer_blocks.0.attn2.to_k.weight", 768},
        {"input_blocks.0.0.weight", 9}}},
      {"sd1.5",
       {{"input_blocks.1.1.transformer_blocks.0.attn2.to_k.weight", 768},
        {"input_blocks.0.0.weight", 4}}},
      {"sdxl", {{"add_embedding.linear_1.weight", 2816}, {"conv_in.weight", 4}}},
      {"sd1.5",
       {{"down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k.weight", 768},
        {"conv_in.weight", 4}}},
      {"sdxl-inpainting", {{"add_embedding.linear_1.weight", 2816}, {"conv_in.weight", 9}}},
      {"sd1.5-inpainting",
       {{"down_blocks.0.attentions.0.transformer_blocks.0.attn2.to_k.weight", 768},
        {"conv_in.weight", 9}}},
      {"wan2.1-flf2v-14b", {{"img_emb.emb_pos"}, {"patch_embedding.weight", 36}}},
      {kWanI2v480, {{"blocks.39.cross_attn.k_img.weight"}, {"patch_embedding.weight", 36}}},
      {"wan2.1-flf2v-14b",
       {{"condition_embedder.image_embedder.pos_embed"}, {"patch_embedding.weight", 36}}},
      {kWanI2v480, {{"blocks.39.attn2.add_k_proj.weight"}, {"patch_embedding.weight", 36}}},
      {kWan14b, {{"blocks.39.attn1.to_q.weight"}, {"patch_embedding.weight", 16}}},
      {"wan2.1-t2v-1.3b", {{"blocks.29.attn1.to_q.weight", 1536}, {"patch_embedding.weight", 16}}},
      {kWan14b, {{"blocks.39.self_attn.q.weight"}, {"patch_embedding.weight", 16}}},
      {"wan2.1-t2v-1.3b", {{"blocks.29.self_attn.q.weight", 1536}, {"patch_embedding.weight", 16}}},
  };
  const auto has = [&file](const Mark& mark) {
    for (const char* prefix : {"", "model.diffusion_model."}) {
      const TensorEntry* entry = file.find(prefix + std::string(mark.tensor));
      if (entry != nullptr &&
          (mark.columns == 0 || (entry->shape.size() > 1 && entry->shape[1] == mark.columns)))
        return true;
    }
    return false;
  };
  const auto found = std::ranges::find_if(
      kBases, [&](const Base& base) { return std::ranges::all_of(base.marks, has); });
  if (found == kBases.end()) return "";
  // The tensors of these are the same.
  if (found->name == kWan14b &&
      is_called(file, {"high noise", "low noise", "highnoise", "lownoise", "a14b"}))
    return "";
  if (found->name == kKrea2Raw && is_called(file, {"turbo"})) return "krea-2-turbo";
  if (found->name == kFluxDev && is_called(file, {"kontext"})) return "flux.1-kontext-dev";
  if (found->name == kFluxDepth && is_called(file, {"canny"})) return "flux.1-canny-dev";
  if (found->name == kQwenImage && is_called(file, {"edit"})) {
    for (const char* month : {"2511", "2509"})
      if (is_called(file, {month})) return "qwen-image-edit-" + std::string(month);
    return "qwen-image-edit";
  }
  if (found->name == kWanI2v480 && is_called(file, {"720p"})) return "wan2.1-i2v-14b-720p";
  return std::string(found->name);
}

std::uint64_t encoder_peak_bytes(const TextEncoderSpec& encoder, std::size_t element) {
  std::uint64_t peak = 0;
  if (encoder.absent) return peak;
  std::map<std::string, std::uint64_t> blocks;
  const auto expected =
      std::visit([](const auto& config) { return expected_tensors(config); }, encoder.config);
  for (const ExpectedTensor& tensor : expected) {
    const TensorEntry& entry = entry_of(encoder.weights, tensor);
    if (const auto block = block_of(tensor.name); !block.empty())
      blocks[block] += entry.elements() * element;
    else
      peak = std::max(peak, entry.bytes());
  }
  for (const auto& [block, bytes] : blocks)
    peak = std::max(peak, bytes);
  return peak;
}

std::uint64_t encoder_bytes(const TextEncoderSpec& encoder, std::size_t element) {
  std::uint64_t bytes = 0;
  if (encoder.absent) return bytes;
  const auto expected =
      std::visit([](const auto& config) { return expected_tensors(config); }, encoder.config);
  // The first one of every family is the token embedding.
  for (std::size_t i = 1; i < expected.size(); ++i) {
    const TensorEntry& entry = entry_of(encoder.weights, expected[i]);
    bytes += entry.elements() * element;
  }
  return bytes;
}

EncoderOutputShape output_shape(const TextEncoderSpec& encoder, std::int64_t max_sequence_length) {
  if (encoder.absent) return {};
  const bool states = encoder.use != TextUse::pooled;
  const bool pooled = !states || encoder.use == TextUse::penultimate_pooled;
  const auto tokens = encoder.tokens > 0 ? encoder.tokens : max_sequence_length;
  std::int64_t width = 0, vector = 0;
  if (const auto* clip = std::get_if<ClipSpec>(&encoder.config)) {
    width = clip->hidden_size;
    vector = clip->pooled_size();
  } else if (const auto* bert = std::get_if<BertSpec>(&encoder.config)) {
    width = bert->hidden_size;
  } else if (const auto* qwen = std::get_if<QwenTextSpec>(&encoder.config)) {
    width = qwen->states_width();
  } else {
    width = std::get<T5Spec>(encoder.config).d_model;
  }
  return {states ? tokens : 0, states ? width : 0, pooled ? vector : 0};
}

std::uint64_t decoder_bytes(const ModelSpec& spec, std::size_t element) {
  if (spec.video_vae) return kept_elements(*spec.video_vae) * element;
  std::uint64_t bytes = 0;
  for (const ExpectedTensor& tensor : decoder_tensors(spec)) {
    const TensorEntry& entry = entry_of(spec.vae_weights, tensor);
    bytes += entry.elements() * element;
  }
  return bytes;
}

WeightBytes weight_bytes_around(const ModelSpec& spec) {
  WeightBytes bytes;
  for (const TextEncoderSpec& encoder : spec.text_encoders) {
    const auto own = bytes_of(encoder);
    bytes.text_encoder += own.all;
    bytes.text_encoder_peak = std::max(bytes.text_encoder_peak, own.peak);
  }
  if (const auto& vision = spec.vision) {
    for (const ExpectedTensor& tensor : expected_tensors(vision->config))
      bytes.text_encoder += entry_of(vision->weights, tensor).bytes();
  }
  for (const ExpectedTensor& tensor : decoder_tensors(spec)) {
    bytes.vae_decoder += entry_of(spec.vae_weights, tensor).bytes();
  }
  return bytes;
}

WeightBytes weight_bytes(const ModelSpec& spec) {
  WeightBytes bytes = weight_bytes_around(spec);
  bytes.blocks.resize(static_cast<std::size_t>(spec.transformer.num_layers));
  for (const PlannedTensor& planned : planned_tensors(spec.transformer)) {
    const std::uint64_t own = entry_of(spec.transformer_weights, planned.tensor).bytes();
    switch (planned.held) {
      case Held::first:
        bytes.embed += own;
        break;
      case Held::everywhere:
        bytes.shared += own;
        break;
      case Held::block:
        bytes.blocks[planned.block] += own;
        break;
      case Held::last:
        bytes.final += own;
        break;
    }
  }
  return bytes;
}

}  // namespace troupe::spec
