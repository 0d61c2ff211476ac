#include "models/spec/clip_spec.h"

#include "base/format.h"
#include "models/spec/encoder_sizes.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace troupe::spec {
namespace {

constexpr std::string_view kRoot = "text_model.";

void accept_unused_clip_keys(const ConfigReader& config) {
  config.harmless({"architectures", "model_type", "torch_dtype", "dtype", "transformers_version",
                   "attention_dropout", "dropout", "initializer_factor", "initializer_range",
                   "bos_token_id", "pad_token_id", "name_or_path", "projection_dim",
                   "gradient_checkpointing", "output_attentions", "output_hidden_states",
                   "return_dict", "use_bfloat16", "torchscript"});
}

ExpectedTensor named(const std::string& name, std::vector<std::int64_t> shape) {
  return {std::string(kRoot) + name, std::move(shape), {name}};
}

}  // namespace

ClipSpec read_clip_spec(const ConfigReader& config, bool with_projection) {
  ClipSpec spec;
  config.only("model_type", "clip_text_model");
  read_encoder_sizes(config, spec);
  spec.quick_gelu =
      config.choice_or("hidden_act", "quick_gelu", {"quick_gelu", "gelu"}) == "quick_gelu";
  spec.eos_token_id =
      config.integer_or("eos_token_id", spec.eos_token_id, 0, kMaxEncoderVocabulary);
  if (with_projection)
    spec.projection_dim = config.integer_or("projection_dim", 512, 1, kMaxEncoderWidth);
  accept_unused_clip_keys(config);
  config.finish();
  check_encoder_sizes(config, spec);
  return spec;
}

std::string clip_layer_prefix(std::int64_t block) {
  return fmt::format("encoder.layers.{}.", block);
}

bool is_ignorable_clip_tensor(std::string_view name) {
  return name.ends_with("embeddings.position_ids") || name == "logit_scale" ||
         name.starts_with("vision_model.") || name == "visual_projection.weight" ||
         name == "text_projection.weight";
}

std::vector<ExpectedTensor> expected_tensors(const ClipSpec& spec) {
  const std::int64_t width = spec.hidden_size;
  std::vector<ExpectedTensor> list;
  const auto affine = [&](const std::string& name) {
    list.push_back(named(name + ".weight", {width}));
    list.push_back(named(name + ".bias", {width}));
  };
  const auto linear = [&](const std::string& name, std::int64_t in, std::int64_t out) {
    list.push_back(named(name + ".weight", {out, in}));
    list.push_back(named(name + ".bias", {out}));
  };
  list.push_back(named("embeddings.token_embedding.weight", {spec.vocab_size, width}));
  list.push_back(
      named("embeddings.position_embedding.weight", {spec.max_position_embeddings, width}));
  for (std::int64_t block = 0; block < spec.num_hidden_layers; ++block) {
    const std::string prefix = clip_layer_prefix(block);
    affine(prefix + "layer_norm1");
    affine(prefix + "layer_norm2");
    for (const char* name : {"q_proj", "k_proj", "v_proj", "out_proj"})
      linear(prefix + "self_attn." + name, width, width);
    linear(prefix + "mlp.fc1", width, spec.intermediate_size);
    linear(prefix + "mlp.fc2", spec.intermediate_size, width);
  }
  affine("final_layer_norm");
  if (spec.projection_dim > 0) {
    list.push_back({"text_projection.weight", {spec.projection_dim, width}});
  }
  return list;
}

std::uint64_t clip_bytes(const ClipSpec& spec, const WeightIndex& weights) {
  std::uint64_t bytes = 0;
  for (const ExpectedTensor& tensor : expected_tensors(spec))
    bytes += entry_of(weights, tensor).bytes();
  return bytes;
}

std::uint64_t clip_peak_bytes(const ClipSpec& spec, const WeightIndex& weights) {
  const auto tensors = expected_tensors(spec);
  std::uint64_t peak =
      entry_of(weights, tensors[0]).bytes() + entry_of(weights, tensors[1]).bytes();
  for (std::int64_t block = 0; block < spec.num_hidden_layers; ++block) {
    std::uint64_t bytes = 0;
    for (const ExpectedTensor& tensor : tensors) {
      if (tensor.name.starts_with(std::string(kRoot) + clip_layer_prefix(block))) {
        bytes += entry_of(weights, tensor).bytes();
      }
    }
    peak = std::max(peak, bytes);
  }
  return peak;
}

}  // namespace troupe::spec
