#include "models/spec/pixart_spec.h"

#include <algorithm>

namespace troupe::spec {
namespace {

constexpr std::int64_t kTimeFrequencies = 256;
constexpr std::int64_t kMaxBlocks = 1024;
constexpr std::int64_t kMaxWidth = 1 << 16;

class TensorList {
 public:
  void add(const std::string& name, std::vector<std::int64_t> shape) {
    tensors_.push_back({name, std::move(shape)});
  }
  void linear(const std::string& name, std::int64_t in, std::int64_t out, bool bias = true) {
    add(name + ".weight", {out, in});
    if (bias) add(name + ".bias", {out});
  }
  std::vector<ExpectedTensor> take() { return std::move(tensors_); }

 private:
  std::vector<ExpectedTensor> tensors_;
};

}  // namespace

PixArtSpec read_pixart_spec(const ConfigReader& config) {
  PixArtSpec spec;
  const auto size = [&config](const char* key, std::int64_t fallback) {
    return config.integer_or(key, fallback, 1, kMaxWidth);
  };
  spec.num_attention_heads = size("num_attention_heads", spec.num_attention_heads);
  spec.attention_head_dim = size("attention_head_dim", spec.attention_head_dim);
  spec.in_channels = size("in_channels", spec.in_channels);
  spec.out_channels = config.has("out_channels") && !config.has_value("out_channels")
                          ? spec.in_channels
                          : size("out_channels", spec.out_channels);
  spec.num_layers = config.integer_or("num_layers", spec.num_layers, 1, kMaxBlocks);
  spec.cross_attention_dim = size("cross_attention_dim", spec.cross_attention_dim);
  spec.sample_size = size("sample_size", spec.sample_size);
  spec.patch_size = size("patch_size", spec.patch_size);
  if (!config.has_value("caption_channels")) {
    config.refuse("caption_channels", "is not supported (a number is needed)");
  }
  spec.caption_channels = config.integer("caption_channels", 1, kMaxWidth);
  const auto fallback_scale = std::max<std::int64_t>(spec.sample_size / 64, 1);
  spec.interpolation_scale =
      config.optional_number("interpolation_scale").value_or(static_cast<double>(fallback_scale));
  spec.use_additional_conditions =
      config.optional_boolean("use_additional_conditions").value_or(spec.sample_size == 128);
  spec.norm_eps = config.number_or("norm_eps", spec.norm_eps);
  spec.attention_bias = config.boolean_or("attention_bias", spec.attention_bias);

  config.only("activation_fn", "gelu-approximate");
  config.only("norm_type", "ada_norm_single");
  config.only("norm_elementwise_affine", false);
  config.only("num_embeds_ada_norm", 1000);
  config.only("upcast_attention", false);
  if (config.has_value("attention_type")) config.only("attention_type", "default");
  config.only("double_self_attention", false);
  config.only("only_cross_attention", false);
  config.only("use_linear_projection", false);
  if (config.has_value("num_vector_embeds")) config.only("num_vector_embeds", false);
  config.harmless({"dropout", "norm_num_groups", "num_vector_embeds", "attention_type"});
  config.finish();

  if (!(spec.interpolation_scale > 0 && spec.interpolation_scale < 1e6)) {
    config.refuse("interpolation_scale", "must be positive");
  }
  if (!(spec.norm_eps > 0 && spec.norm_eps < 1)) {
    config.refuse("norm_eps", "must be between 0 and 1");
  }
  if (spec.inner_dim() > kMaxWidth || spec.inner_dim() % 4 != 0) {
    config.refuse("attention_head_dim", "gives a width of " + std::to_string(spec.inner_dim()) +
                                            ", which must be a multiple of 4 up to " +
                                            std::to_string(kMaxWidth));
  }
  if (spec.use_additional_conditions && spec.inner_dim() % 3 != 0) {
    config.refuse("use_additional_conditions",
                  "needs a width that 3 divides, not " + std::to_string(spec.inner_dim()));
  }
  if (spec.cross_attention_dim != spec.inner_dim()) {
    config.refuse("cross_attention_dim",
                  "must equal heads × head size, " + std::to_string(spec.inner_dim()));
  }
  if (spec.out_channels != spec.in_channels && !spec.learned_sigma()) {
    config.refuse("out_channels",
                  "must be once or twice in_channels, " + std::to_string(spec.in_channels));
  }
  if (spec.sample_size % spec.patch_size != 0) {
    config.refuse("patch_size", "does not divide sample_size, " + std::to_string(spec.sample_size));
  }
  return spec;
}

std::string pixart_block_prefix(std::int64_t block) {
  return "transformer_blocks." + std::to_string(block) + ".";
}

bool is_ignorable_pixart_tensor(std::string_view name) {
  return name == "pos_embed.pos_embed" || name == "caption_projection.y_embedding";
}

std::vector<ExpectedTensor> expected_tensors(const PixArtSpec& spec) {
  const std::int64_t width = spec.inner_dim();
  TensorList list;
  list.add("pos_embed.proj.weight", {width, spec.in_channels, spec.patch_size, spec.patch_size});
  list.add("pos_embed.proj.bias", {width});
  list.linear("caption_projection.linear_1", spec.caption_channels, width);
  list.linear("caption_projection.linear_2", width, width);
  list.linear("adaln_single.emb.timestep_embedder.linear_1", kTimeFrequencies, width);
  list.linear("adaln_single.emb.timestep_embedder.linear_2", width, width);
  if (spec.use_additional_conditions) {
    for (const std::string name : {"resolution_embedder", "aspect_ratio_embedder"}) {
      list.linear("adaln_single.emb." + name + ".linear_1", kTimeFrequencies, spec.condition_dim());
      list.linear("adaln_single.emb." + name + ".linear_2", spec.condition_dim(),
                  spec.condition_dim());
    }
  }
  list.linear("adaln_single.linear", width, 6 * width);
  for (std::int64_t block = 0; block < spec.num_layers; ++block) {
    const std::string prefix = pixart_block_prefix(block);
    list.add(prefix + "scale_shift_table", {6, width});
    for (const std::string attention : {"attn1", "attn2"}) {
      for (const std::string projection : {".to_q", ".to_k", ".to_v"}) {
        list.linear(prefix + attention + projection, width, width, spec.attention_bias);
      }
      list.linear(prefix + attention + ".to_out.0", width, width);
    }
    list.linear(prefix + "ff.net.0.proj", width, 4 * width);
    list.linear(prefix + "ff.net.2", 4 * width, width);
  }
  list.add("scale_shift_table", {2, width});
  list.linear("proj_out", width, spec.patch_size * spec.patch_size * spec.out_channels);
  return list.take();
}

std::uint64_t kept_elements(const PixArtSpec& spec, const PixArtPart& part) {
  const auto share = [&part](std::int64_t count) {
    return count / part.shards + (part.shard < count % part.shards ? 1 : 0);
  };
  const auto linear = [](std::int64_t in, std::int64_t out) { return (in + 1) * out; };
  const std::int64_t width = spec.inner_dim();
  const std::int64_t attended = share(spec.num_attention_heads) * spec.attention_head_dim;
  const std::int64_t columns = share(4 * width);
  const std::int64_t bias = part.shard == 0 ? width : 0;  // of a product that shards sum up
  const std::int64_t attention =
      4 * attended * width + (spec.attention_bias ? 3 * attended : 0) + bias;
  const std::int64_t forward = linear(width, columns) + columns * width + bias;
  std::int64_t total = part.blocks * (6 * width + 2 * attention + forward);
  total += linear(kTimeFrequencies, width) + linear(width, width) + linear(width, 6 * width);
  if (spec.use_additional_conditions) {
    const std::int64_t narrow = spec.condition_dim();
    total += 2 * (linear(kTimeFrequencies, narrow) + linear(narrow, narrow));
  }
  const std::int64_t cell = spec.patch_size * spec.patch_size * spec.in_channels;
  if (part.embeds)
    total += linear(cell, width) + linear(spec.caption_channels, width) + linear(width, width);
  if (part.projects) total += 2 * width + linear(width, cell);
  return static_cast<std::uint64_t>(total);
}

}  // namespace troupe::spec
