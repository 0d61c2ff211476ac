#include "models/spec/lora_names.h"

#include <string_view>
#include <utility>

#include "base/format.h"

namespace troupe::spec {
namespace {

using Products = std::vector<std::pair<std::string, std::int64_t>>;

class Aliases {
 public:
  /// The products one below the other.
  void add(std::string name, const Products& products) {
    LoraAlias alias{std::move(name), {}};
    std::int64_t from = 0;
    for (const auto& [product, rows] : products) {
      alias.parts.push_back({product + ".weight", from, 0, rows});
      from += rows;
    }
    aliases_.push_back(std::move(alias));
  }
  /// Adds a product whose halves have changed places.
  void add_swapped(std::string name, const std::string& product, std::int64_t half) {
    const std::string tensor = product + ".weight";
    aliases_.push_back({std::move(name), {{tensor, half, 0, half}, {tensor, 0, half, half}}});
  }
  std::vector<LoraAlias> take() { return std::move(aliases_); }

 private:
  std::vector<LoraAlias> aliases_;
};

Products three(const std::string& prefix, const char* const names[3], std::int64_t width) {
  return {{prefix + names[0], width}, {prefix + names[1], width}, {prefix + names[2], width}};
}

constexpr const char* kPicture[3] = {"to_q", "to_k", "to_v"};
constexpr const char* kText[3] = {"add_q_proj", "add_k_proj", "add_v_proj"};

std::vector<LoraAlias> names_of(const FluxSpec& spec) {
  const std::int64_t width = spec.inner_dim();
  Aliases aliases;
  aliases.add("img_in", {{"x_embedder", width}});
  aliases.add("txt_in", {{"context_embedder", width}});
  for (const auto& [theirs, ours] :
       {std::pair{"time_in", "timestep_embedder"}, std::pair{"vector_in", "text_embedder"},
        std::pair{"guidance_in", "guidance_embedder"}}) {
    const std::string prefix = std::string("time_text_embed.") + ours;
    aliases.add(std::string(theirs) + ".in_layer", {{prefix + ".linear_1", width}});
    aliases.add(std::string(theirs) + ".out_layer", {{prefix + ".linear_2", width}});
  }
  for (std::int64_t block = 0; block < spec.num_layers; ++block) {
    const std::string theirs = fmt::format("double_blocks.{}.", block);
    const std::string ours = fmt::format("transformer_blocks.{}.", block);
    aliases.add(theirs + "img_attn.qkv", three(ours + "attn.", kPicture, width));
    aliases.add(theirs + "txt_attn.qkv", three(ours + "attn.", kText, width));
    aliases.add(theirs + "img_attn.proj", {{ours + "attn.to_out.0", width}});
    aliases.add(theirs + "txt_attn.proj", {{ours + "attn.to_add_out", width}});
    for (const auto& [stream, forward] :
         {std::pair{"img_mlp", "ff"}, std::pair{"txt_mlp", "ff_context"}}) {
      aliases.add(theirs + stream + ".0", {{ours + forward + ".net.0.proj", 4 * width}});
      aliases.add(theirs + stream + ".2", {{ours + forward + ".net.2", width}});
    }
    aliases.add(theirs + "img_mod.lin", {{ours + "norm1.linear", 6 * width}});
    aliases.add(theirs + "txt_mod.lin", {{ours + "norm1_context.linear", 6 * width}});
  }
  for (std::int64_t block = 0; block < spec.num_single_layers; ++block) {
    const std::string theirs = fmt::format("single_blocks.{}.", block);
    const std::string ours = fmt::format("single_transformer_blocks.{}.", block);
    auto in = three(ours + "attn.", kPicture, width);
    in.emplace_back(ours + "proj_mlp", 4 * width);
    aliases.add(theirs + "linear1", in);
    aliases.add(theirs + "linear2", {{ours + "proj_out", width}});
    aliases.add(theirs + "modulation.lin", {{ours + "norm.linear", 3 * width}});
  }
  aliases.add("final_layer.linear", {{"proj_out", spec.in_channels}});
  aliases.add_swapped("final_layer.adaLN_modulation.1", "norm_out.linear", width);
  return aliases.take();
}

std::vector<LoraAlias> names_of(const Sd3Spec& spec) {
  const std::int64_t width = spec.inner_dim();
  Aliases aliases;
  aliases.add("x_embedder.proj", {{"pos_embed.proj", width}});
  for (const auto& [theirs, ours] :
       {std::pair{"t_embedder", "timestep_embedder"}, std::pair{"y_embedder", "text_embedder"}}) {
    const std::string prefix = std::string("time_text_embed.") + ours;
    aliases.add(std::string(theirs) + ".mlp.0", {{prefix + ".linear_1", width}});
    aliases.add(std::string(theirs) + ".mlp.2", {{prefix + ".linear_2", width}});
  }
  for (std::int64_t block = 0; block < spec.num_layers; ++block) {
    const std::string x = fmt::format("joint_blocks.{}.x_block.", block);
    const std::string context = fmt::format("joint_blocks.{}.context_block.", block);
    const std::string ours = fmt::format("transformer_blocks.{}.", block);
    aliases.add(x + "attn.qkv", three(ours + "attn.", kPicture, width));
    aliases.add(x + "attn.proj", {{ours + "attn.to_out.0", width}});
    aliases.add(context + "attn.qkv", three(ours + "attn.", kText, width));
    const bool dual = spec.is_dual(block);
    if (dual) {
      aliases.add(x + "attn2.qkv", three(ours + "attn2.", kPicture, width));
      aliases.add(x + "attn2.proj", {{ours + "attn2.to_out.0", width}});
    }
    aliases.add(x + "adaLN_modulation.1", {{ours + "norm1.linear", (dual ? 9 : 6) * width}});
    aliases.add(x + "mlp.fc1", {{ours + "ff.net.0.proj", 4 * width}});
    aliases.add(x + "mlp.fc2", {{ours + "ff.net.2", width}});
    if (spec.is_last(block)) {
      aliases.add_swapped(context + "adaLN_modulation.1", ours + "norm1_context.linear", width);
      continue;
    }
    aliases.add(context + "adaLN_modulation.1", {{ours + "norm1_context.linear", 6 * width}});
    aliases.add(context + "attn.proj", {{ours + "attn.to_add_out", width}});
    aliases.add(context + "mlp.fc1", {{ours + "ff_context.net.0.proj", 4 * width}});
    aliases.add(context + "mlp.fc2", {{ours + "ff_context.net.2", width}});
  }
  aliases.add("final_layer.linear",
              {{"proj_out", spec.patch_size * spec.patch_size * spec.in_channels}});
  aliases.add_swapped("final_layer.adaLN_modulation.1", "norm_out.linear", width);
  return aliases.take();
}

/// Beginnings of names in diffusers and in the files of Stable Diffusion's authors, for each part
/// of the U-Net.
using Prefixes = std::vector<std::pair<std::string, std::string>>;

Prefixes prefixes_of(const UNetSpec& spec) {
  Prefixes all = {{"conv_in", "input_blocks.0.0"},
                  {"conv_out", "out.2"},
                  {"time_embedding.linear_1", "time_embed.0"},
                  {"time_embedding.linear_2", "time_embed.2"},
                  {"add_embedding.linear_1", "label_emb.0.0"},
                  {"add_embedding.linear_2", "label_emb.0.2"},
                  {"mid_block.resnets.0", "middle_block.0"},
                  {"mid_block.attentions.0", "middle_block.1"},
                  {"mid_block.resnets.1", "middle_block.2"}};
  const auto levels = static_cast<std::int64_t>(spec.levels.size());
  std::int64_t in = 1, out = 0;
  for (std::int64_t block = 0; block < levels; ++block) {
    const auto& down = spec.levels[block];
    const std::string ours = fmt::format("down_blocks.{}.", block);
    for (std::int64_t layer = 0; layer < down.layers; ++layer, ++in) {
      const std::string theirs = fmt::format("input_blocks.{}.", in);
      all.emplace_back(fmt::format("{}resnets.{}", ours, layer), theirs + "0");
      all.emplace_back(fmt::format("{}attentions.{}", ours, layer), theirs + "1");
    }
    if (block + 1 < levels)
      all.emplace_back(ours + "downsamplers.0.conv", fmt::format("input_blocks.{}.0.op", in++));
    const auto& up = spec.levels[levels - 1 - block];
    const std::string upper = fmt::format("up_blocks.{}.", block);
    for (std::int64_t layer = 0; layer <= up.layers; ++layer, ++out) {
      const std::string theirs = fmt::format("output_blocks.{}.", out);
      all.emplace_back(fmt::format("{}resnets.{}", upper, layer), theirs + "0");
      all.emplace_back(fmt::format("{}attentions.{}", upper, layer), theirs + "1");
    }
    all.emplace_back(
        upper + "upsamplers.0.conv",
        fmt::format("output_blocks.{}{}.conv", out - 1, up.up_transformers > 0 ? ".2" : ".1"));
  }
  return all;
}

/// Returns the authors' name of a part within a residual block.
std::string in_resnet(const std::string& part) {
  for (const auto& [ours, theirs] :
       {std::pair{".conv1", ".in_layers.2"}, std::pair{".time_emb_proj", ".emb_layers.1"},
        std::pair{".conv2", ".out_layers.3"}, std::pair{".conv_shortcut", ".skip_connection"}}) {
    if (part == ours) return theirs;
  }
  return part;
}

std::vector<LoraAlias> names_of(const UNetSpec& spec) {
  const Prefixes prefixes = prefixes_of(spec);
  std::vector<LoraAlias> aliases;
  for (const ExpectedTensor& tensor : expected_tensors(spec)) {
    constexpr std::string_view kWeight = ".weight";
    if (tensor.shape.size() < 2 || !tensor.name.ends_with(kWeight)) continue;
    const std::string name = tensor.name.substr(0, tensor.name.size() - kWeight.size());
    for (const auto& [ours, theirs] : prefixes) {
      if (name != ours && !name.starts_with(ours + ".")) continue;
      const std::string rest = name.substr(ours.size());
      const bool resnet = ours.find("resnets") != std::string::npos;
      aliases.push_back(
          {theirs + (resnet ? in_resnet(rest) : rest), {{tensor.name, 0, 0, tensor.shape[0]}}});
    }
  }
  return aliases;
}

}  // namespace

std::vector<LoraAlias> original_names(const TransformerSpec& spec) {
  if (const auto* unet = spec.unet()) return names_of(*unet);
  if (const auto* flux = std::get_if<FluxSpec>(&spec.family)) return names_of(*flux);
  if (const auto* sd3 = std::get_if<Sd3Spec>(&spec.family)) return names_of(*sd3);
  return {};
}

}  // namespace troupe::spec
