#include "models/spec/model_spec.h"

#include <algorithm>
#include <stdexcept>

#include "models/spec/config.h"
#include "models/spec/json_text.h"

namespace troupe::spec {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMaxSchedulerBytes = 16U << 20U;

/// A text encoder of a pipeline.
struct EncoderRole {
  std::string component;
  std::string tokenizer;
  std::vector<std::string> classes;
  std::vector<std::string> tokenizer_classes;
  TextUse use = TextUse::masked_states;
  std::int64_t tokens = 0;
  bool may_be_absent = false;
};

struct Pipeline {
  std::string name;
  std::vector<std::string> transformers;
  std::vector<EncoderRole> encoders;
  /// The folder of the network that denoises.
  std::string network = "transformer";
  std::int64_t text_tokens = 0;
  bool pixart_customs = false;
  bool one_step_is_clean = false;
  bool even_sigmas = false;
  bool rescales_guidance = false;
  bool mends_prompts = false;
  std::string vae = "AutoencoderKL";
};

const std::vector<std::string> kProjectedClip = {"CLIPTextModelWithProjection"};
const std::vector<std::string> kClipTokenizers = {"CLIPTokenizer", "CLIPTokenizerFast"};
const std::vector<std::string> kBertTokenizers = {"BertTokenizer", "BertTokenizerFast"};
const std::vector<std::string> kMultilingualTokenizers = {"T5Tokenizer", "T5TokenizerFast",
                                                          "MT5Tokenizer", "MT5TokenizerFast"};
const std::vector<std::string> kT5 = {"T5EncoderModel"};
const std::vector<std::string> kT5Tokenizers = {"T5Tokenizer", "T5TokenizerFast"};

const std::vector<Pipeline>& pipelines() {
  static const std::vector<Pipeline> all = {
      {.name = "PixArtAlphaPipeline",
       .transformers = {"PixArtTransformer2DModel", "Transformer2DModel"},
       .encoders = {{"text_encoder", "tokenizer", kT5, kT5Tokenizers}},
       .text_tokens = 120,
       .pixart_customs = true,
       .one_step_is_clean = true},
      {.name = "PixArtSigmaPipeline",
       .transformers = {"PixArtTransformer2DModel", "Transformer2DModel"},
       .encoders = {{"text_encoder", "tokenizer", kT5, kT5Tokenizers}},
       .text_tokens = 300,
       .pixart_customs = true},
      {.name = "StableDiffusion3Pipeline",
       .transformers = {"SD3Transformer2DModel"},
       .encoders = {{"text_encoder", "tokenizer", kProjectedClip, kClipTokenizers,
                     TextUse::penultimate_pooled, kClipTokens},
                    {"text_encoder_2", "tokenizer_2", kProjectedClip, kClipTokenizers,
                     TextUse::penultimate_pooled, kClipTokens},
                    {"text_encoder_3", "tokenizer_3", kT5, kT5Tokenizers, TextUse::states, 0,
                     true}},
       .text_tokens = 256},
      {.name = "FluxPipeline",
       .transformers = {"FluxTransformer2DModel"},
       .encoders = {{"text_encoder",
                     "tokenizer",
                     {"CLIPTextModel"},
                     kClipTokenizers,
                     TextUse::pooled,
                     kClipTokens},
                    {"text_encoder_2", "tokenizer_2", kT5, kT5Tokenizers, TextUse::states}},
       .text_tokens = 512,
       .even_sigmas = true},
      {.name = "HunyuanDiTPipeline",
       .transformers = {"HunyuanDiT2DModel"},
       .encoders = {{"text_encoder",
                     "tokenizer",
                     {"BertModel"},
                     kBertTokenizers,
                     TextUse::padded_states,
                     kClipTokens},
                    {"text_encoder_2", "tokenizer_2", kT5, kMultilingualTokenizers,
                     TextUse::padded_states}},
       .text_tokens = 256,
       .rescales_guidance = true},
      {.name = "WanPipeline",
       .transformers = {"WanTransformer3DModel"},
       .encoders = {{"text_encoder",
                     "tokenizer",
                     {"UMT5EncoderModel"},
                     kT5Tokenizers,
                     TextUse::zeroed_states}},
       .text_tokens = 512,
       .mends_prompts = true,
       .vae = "AutoencoderKLWan"},
      {.name = "StableDiffusionPipeline",
       .transformers = {"UNet2DConditionModel"},
       .encoders = {{"text_encoder",
                     "tokenizer",
                     {"CLIPTextModel"},
                     kClipTokenizers,
                     TextUse::states,
                     kClipTokens}},
       .network = "unet",
       .text_tokens = kClipTokens,
       .rescales_guidance = true},
      {.name = "StableDiffusionXLPipeline",
       .transformers = {"UNet2DConditionModel"},
       .encoders = {{"text_encoder",
                     "tokenizer",
                     {"CLIPTextModel"},
                     kClipTokenizers,
                     TextUse::penultimate_pooled,
                     kClipTokens},
                    {"text_encoder_2", "tokenizer_2", kProjectedClip, kClipTokenizers,
                     TextUse::penultimate_pooled, kClipTokens}},
       .network = "unet",
       .text_tokens = kClipTokens,
       .rescales_guidance = true},
  };
  return all;
}

[[noreturn]] void fail(const fs::path& where, const std::string& why) {
  throw std::runtime_error("[read_model] " + where.string() + ": " + why);
}

std::string class_of(const ConfigReader& index, const std::string& key) {
  if (!index.has_value(key)) fail(index.file(), "component \"" + key + "\" is missing");
  const auto& value = index.raw(key);
  if (!value.is_array() || value.size() != 2 || !value[0].is_string() || !value[1].is_string()) {
    index.refuse(key, "must be a pair of library and class");
  }
  return value[1].get<std::string>();
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names)
    text += (text.empty() ? "" : ", ") + name;
  return text;
}

/// Optional components that are switched off are written as a pair of nulls.
void accept_absent_components(const ConfigReader& index, bool with_checker, ModelSpec& spec) {
  const auto absent = nlohmann::json::array({nullptr, nullptr});
  index.only("image_encoder", absent);
  // It blackens pictures, and changes none.
  if (with_checker && index.has_value("safety_checker") && index.raw("safety_checker") != absent) {
    spec.notes.push_back("the folder's safety checker is not run");
  } else {
    index.only("safety_checker", absent);
  }
  // Both say something of a safety checker only.
  index.harmless({"feature_extractor", "requires_safety_checker"});
}

/// Checks the class that a component's own config names, where it names one.
void check_class(const ConfigReader& config, const std::vector<std::string>& allowed) {
  if (!config.has("_class_name")) return;
  const std::string name = config.text("_class_name");
  if (std::ranges::find(allowed, name) == allowed.end()) {
    config.refuse("_class_name", "is not supported (supported: " + joined(allowed) + ")");
  }
}

TokenizerSpec find_tokenizer(const fs::path& folder) {
  TokenizerSpec spec;
  spec.folder = folder;
  const auto if_there = [&folder](const char* name) -> std::optional<fs::path> {
    const fs::path file = folder / name;
    return fs::is_regular_file(file) ? std::optional(file) : std::nullopt;
  };
  spec.spiece_model = if_there("spiece.model");
  spec.tokenizer_json = if_there("tokenizer.json");
  spec.tokenizer_config = if_there("tokenizer_config.json");
  const bool listed =
      fs::is_regular_file(folder / "vocab.json") || fs::is_regular_file(folder / "vocab.txt");
  if (!spec.spiece_model && !spec.tokenizer_json && !listed) {
    fail(folder, "has neither spiece.model nor tokenizer.json nor a vocabulary");
  }
  return spec;
}

void check_fit(const ModelSpec& spec) {
  const auto require = [&](const char* what, std::int64_t wanted, const std::string& of,
                           std::int64_t has) {
    if (wanted == has) return;
    fail(spec.folder, std::string(spec.transformer.unet() ? "unet " : "transformer ") + what +
                          " = " + std::to_string(wanted) + " does not fit " + of + " = " +
                          std::to_string(has));
  };
  if (const auto* family = std::get_if<PixArtSpec>(&spec.transformer.family)) {
    require("caption_channels", family->caption_channels, "text_encoder d_model",
            std::get<T5Spec>(spec.text_encoders[0].config).d_model);
  }
  if (const auto* family = std::get_if<HunyuanSpec>(&spec.transformer.family)) {
    require("text_len", family->text_len, "the pipeline's tokens of BERT", kClipTokens);
    require("cross_attention_dim", family->cross_attention_dim, "text_encoder hidden_size",
            std::get<BertSpec>(spec.text_encoders[0].config).hidden_size);
    require("cross_attention_dim_t5", family->cross_attention_dim_t5, "text_encoder_2 d_model",
            std::get<T5Spec>(spec.text_encoders[1].config).d_model);
  }
  if (const auto* family = std::get_if<FluxSpec>(&spec.transformer.family)) {
    require("pooled_projection_dim", family->pooled_projection_dim, "text_encoder's vector",
            std::get<ClipSpec>(spec.text_encoders[0].config).pooled_size());
    require("joint_attention_dim", family->joint_attention_dim, "text_encoder_2 d_model",
            std::get<T5Spec>(spec.text_encoders[1].config).d_model);
  }
  if (const auto* family = std::get_if<Sd3Spec>(&spec.transformer.family)) {
    std::int64_t pooled = 0;
    for (const int encoder : {0, 1})
      pooled += std::get<ClipSpec>(spec.text_encoders[encoder].config).pooled_size();
    require("pooled_projection_dim", family->pooled_projection_dim, "both CLIP's vectors", pooled);
    if (!spec.text_encoders[2].absent) {
      require("joint_attention_dim", family->joint_attention_dim, "text_encoder_3 d_model",
              std::get<T5Spec>(spec.text_encoders[2].config).d_model);
    }
  }
  if (const auto* family = std::get_if<WanSpec>(&spec.transformer.family)) {
    require("text_dim", family->text_dim, "text_encoder d_model",
            std::get<T5Spec>(spec.text_encoders[0].config).d_model);
  }
  if (const auto* family = spec.transformer.unet()) {
    std::int64_t width = 0;
    for (const TextEncoderSpec& encoder : spec.text_encoders)
      width += std::get<ClipSpec>(encoder.config).hidden_size;
    require("cross_attention_dim", family->cross_attention_dim, "the text encoders' hidden_size",
            width);
    require("out_channels", family->out_channels, "its own in_channels", family->in_channels);
    const auto& pooled = std::get<ClipSpec>(spec.text_encoders.back().config);
    const bool added = spec.text_encoders.size() == 2;
    require(
        "projection_class_embeddings_input_dim", family->projection_class_embeddings_input_dim,
        "the pooled text and six sizes",
        added ? pooled.pooled_size() + UNetSpec::kTimeIds * family->addition_time_embed_dim : 0);
  }
  require("in_channels", spec.transformer.in_channels, "vae latent_channels",
          spec.vae.latent_channels);
}

const Pipeline& pipeline_of(const std::string& name, const fs::path& index_file) {
  std::vector<std::string> names;
  for (const Pipeline& pipeline : pipelines()) {
    if (pipeline.name == name) return pipeline;
    names.push_back(pipeline.name);
  }
  fail(index_file,
       "pipeline class \"" + name + "\" is not supported (supported: " + joined(names) + ")");
}

/// The class that the index names for a component, one of `allowed`; its folder must be there.
std::string component_class(const ConfigReader& index, const std::string& key,
                            const std::vector<std::string>& allowed) {
  const std::string name = class_of(index, key);
  if (std::ranges::find(allowed, name) == allowed.end()) {
    fail(index.file(), "class \"" + name + "\" of component \"" + key +
                           "\" is not supported (supported: " + joined(allowed) + ")");
  }
  const fs::path folder = index.file().parent_path() / key;
  if (!fs::is_directory(folder)) fail(folder, "component folder is missing");
  return name;
}

bool is_absent(const ConfigReader& index, const std::string& key) {
  return index.has_value(key) && index.raw(key) == nlohmann::json::array({nullptr, nullptr});
}

TextEncoderSpec read_text_encoder(const ConfigReader& index, const EncoderRole& role) {
  TextEncoderSpec spec;
  spec.component = role.component;
  spec.use = role.use;
  spec.tokens = role.tokens;
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
    spec.config = read_bert_spec(config);
  } else if (name.starts_with("CLIP")) {
    spec.config = read_clip_spec(config, name == "CLIPTextModelWithProjection");
  } else {
    const T5Spec text = read_t5_spec(config);
    if (text.bias_in_every_block != (name == "UMT5EncoderModel"))
      config.refuse("model_type", "does not fit the class " + name);
    spec.config = text;
  }
  return spec;
}

void read_weights(TextEncoderSpec& spec, const fs::path& folder) {
  if (spec.absent) return;
  constexpr std::string_view kStems[] = {"model"};
  spec.weights = WeightIndex::read_folder(folder / spec.component, kStems);
  if (const auto* clip = std::get_if<ClipSpec>(&spec.config)) {
    check_tensors(spec.weights, expected_tensors(*clip), is_ignorable_clip_tensor);
  } else if (const auto* bert = std::get_if<BertSpec>(&spec.config)) {
    check_tensors(spec.weights, expected_tensors(*bert), is_ignorable_bert_tensor);
  } else {
    check_tensors(spec.weights, expected_tensors(std::get<T5Spec>(spec.config)),
                  is_ignorable_t5_tensor);
  }
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
  const auto& config = std::get<T5Spec>(encoder.config);
  const auto expected = expected_tensors(config);
  for (const ExpectedTensor& tensor : expected)
    bytes.all += entry_of(encoder.weights, tensor).bytes();
  bytes.peak = entry_of(encoder.weights, expected.front()).bytes();
  for (std::int64_t block = 0; block < config.num_layers; ++block)
    bytes.peak = std::max(bytes.peak, encoder.weights.bytes(t5_block_prefix(block)));
  return bytes;
}

std::vector<ExpectedTensor> decoder_tensors(const ModelSpec& spec) {
  return spec.video_vae ? expected_tensors(*spec.video_vae) : expected_tensors(spec.vae);
}

}  // namespace

ModelSpec read_model_spec(const fs::path& folder) {
  if (!fs::is_directory(folder)) fail(folder, "no such folder");
  const fs::path index_file = folder / "model_index.json";
  if (!fs::is_regular_file(index_file)) fail(folder, "has no model_index.json");
  const ConfigReader index = ConfigReader::read(index_file);

  ModelSpec spec;
  spec.folder = folder;
  spec.pipeline_class = index.text_or("_class_name", "");
  const Pipeline& pipeline = pipeline_of(spec.pipeline_class, index_file);
  spec.text_tokens = pipeline.text_tokens;
  spec.pixart_customs = pipeline.pixart_customs;
  spec.one_step_is_clean = pipeline.one_step_is_clean;
  spec.even_sigmas = pipeline.even_sigmas;
  spec.rescales_guidance = pipeline.rescales_guidance;
  spec.mends_prompts = pipeline.mends_prompts;
  const std::string transformer_class =
      component_class(index, pipeline.network, pipeline.transformers);
  for (const EncoderRole& role : pipeline.encoders)
    spec.text_encoders.push_back(read_text_encoder(index, role));
  component_class(index, "vae", {pipeline.vae});
  spec.scheduler.class_name = class_of(index, "scheduler");
  accept_absent_components(index, pipeline.network == "unet", spec);
  if (spec.pipeline_class == "WanPipeline") {  // 2.2 has a second transformer for the last steps
    index.only("transformer_2", nlohmann::json::array({nullptr, nullptr}));
    index.only("boundary_ratio", nullptr);
    index.only("expand_timesteps", false);
  }
  // Its default in the pipeline, where a folder does not say. Nothing is drawn into pictures.
  if (spec.pipeline_class == "StableDiffusionXLPipeline") {
    index.harmless({"add_watermarker"});
    spec.zero_negative = index.boolean_or("force_zeros_for_empty_prompt", true);
  }
  index.finish();

  spec.scheduler.file = folder / "scheduler" / "scheduler_config.json";
  spec.scheduler.config = standard_json(read_text_file(spec.scheduler.file, kMaxSchedulerBytes));
  if (!parse_json(spec.scheduler.config, spec.scheduler.file).is_object()) {
    fail(spec.scheduler.file, "is not a JSON object");
  }

  const auto transformer = ConfigReader::read(folder / pipeline.network / "config.json");
  check_class(transformer, pipeline.transformers);
  spec.transformer = read_transformer_spec(transformer, transformer_class);
  const auto vae = ConfigReader::read(folder / "vae" / "config.json");
  check_class(vae, {pipeline.vae});
  if (pipeline.vae == "AutoencoderKLWan") {
    spec.video_vae = read_wan_vae_spec(vae);
    spec.vae = spec.video_vae->like_pictures();
  } else {
    spec.vae = read_vae_spec(vae);
  }
  check_fit(spec);

  constexpr std::string_view kDiffusers[] = {"diffusion_pytorch_model", "model"};
  spec.transformer_weights = WeightIndex::read_folder(folder / pipeline.network, kDiffusers);
  for (TextEncoderSpec& encoder : spec.text_encoders)
    read_weights(encoder, folder);
  spec.vae_weights = WeightIndex::read_folder(folder / "vae", kDiffusers);
  check_tensors(spec.transformer_weights, expected_tensors(spec.transformer),
                [&](std::string_view name) { return is_ignorable_tensor(spec.transformer, name); });
  check_tensors(spec.vae_weights, decoder_tensors(spec), is_ignorable_vae_tensor);
  return spec;
}

WeightBytes weight_bytes_around(const ModelSpec& spec) {
  WeightBytes bytes;
  for (const TextEncoderSpec& encoder : spec.text_encoders) {
    const auto own = bytes_of(encoder);
    bytes.text_encoder += own.all;
    bytes.text_encoder_peak = std::max(bytes.text_encoder_peak, own.peak);
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
