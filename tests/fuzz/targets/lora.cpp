#include "models/spec/lora_spec.h"

#include <cmath>

#include "models/text/textual_inversion.h"
#include "tests/fuzz/targets/all.h"
#include "tests/support/scratch.h"

namespace troupe::fuzz {
namespace {

const spec::ModelSpec& model() {
  static const auto read = spec::read_model_spec(fixtures() / "tiny-flux");
  return read;
}

/// A pair of rank 2 on a 24 × 24 product.
std::string pair(const std::string& base, const std::string& down, const std::string& up,
                 const std::string& more = "") {
  return file_of("{" + more + "\"" + base + down +
                     R"(":{"dtype":"F32","shape":[2,24],"data_offsets":[0,192]},")" + base + up +
                     R"(":{"dtype":"F32","shape":[24,2],"data_offsets":[192,384]}})",
                 384);
}

}  // namespace

void run_lora(std::string_view bytes) {
  static const testing::Scratch scratch;
  const auto file = scratch.file("x.safetensors", bytes);
  try {
    const auto lora = spec::read_lora_spec(file, model());
    require(!lora.layers.empty(), "a LoRA has a layer");
    for (const auto& layer : lora.layers) {
      std::int64_t rows = 0;
      for (const auto& part : layer.parts)
        rows += part.rows;
      for (const auto& [role, name] : layer.tensors)
        require(lora.weights.contains(name), "a layer is made of the file's tensors");
      for (const auto& part : layer.parts)
        require(part.from >= 0 && part.from + part.rows <= rows, "a part is of the product");
      if (layer.kind != spec::LoraKind::low_rank) continue;
      require(lora.weights.at(layer.tensor(spec::LoraRole::up)).shape.front() == rows,
              "the up half has the product's rows");
    }
  } catch (const std::runtime_error& error) {
    require(std::string_view(error.what()).find('\n') == std::string_view::npos,
            "a refusal is one line");
  }
}

std::vector<std::string> seeds_lora() {
  return {
      pair("transformer.transformer_blocks.0.attn.to_q", ".lora_A.weight", ".lora_B.weight"),
      pair("unet.transformer_blocks.0.attn.processor.to_out", "_lora.down.weight",
           "_lora.up.weight"),
      pair("lora_unet_double_blocks_0_img_attn_proj", ".lora_down.weight", ".lora_up.weight"),
      pair("lora_te3_encoder_block_0_layer_0_SelfAttention_q", ".lora_down.weight",
           ".lora_up.weight"),
      pair("transformer.transformer_blocks.0.attn.to_q", ".lora_A.weight", ".lora_B.weight",
           R"("__metadata__":{"lora_adapter_metadata":"{\"transformer.lora_alpha\":2,)"
           R"(\"transformer.alpha_pattern\":{\"to_q\":3}}"},)"),
      pair("diffusion_model.double_blocks.0.img_attn.proj", ".lora_A.default.weight",
           ".lora_B.default.weight"),
      file_of(R"({"lycoris_transformer_blocks_0_attn_to_q.lokr_w1":{"dtype":"F32","shape":[4,3],)"
              R"("data_offsets":[0,48]},"lycoris_transformer_blocks_0_attn_to_q.lokr_w2":)"
              R"({"dtype":"F32","shape":[6,8],"data_offsets":[48,240]}})",
              240)};
}

void run_embedding(std::string_view bytes) {
  static const auto sdxl = spec::read_model_spec(fixtures() / "tiny-sdxl");
  static const testing::Scratch scratch;
  const auto file = scratch.file("x.safetensors", bytes);
  try {
    const auto read = models::read_textual_inversion({file, ""}, sdxl);
    require(!read.tokens(0).empty(), "there is a word for the first encoder");
    for (const auto& rows : read.of_encoder)
      for (const float value : rows.values)
        require(std::isfinite(value), "values are finite");
  } catch (const std::runtime_error& error) {
    require(std::string_view(error.what()).find('\n') == std::string_view::npos,
            "a refusal is one line");
  }
}

std::vector<std::string> seeds_embedding() {
  return {file_of(R"({"<cat>":{"dtype":"F32","shape":[2,24],"data_offsets":[0,192]}})", 192),
          file_of(R"({"emb_params":{"dtype":"F16","shape":[24],"data_offsets":[0,48]}})", 48),
          file_of(R"({"clip_l":{"dtype":"BF16","shape":[1,24],"data_offsets":[0,48]},)"
                  R"("clip_g":{"dtype":"F32","shape":[1,40],"data_offsets":[48,208]}})",
                  208)};
}

}  // namespace troupe::fuzz
