#include "models/spec/original_names.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <stdexcept>
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
  const auto add_mlp = [&](const std::string& theirs, const std::string& ours, std::int64_t rows) {
    aliases.add(theirs + ".in_layer", {{ours + ".linear_1", rows}});
    aliases.add(theirs + ".out_layer", {{ours + ".linear_2", rows}});
  };
  if (spec.approximator) {
    const std::string prefix = "distilled_guidance_layer.";
    const std::int64_t hidden = spec.approximator->hidden_dim;
    aliases.add(prefix + "in_proj", {{prefix + "in_proj", hidden}});
    aliases.add(prefix + "out_proj", {{prefix + "out_proj", width}});
    for (std::int64_t layer = 0; layer < spec.approximator->layers; ++layer) {
      const std::string name = fmt::format("{}layers.{}", prefix, layer);
      add_mlp(name, name, hidden);
    }
  } else {
    add_mlp("time_in", "time_text_embed.timestep_embedder", width);
    add_mlp("vector_in", "time_text_embed.text_embedder", width);
    add_mlp("guidance_in", "time_text_embed.guidance_embedder", width);
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
    if (spec.approximator) continue;
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
    if (!spec.approximator)
      aliases.add(theirs + "modulation.lin", {{ours + "norm.linear", 3 * width}});
  }
  aliases.add("final_layer.linear", {{"proj_out", spec.out_channels}});
  if (!spec.approximator)
    aliases.add_swapped("final_layer.adaLN_modulation.1", "norm_out.linear", width);
  return aliases.take();
}

/// Adds the names that XLabs' LoRAs have for FLUX.1's products of attention.
void add_names_of_xlabs(const FluxSpec& spec, std::vector<LoraAlias>& aliases) {
  const std::int64_t width = spec.inner_dim();
  Aliases own;
  for (std::int64_t block = 0; block < spec.num_layers; ++block) {
    const std::string theirs = fmt::format("double_blocks.{}.processor.", block);
    const std::string ours = fmt::format("transformer_blocks.{}.attn.", block);
    own.add(theirs + "qkv_lora1", three(ours, kPicture, width));
    own.add(theirs + "qkv_lora2", three(ours, kText, width));
    own.add(theirs + "proj_lora1", {{ours + "to_out.0", width}});
    own.add(theirs + "proj_lora2", {{ours + "to_add_out", width}});
  }
  for (std::int64_t block = 0; block < spec.num_single_layers; ++block) {
    const std::string theirs = fmt::format("single_blocks.{}.processor.", block);
    const std::string ours = fmt::format("single_transformer_blocks.{}.", block);
    own.add(theirs + "qkv_lora", three(ours + "attn.", kPicture, width));
    own.add(theirs + "proj_lora", {{ours + "proj_out", width}});
  }
  std::ranges::move(own.take(), std::back_inserter(aliases));
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
       {std::pair{".norm1", ".in_layers.0"}, std::pair{".conv1", ".in_layers.2"},
        std::pair{".time_emb_proj", ".emb_layers.1"}, std::pair{".norm2", ".out_layers.0"},
        std::pair{".conv2", ".out_layers.3"}, std::pair{".conv_shortcut", ".skip_connection"}}) {
    if (part == ours) return theirs;
  }
  return part;
}

/// Returns the authors' name of a layer of the U-Net; "" for one that is none of theirs.
std::string original_layer(const Prefixes& prefixes, const std::string& name) {
  for (const auto& [ours, theirs] : prefixes) {
    if (name != ours && !name.starts_with(ours + ".")) continue;
    const std::string rest = name.substr(ours.size());
    const bool resnet = ours.find("resnets") != std::string::npos;
    return theirs + (resnet ? in_resnet(rest) : rest);
  }
  return "";
}

using Words = std::vector<std::pair<std::string_view, std::string_view>>;

/// Returns the name with the first of each pair, which diffusers writes, replaced by the second.
std::string respelled(std::string name, const Words& words) {
  for (const auto& [ours, theirs] : words) {
    if (const auto at = name.find(ours); at != std::string::npos)
      name.replace(at, ours.size(), theirs);
  }
  return name;
}

/// Splits "a.b.weight" into "a.b" and ".weight".
std::pair<std::string, std::string> layer_and_part(const std::string& name) {
  const auto dot = name.rfind('.');
  return dot == std::string::npos ? std::pair{name, std::string()}
                                  : std::pair{name.substr(0, dot), name.substr(dot)};
}

/// Returns weights and biases of the products that have names of their own.
OriginalTensors tensors_of_products(const std::vector<LoraAlias>& products) {
  OriginalTensors tensors;
  for (const LoraAlias& product : products) {
    std::int64_t rows = 0;
    for (const LoraPart& part : product.parts)
      rows += part.rows;
    for (const LoraPart& part : product.parts) {
      const auto layer = layer_and_part(part.tensor).first;
      const bool swapped = product.parts.size() == 2 && product.parts[1].tensor == part.tensor;
      for (const char* which : {".weight", ".bias"}) {
        tensors[layer + which] =
            swapped ? OriginalTensor{.name = product.name + which,
                                     .stored_as = StoredAs::halves_swapped}
                    : OriginalTensor{.name = product.name + which, .row = part.from, .rows = rows};
      }
      if (swapped) break;
    }
  }
  return tensors;
}

OriginalTensors originals_of(const FluxSpec& spec) {
  OriginalTensors tensors = tensors_of_products(names_of(spec));
  for (std::int64_t block = 0; block < spec.num_layers; ++block) {
    const std::string ours = fmt::format("transformer_blocks.{}.attn.norm_", block);
    for (const auto& [stream, added] :
         {std::pair{"img_attn", ""}, std::pair{"txt_attn", "added_"}}) {
      const std::string theirs = fmt::format("double_blocks.{}.{}.norm.", block, stream);
      tensors[ours + added + "q.weight"] = {theirs + "query_norm.scale"};
      tensors[ours + added + "k.weight"] = {theirs + "key_norm.scale"};
    }
  }
  for (std::int64_t block = 0; block < spec.num_single_layers; ++block) {
    const std::string ours = fmt::format("single_transformer_blocks.{}.attn.norm_", block);
    const std::string theirs = fmt::format("single_blocks.{}.norm.", block);
    tensors[ours + "q.weight"] = {theirs + "query_norm.scale"};
    tensors[ours + "k.weight"] = {theirs + "key_norm.scale"};
  }
  for (std::int64_t layer = 0; spec.approximator && layer < spec.approximator->layers; ++layer) {
    const std::string norm = fmt::format("distilled_guidance_layer.norms.{}.", layer);
    tensors[norm + "weight"] = {norm + "scale"};
  }
  return tensors;
}

/// The authors' files are not read.
OriginalTensors originals_of(const OvisImageSpec&) {
  return {};
}

OriginalTensors originals_of(const LongCatImageSpec&) {
  return {};
}

OriginalTensors originals_of(const Sd3Spec& spec) {
  OriginalTensors tensors = tensors_of_products(names_of(spec));
  tensors["pos_embed.pos_embed"] = {"pos_embed"};
  for (const char* part : {".weight", ".bias"})
    tensors[std::string("context_embedder") + part] = {std::string("context_embedder") + part};
  for (std::int64_t block = 0; block < spec.num_layers; ++block) {
    const std::string ours = fmt::format("transformer_blocks.{}.", block);
    const std::string theirs = fmt::format("joint_blocks.{}.", block);
    for (const char* which : {"q", "k"}) {
      const std::string norm = fmt::format("ln_{}.weight", which);
      tensors[fmt::format("{}attn.norm_{}.weight", ours, which)] = {theirs + "x_block.attn." +
                                                                    norm};
      tensors[fmt::format("{}attn2.norm_{}.weight", ours, which)] = {theirs + "x_block.attn2." +
                                                                     norm};
      tensors[fmt::format("{}attn.norm_added_{}.weight", ours, which)] = {
          theirs + "context_block.attn." + norm};
    }
  }
  return tensors;
}

OriginalTensors originals_of(const WanSpec& spec) {
  const Words words = {{"condition_embedder.time_embedder.linear_1", "time_embedding.0"},
                       {"condition_embedder.time_embedder.linear_2", "time_embedding.2"},
                       {"condition_embedder.text_embedder.linear_1", "text_embedding.0"},
                       {"condition_embedder.text_embedder.linear_2", "text_embedding.2"},
                       {"condition_embedder.time_proj", "time_projection.1"},
                       {"condition_embedder.image_embedder.norm1", "img_emb.proj.0"},
                       {"condition_embedder.image_embedder.ff.net.0.proj", "img_emb.proj.1"},
                       {"condition_embedder.image_embedder.ff.net.2", "img_emb.proj.3"},
                       {"condition_embedder.image_embedder.norm2", "img_emb.proj.4"},
                       {"condition_embedder.image_embedder.pos_embed", "img_emb.emb_pos"},
                       {".add_k_proj.", ".k_img."},
                       {".add_v_proj.", ".v_img."},
                       {".norm_added_k.", ".norm_k_img."},
                       {"attn1.", "self_attn."},
                       {"attn2.", "cross_attn."},
                       {".to_out.0.", ".o."},
                       {".to_q.", ".q."},
                       {".to_k.", ".k."},
                       {".to_v.", ".v."},
                       {"ffn.net.0.proj", "ffn.0"},
                       {"ffn.net.2", "ffn.2"},
                       {".norm2.", ".norm3."},
                       {".scale_shift_table", ".modulation"},
                       {"proj_out.", "head.head."}};
  OriginalTensors tensors;
  for (const PlannedTensor& planned : planned_tensors(spec)) {
    const std::string& name = planned.tensor.name;
    tensors[name] = {name == "scale_shift_table" ? "head.modulation" : respelled(name, words)};
  }
  return tensors;
}

OriginalTensors originals_of(const ZImageSpec& spec) {
  const Words words = {
      {"all_final_layer.2-1.", "final_layer."},     {"all_x_embedder.2-1.", "x_embedder."},
      {".attention.to_out.0.", ".attention.out."},  {".attention.norm_q.", ".attention.q_norm."},
      {".attention.norm_k.", ".attention.k_norm."}, {".attention.to_q.", ".attention.qkv."},
      {".attention.to_k.", ".attention.qkv."},      {".attention.to_v.", ".attention.qkv."}};
  OriginalTensors tensors;
  for (const PlannedTensor& planned : planned_tensors(spec)) {
    const std::string& name = planned.tensor.name;
    OriginalTensor theirs{respelled(name, words)};
    if (theirs.name.find(".qkv.") != std::string::npos) theirs.rows = 3 * spec.dim;
    if (name.find(".to_k.") != std::string::npos) theirs.row = spec.dim;
    if (name.find(".to_v.") != std::string::npos) theirs.row = 2 * spec.dim;
    tensors[name] = std::move(theirs);
  }
  return tensors;
}

OriginalTensors originals_of(const Flux2Spec& spec) {
  const std::int64_t width = spec.inner_dim();
  const Words around = {{"context_embedder", "txt_in"},
                        {"x_embedder", "img_in"},
                        {"time_guidance_embed.timestep_embedder.linear_1", "time_in.in_layer"},
                        {"time_guidance_embed.timestep_embedder.linear_2", "time_in.out_layer"},
                        {"_modulation.linear", "_modulation.lin"},
                        {"_modulation_img.linear", "_modulation_img.lin"},
                        {"_modulation_txt.linear", "_modulation_txt.lin"},
                        {"norm_out.linear", "final_layer.adaLN_modulation.1"},
                        {"proj_out", "final_layer.linear"}};
  const Words singles = {{"single_transformer_blocks.", "single_blocks."},
                         {"attn.to_qkv_mlp_proj", "linear1"},
                         {"attn.to_out", "linear2"},
                         {"attn.norm_q.weight", "norm.query_norm.scale"},
                         {"attn.norm_k.weight", "norm.key_norm.scale"}};
  const Words doubles = {{"transformer_blocks.", "double_blocks."},
                         {"attn.norm_added_q.weight", "txt_attn.norm.query_norm.scale"},
                         {"attn.norm_added_k.weight", "txt_attn.norm.key_norm.scale"},
                         {".attn.norm_q.weight", ".img_attn.norm.query_norm.scale"},
                         {".attn.norm_k.weight", ".img_attn.norm.key_norm.scale"},
                         {"attn.to_out.0", "img_attn.proj"},
                         {"attn.to_add_out", "txt_attn.proj"},
                         {"attn.to_q", "img_attn.qkv"},
                         {"attn.to_k", "img_attn.qkv"},
                         {"attn.to_v", "img_attn.qkv"},
                         {"attn.add_q_proj", "txt_attn.qkv"},
                         {"attn.add_k_proj", "txt_attn.qkv"},
                         {"attn.add_v_proj", "txt_attn.qkv"},
                         {"ff_context.linear_in", "txt_mlp.0"},
                         {"ff_context.linear_out", "txt_mlp.2"},
                         {"ff.linear_in", "img_mlp.0"},
                         {"ff.linear_out", "img_mlp.2"}};
  OriginalTensors tensors;
  for (const PlannedTensor& planned : planned_tensors(spec)) {
    const std::string& name = planned.tensor.name;
    OriginalTensor theirs{respelled(name, name.starts_with("single_t")        ? singles
                                          : name.starts_with("transformer_b") ? doubles
                                                                              : around)};
    if (theirs.name.ends_with(".qkv.weight")) theirs.rows = 3 * width;
    for (const auto& [part, row] :
         {std::pair{".to_k.", width}, std::pair{".add_k_", width}, std::pair{".to_v.", 2 * width},
          std::pair{".add_v_", 2 * width}})
      if (name.find(part) != std::string::npos) theirs.row = row;
    if (name.starts_with("norm_out.")) theirs.stored_as = StoredAs::halves_swapped;
    tensors[name] = std::move(theirs);
  }
  return tensors;
}

OriginalTensors originals_of(const Krea2Spec& spec) {
  const Words words = {{"final_layer.scale_shift_table", "last.modulation.lin"},
                       {"final_layer.norm.weight", "last.norm.scale"},
                       {"final_layer.", "last."},
                       {"text_fusion.", "txtfusion."},
                       {"transformer_blocks.", "blocks."},
                       {"img_in.", "first."},
                       {"time_embed.linear_1.", "tmlp.0."},
                       {"time_embed.linear_2.", "tmlp.2."},
                       {"time_mod_proj.", "tproj.1."},
                       {"txt_in.norm.weight", "txtmlp.0.scale"},
                       {"txt_in.linear_1.", "txtmlp.1."},
                       {"txt_in.linear_2.", "txtmlp.3."},
                       {".attn.norm_q.weight", ".attn.qknorm.qnorm.scale"},
                       {".attn.norm_k.weight", ".attn.qknorm.knorm.scale"},
                       {".attn.to_q.", ".attn.wq."},
                       {".attn.to_k.", ".attn.wk."},
                       {".attn.to_v.", ".attn.wv."},
                       {".attn.to_out.0.", ".attn.wo."},
                       {".attn.to_gate.", ".attn.gate."},
                       {".ff.", ".mlp."},
                       {".norm1.weight", ".prenorm.scale"},
                       {".norm2.weight", ".postnorm.scale"},
                       {".scale_shift_table", ".mod.lin"}};
  OriginalTensors tensors;
  for (const PlannedTensor& planned : planned_tensors(spec))
    tensors[planned.tensor.name] = {respelled(planned.tensor.name, words)};
  return tensors;
}

OriginalTensors originals_of(const UNetSpec& spec) {
  const Prefixes prefixes = prefixes_of(spec);
  OriginalTensors tensors;
  for (const ExpectedTensor& tensor : expected_tensors(spec)) {
    const auto [layer, part] = layer_and_part(tensor.name);
    const auto theirs = layer == "conv_norm_out" ? "out.0" : original_layer(prefixes, layer);
    if (!theirs.empty()) tensors[tensor.name] = {theirs + part};
  }
  return tensors;
}

/// Returns the products and norms among the tensors, each with those of diffusers' that it is made
/// of.
std::vector<LoraAlias> products_of(const OriginalTensors& originals,
                                   const std::vector<ExpectedTensor>& expected) {
  std::map<std::string, LoraAlias> products;
  for (const ExpectedTensor& tensor : expected) {
    const auto original = originals.find(tensor.name);
    if (original == originals.end() || tensor.shape.empty()) continue;
    const auto [layer, part] = layer_and_part(original->second.name);
    if (part != ".weight") continue;
    LoraAlias& product = products[layer];
    product.name = layer;
    if (original->second.stored_as == StoredAs::halves_swapped) {
      const std::int64_t half = tensor.shape[0] / 2;
      product.parts = {{tensor.name, half, 0, half}, {tensor.name, 0, half, half}};
      continue;
    }
    product.parts.push_back({tensor.name, original->second.row, 0, tensor.shape[0]});
  }
  std::vector<LoraAlias> aliases;
  for (auto& [name, product] : products)
    aliases.push_back(std::move(product));
  return aliases;
}

/// Returns the scale that lies beside a weight, in one of two spellings; null: there is none.
const TensorEntry* scale_beside(const WeightIndex& file, const std::string& weight) {
  const auto [layer, part] = layer_and_part(weight);
  if (part != ".weight") return nullptr;
  const TensorEntry* scale = file.find(layer + ".scale_weight");
  return scale != nullptr ? scale : file.find(weight + "_scale");
}

/// Returns whether the tensor belongs to the arithmetic in 8 bits of other programs, which is not
/// done here.
bool concerns_scales(std::string_view name) {
  for (const std::string_view end :
       {".scale_weight", ".weight_scale", ".scale_input", ".input_scale", ".comfy_quant"}) {
    if (name.ends_with(end)) return true;
  }
  return name.ends_with("scaled_fp8");
}

/// Returns the shape without sides of 1 behind the first number.
std::vector<std::int64_t> without_ones(std::vector<std::int64_t> shape) {
  if (!shape.empty())
    shape.erase(std::remove(std::next(shape.begin()), shape.end(), 1), shape.end());
  return shape;
}

[[noreturn]] void refuse_tensor(const TensorEntry& entry, const std::string& why) {
  throw std::runtime_error(
      fmt::format("[check_weights] {}: tensor \"{}\" {}", entry.file.string(), entry.name, why));
}

/// Gives the entry the shape that is called for, and cuts it to its own rows, if it has them. An
/// entry of another shape stays as it is, for the check of shapes to refuse.
void fit_shape(TensorEntry& entry, const std::vector<std::int64_t>& shape,
               const OriginalTensor& original, const std::string& theirs) {
  if (entry.shape.empty() || shape.empty()) return;
  if (entry.stored_as == StoredAs::transposed) {
    if (entry.shape == std::vector(shape.rbegin(), shape.rend())) entry.shape = shape;
    return;
  }
  // A table of several rows may be stored as one.
  const bool flat = entry.shape.size() == 1 && original.rows == 0 &&
                    entry.stored_as == StoredAs::as_is && shape.size() == 2 &&
                    entry.shape[0] == shape[0] * shape[1];
  if (flat) {
    entry.shape = shape;
    return;
  }
  auto all = without_ones(entry.shape), own = without_ones(shape);
  const std::int64_t rows = std::exchange(all[0], own[0]);
  if (original.rows == 0) {
    if (all == own && rows == own[0]) entry.shape = shape;
    return;
  }
  if (all != own || rows != original.rows || original.row + own[0] > rows)
    throw std::runtime_error(
        fmt::format("[check_weights] {}: tensor \"{}\" has shape {}, the config calls for {} rows",
                    entry.file.string(), theirs, shape_text(entry.shape), original.rows));
  if (entry.bytes() % static_cast<std::uint64_t>(rows) != 0)
    refuse_tensor(entry, "has rows that are no whole blocks");
  const std::uint64_t bytes = entry.bytes() / static_cast<std::uint64_t>(rows);
  entry.begin += bytes * static_cast<std::uint64_t>(original.row);
  entry.end = entry.begin + bytes * static_cast<std::uint64_t>(own[0]);
  entry.shape = shape;
}

/// A component's tensors in one way of spelling.
class Respelling {
 public:
  Respelling(const WeightIndex& file, const Spelling& spelling) : file_(file), way_(spelling) {}

  std::size_t found(const std::vector<ExpectedTensor>& expected) const {
    return static_cast<std::size_t>(std::ranges::count_if(
        expected, [this](const auto& tensor) { return find(tensor).first != nullptr; }));
  }

  WeightIndex apply(const std::vector<ExpectedTensor>& expected) const {
    std::vector<TensorEntry> tensors;
    std::set<std::string> names, used;
    for (const ExpectedTensor& tensor : expected) {
      const auto [entry, original] = find(tensor);
      if (entry == nullptr) continue;
      used.insert(entry->name);
      auto own = *entry;
      own.name = tensor.name;
      if (original.stored_as != StoredAs::as_is || original.rows > 0) {
        if (own.stored_as != StoredAs::as_is)
          refuse_tensor(own, "is stored transposed, of which no rows are taken");
        own.stored_as = original.stored_as;
      }
      take_scale(own, entry->name);
      fit_shape(own, tensor.shape, original, entry->name);
      names.insert(own.name);
      tensors.push_back(std::move(own));
    }
    for (const TensorEntry& entry : file_.tensors()) {
      if (used.contains(entry.name) || !entry.name.starts_with(way_.prefix) ||
          concerns_scales(entry.name))
        continue;
      auto left = entry;
      left.name = entry.name.substr(way_.prefix.size());
      if (names.insert(left.name).second) tensors.push_back(std::move(left));
    }
    return file_.with_tensors(std::move(tensors));
  }

 private:
  std::pair<const TensorEntry*, OriginalTensor> find(const ExpectedTensor& tensor) const {
    if (!way_.tensors.empty()) {
      const auto theirs = way_.tensors.find(tensor.name);
      if (theirs == way_.tensors.end()) return {nullptr, {}};
      return {file_.find(way_.prefix + theirs->second.name), theirs->second};
    }
    if (const auto* entry = file_.find(way_.prefix + tensor.name)) return {entry, {}};
    for (const std::string& name : tensor.other_names) {
      if (const auto* entry = file_.find(way_.prefix + name)) return {entry, {}};
    }
    return {nullptr, {}};
  }

  /// Takes the scale that lies beside weights in 8-bit floats.
  void take_scale(TensorEntry& entry, const std::string& name) const {
    const TensorEntry* scale = scale_beside(file_, name);
    if (scale == nullptr) return;
    if (!is_float8(entry.dtype))
      refuse_tensor(*scale, "is a scale of weights in " + std::string(dtype_name(entry.dtype)) +
                                "; scales are read of 8-bit floats only");
    if (scale->dtype != Dtype::float32 || scale->elements() != 1)
      refuse_tensor(*scale, fmt::format("{} of {} is no single float32, the only kind of scale "
                                        "that is read",
                                        shape_text(scale->shape), dtype_name(scale->dtype)));
    if (scale->file != entry.file)
      refuse_tensor(*scale, "lies in another shard than its weights, where it is not read");
    entry.scale_at = scale->begin;
  }

  const WeightIndex& file_;
  const Spelling& way_;
};

}  // namespace

OriginalTensors original_tensors(const TransformerSpec& spec) {
  return std::visit(
      [](const auto& family) {
        if constexpr (requires { originals_of(family); })
          return originals_of(family);
        else
          return OriginalTensors();
      },
      spec.family);
}

std::vector<LoraAlias> original_names(const TransformerSpec& spec) {
  if (const auto* flux = std::get_if<FluxSpec>(&spec.family)) {
    auto names = names_of(*flux);
    add_names_of_xlabs(*flux, names);
    return names;
  }
  if (const auto* chroma = std::get_if<ChromaSpec>(&spec.family)) return names_of(*chroma);
  if (const auto* sd3 = std::get_if<Sd3Spec>(&spec.family)) return names_of(*sd3);
  const OriginalTensors originals = original_tensors(spec);
  return originals.empty() ? std::vector<LoraAlias>()
                           : products_of(originals, expected_tensors(spec));
}

OriginalTensors original_tensors(const VaeSpec& spec) {
  const Words words = {{"mid_block.resnets.0", "mid.block_1"},
                       {"mid_block.resnets.1", "mid.block_2"},
                       {"mid_block.attentions.0.group_norm", "mid.attn_1.norm"},
                       {"mid_block.attentions.0.to_q", "mid.attn_1.q"},
                       {"mid_block.attentions.0.to_k", "mid.attn_1.k"},
                       {"mid_block.attentions.0.to_v", "mid.attn_1.v"},
                       {"mid_block.attentions.0.to_out.0", "mid.attn_1.proj_out"},
                       {".resnets.", ".block."},
                       {"conv_shortcut", "nin_shortcut"},
                       {"upsamplers.0.conv", "upsample.conv"},
                       {"downsamplers.0.conv", "downsample.conv"},
                       {"down_blocks.", "down."},
                       {"conv_norm_out", "norm_out"}};
  const auto levels = spec.block_out_channels.size();
  OriginalTensors tensors;
  for (const VaeHalf half : {VaeHalf::decoder, VaeHalf::encoder}) {
    for (const ExpectedTensor& tensor : expected_tensors(spec, half)) {
      std::string theirs = tensor.name;
      for (std::size_t block = 0; block < levels; ++block) {
        const auto ours = fmt::format("decoder.up_blocks.{}.", block);
        if (tensor.name.starts_with(ours))
          theirs =
              fmt::format("decoder.up.{}.", levels - 1 - block) + tensor.name.substr(ours.size());
      }
      // Where latents are patched, the authors have these within the halves.
      if (spec.latent_patch > 1 && tensor.name.find("quant_conv.") != std::string::npos)
        theirs = (half == VaeHalf::decoder ? "decoder." : "encoder.") + tensor.name;
      tensors[tensor.name] = {respelled(std::move(theirs), words)};
    }
  }
  return tensors;
}

OriginalTensors original_tensors(const WanVaeSpec& spec) {
  if (spec.is_residual) return {};
  const Words words = {{"mid_block.resnets.0.", "middle.0."},
                       {"mid_block.attentions.0.", "middle.1."},
                       {"mid_block.resnets.1.", "middle.2."},
                       {".norm1.", ".residual.0."},
                       {".conv1.", ".residual.2."},
                       {".norm2.", ".residual.3."},
                       {".conv2.", ".residual.6."},
                       {"conv_shortcut", "shortcut"},
                       {"decoder.conv_in", "decoder.conv1"},
                       {"decoder.norm_out", "decoder.head.0"},
                       {"decoder.conv_out", "decoder.head.2"},
                       {"post_quant_conv", "conv2"},
                       {"encoder.conv_in", "encoder.conv1"},
                       {"encoder.down_blocks.", "encoder.downsamples."},
                       {"encoder.norm_out", "encoder.head.0"},
                       {"encoder.conv_out", "encoder.head.2"},
                       {"quant_conv", "conv1"}};
  OriginalTensors tensors;
  auto both = expected_tensors(spec);
  std::ranges::move(expected_tensors(spec, VaeHalf::encoder), std::back_inserter(both));
  for (const ExpectedTensor& tensor : both) {
    std::string theirs = respelled(tensor.name, words);
    for (std::size_t block = 0; block < spec.dim_mult.size(); ++block) {
      const auto ours = fmt::format("decoder.up_blocks.{}.", block);
      if (!tensor.name.starts_with(ours)) continue;
      // A level's residual blocks and what doubles its size are counted as one list.
      const std::int64_t first = static_cast<std::int64_t>(block) * (spec.num_res_blocks + 2);
      for (std::int64_t resnet = 0; resnet <= spec.num_res_blocks; ++resnet)
        theirs = respelled(theirs, {{fmt::format("{}resnets.{}.", ours, resnet),
                                     fmt::format("decoder.upsamples.{}.", first + resnet)}});
      theirs = respelled(theirs,
                         {{ours + "upsamplers.0.",
                           fmt::format("decoder.upsamples.{}.", first + spec.num_res_blocks + 1)}});
    }
    tensors[tensor.name] = {std::move(theirs)};
  }
  return tensors;
}

OriginalTensors open_clip_tensors(const ClipSpec& spec) {
  const Words words = {{"text_model.embeddings.token_embedding.weight", "token_embedding.weight"},
                       {"text_model.embeddings.position_embedding.weight", "positional_embedding"},
                       {"text_model.final_layer_norm", "ln_final"},
                       {"text_model.encoder.layers.", "transformer.resblocks."},
                       {"layer_norm1", "ln_1"},
                       {"layer_norm2", "ln_2"},
                       {"mlp.fc1", "mlp.c_fc"},
                       {"mlp.fc2", "mlp.c_proj"},
                       {"self_attn.out_proj", "attn.out_proj"},
                       {"self_attn.q_proj.", "attn.in_proj_"},
                       {"self_attn.k_proj.", "attn.in_proj_"},
                       {"self_attn.v_proj.", "attn.in_proj_"}};
  OriginalTensors tensors;
  for (const ExpectedTensor& tensor : expected_tensors(spec)) {
    OriginalTensor theirs{respelled(tensor.name, words)};
    if (theirs.name.find("in_proj_") != std::string::npos) theirs.rows = 3 * spec.hidden_size;
    if (tensor.name.find("k_proj") != std::string::npos) theirs.row = spec.hidden_size;
    if (tensor.name.find("v_proj") != std::string::npos) theirs.row = 2 * spec.hidden_size;
    if (tensor.name == "text_projection.weight")
      theirs = {.name = "text_projection", .stored_as = StoredAs::transposed};
    tensors[tensor.name] = std::move(theirs);
  }
  return tensors;
}

WeightIndex with_diffusers_names(const WeightIndex& file,
                                 const std::vector<ExpectedTensor>& expected,
                                 const std::function<std::vector<Spelling>()>& spellings) {
  const Spelling own;
  std::size_t most = Respelling(file, own).found(expected);
  if (most == expected.size()) return Respelling(file, own).apply(expected);
  const std::vector<Spelling> others = spellings();
  const Spelling* best = &own;
  for (const Spelling& spelling : others) {
    const std::size_t found = Respelling(file, spelling).found(expected);
    if (found > most) {
      most = found;
      best = &spelling;
    }
  }
  return Respelling(file, *best).apply(expected);
}

}  // namespace troupe::spec
