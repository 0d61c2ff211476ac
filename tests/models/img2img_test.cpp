#include <ATen/ATen.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <set>

#include "models/dit/flux.h"
#include "models/dit/hunyuan.h"
#include "models/dit/pixart.h"
#include "models/dit/sd3.h"
#include "models/dit/wan.h"
#include "models/image/png.h"
#include "models/image/resize.h"
#include "models/lora/lora_weights.h"
#include "models/safetensors.h"
#include "models/spec/lora_spec.h"
#include "tests/models/fixtures.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

using troupe::models::testing::kFixtures;

const spec::ModelSpec& flux() {
  static const auto model = spec::read_model_spec(kFixtures / "tiny-flux");
  return model;
}

/// The whole model of any family.
void load_with(const spec::ModelSpec& model, const models::WeightLoader& loader) {
  const models::StagePart all{{0, static_cast<int>(model.transformer.num_layers)}, true, true, {}};
  const auto& family = model.transformer.family;
  const auto scale = model.vae.scale_factor();
  if (const auto* pixart = std::get_if<spec::PixArtSpec>(&family))
    models::PixArt(*pixart, scale, all, loader, at::kFloat, at::kCPU);
  if (const auto* sd3 = std::get_if<spec::Sd3Spec>(&family))
    models::Sd3(*sd3, all, loader, at::kFloat, at::kCPU);
  if (const auto* flux = std::get_if<spec::FluxSpec>(&family))
    models::Flux(*flux, all, loader, at::kFloat, at::kCPU);
  if (const auto* hunyuan = std::get_if<spec::HunyuanSpec>(&family))
    models::Hunyuan(*hunyuan, scale, all, loader, at::kFloat, at::kCPU);
  if (const auto* wan = std::get_if<spec::WanSpec>(&family))
    models::Wan(*wan, all, loader, at::kFloat, at::kCPU);
}

}  // namespace

TEST_CASE("what is added to a part of a weight is that part of what is added to all of it") {
  const models::LoraWeights loras({{kFixtures / "lora/flux.safetensors", 0.7},
                                   {kFixtures / "lora/flux_kohya.safetensors", -0.5}},
                                  flux());
  const models::WeightStore store(flux().transformer_weights);
  int touched = 0;
  for (const auto& entry : flux().transformer_weights.tensors()) {
    const auto stored = store.get(entry.name, entry.shape, at::kFloat);
    const auto all = loras.add("transformer", entry.name, stored);
    if (!loras.touches("transformer", entry.name)) {
      CHECK(all.is_same(stored));
      continue;
    }
    ++touched;
    CAPTURE(entry.name);
    CHECK((all - stored).abs().max().item<float>() > 0.01);
    const auto rows = stored.size(0), columns = stored.size(1);
    const auto part = loras.add("transformer", entry.name,
                                stored.slice(0, 5, rows - 3).slice(1, 7, columns - 2), 5, 7);
    const auto wanted = all.slice(0, 5, rows - 3).slice(1, 7, columns - 2);
    CHECK((part - wanted).abs().max().item<float>() < 1e-6);
    CHECK(loras.add("transformer", entry.name, stored.slice(0, 4, 4), 4).numel() == 0);
  }
  CHECK(touched > 40);
}

TEST_CASE("a store gives what is added from the moment it is adapted") {
  const models::LoraWeights loras({{kFixtures / "lora/flux.safetensors", 1}}, flux());
  models::WeightStore store(flux().transformer_weights);
  const std::string name = "transformer_blocks.0.attn.to_q.weight";
  const auto shape = store.index().at(name).shape;
  const auto before = store.get(name, shape, at::kFloat).clone();
  loras.adapt(store, "text_encoder");
  CHECK(at::equal(store.get(name, shape, at::kFloat), before));
  loras.adapt(store, "transformer");
  CHECK((store.get(name, shape, at::kFloat) - before).abs().max().item<float>() > 0.01);
  CHECK((store.get(name, shape, at::kBFloat16).scalar_type() == at::kBFloat16));
}

TEST_CASE("what is stored in half precision is rounded once, with what is added to it") {
  const models::LoraWeights loras({{kFixtures / "lora/flux.safetensors", 1}}, flux());
  const std::string name = "transformer_blocks.0.attn.to_q.weight";
  const auto full = models::WeightStore(flux().transformer_weights).get(name).clone();
  for (const auto type : {at::kHalf, at::kBFloat16}) {
    const Scratch folder;
    const auto stored = full.to(type);
    models::save_safetensors(folder / "x.safetensors", {{name, stored}});
    models::WeightStore store(spec::WeightIndex::read_file(folder / "x.safetensors"));
    loras.adapt(store, "transformer");
    const auto sum = loras.add("transformer", name, stored.to(at::kFloat));
    CHECK_FALSE(at::equal(sum, sum.to(type).to(at::kFloat)));
    CHECK(at::equal(store.get(name, full.sizes(), at::kFloat), sum));
    CHECK(at::equal(store.get(name, full.sizes(), type), sum.to(type)));
  }
}

TEST_CASE("a sum that float16 cannot hold is refused by its tensor's name") {
  const auto model = flux();
  const models::LoraWeights loras({{kFixtures / "lora/flux.safetensors", 1e6}}, model);
  const std::string name = "transformer_blocks.0.attn.to_q.weight";
  models::WeightStore store(model.transformer_weights);
  loras.adapt(store, "transformer");
  const auto shape = store.index().at(name).shape;
  CHECK(has(message_of([&] { store.get(name, shape, at::kHalf); }), "tensor \"" + name));
  store.get(name, shape, at::kFloat);

  const models::StagePart all{{0, static_cast<int>(model.transformer.num_layers)}, true, true, {}};
  const auto error =
      message_of([&] { models::load_transformer(model, all, at::kHalf, at::kCPU, {}, &loras); });
  CAPTURE(error);
  CHECK(has(error, "with its LoRA in float16, tensor \""));
}

TEST_CASE("values that are not finite are named, also an alpha") {
  const std::string base = "transformer.transformer_blocks.0.attn.to_q";
  for (const bool in_alpha : {true, false}) {
    const Scratch folder;
    auto down = at::zeros({2, 24}), alpha = at::ones({});
    if (in_alpha) {
      alpha.fill_(std::numeric_limits<float>::infinity());
    } else {
      down[1][3] = NAN;
    }
    const auto file = folder / "x.safetensors";
    models::save_safetensors(file, {{base + ".lora_A.weight", down},
                                    {base + ".lora_B.weight", at::zeros({24, 2})},
                                    {base + ".alpha", alpha}});
    const models::LoraWeights loras({{file, 1}}, flux());
    const auto error = message_of([&] {
      loras.add("transformer", "transformer_blocks.0.attn.to_q.weight", at::zeros({24, 24}));
    });
    CAPTURE(error);
    CHECK(has(error, "x.safetensors: tensor \"" + base + (in_alpha ? ".alpha" : ".lora_A.weight")));
  }
}

TEST_CASE("whatever product a LoRA may name meets its addition when a family is loaded") {
  for (const char* name : {"tiny-pixart", "tiny-pixart-1024", "tiny-sigma", "tiny-sd3", "tiny-sd35",
                           "tiny-flux", "tiny-hunyuan", "tiny-hunyuan-sizes", "tiny-wan"}) {
    CAPTURE(name);
    if (!std::filesystem::exists(kFixtures / name / "model_index.json")) continue;
    const auto model = spec::read_model_spec(kFixtures / name);
    const models::WeightStore store(model.transformer_weights);
    std::set<std::string> adapted;
    models::WeightLoader loader;
    loader.get = [&](const std::string& tensor, at::IntArrayRef shape) {
      return store.get(tensor, shape, at::kFloat);
    };
    loader.adapt = [&](const std::string& tensor, const at::Tensor& part, std::int64_t,
                       std::int64_t) {
      adapted.insert(tensor);
      return part;
    };
    load_with(model, loader);
    int products = 0;
    for (const auto& entry : model.transformer_weights.tensors()) {
      if (!entry.name.ends_with(".weight") || entry.shape.size() < 2) continue;
      CAPTURE(entry.name);
      const auto rows = entry.shape[0];
      const auto columns = store.get(entry.name).numel() / rows;
      const Scratch folder;
      const auto file = folder / "x.safetensors";
      const auto base = entry.name.substr(0, entry.name.size() - 7);
      models::save_safetensors(file, {{base + ".lora_A.weight", at::zeros({1, columns})},
                                      {base + ".lora_B.weight", at::zeros({rows, 1})}});
      const auto error = message_of([&] { spec::read_lora_spec(file, model); });
      CHECK(adapted.contains(entry.name) == error.empty());
      if (!error.empty()) CHECK(has(error, "matches no layer of this model"));
      products += error.empty();
    }
    CHECK(products > 20);
  }
}

TEST_CASE("a picture is resized to the bit as Pillow does it") {
  const auto picture = models::decode_picture(read_all(kFixtures / "init/picture.png"));
  int sizes = 0;
  for (const auto& [name, wanted] :
       models::load_safetensors(kFixtures / "expected/init_image.safetensors")) {
    if (!name.starts_with("resized_")) continue;
    CAPTURE(name);
    CHECK(at::equal(models::resize_lanczos(picture, wanted.size(0), wanted.size(1)), wanted));
    ++sizes;
  }
  CHECK(sizes == 7);
  CHECK(at::equal(models::resize_lanczos(picture, 53, 87), picture));
  const auto range = models::to_model_range(picture);
  CHECK(range.sizes() == at::IntArrayRef({1, 3, 53, 87}));
  CHECK(range.min().item<float>() >= -1);
  CHECK(range.max().item<float>() <= 1);
  CHECK_THROWS_AS(models::resize_lanczos(picture, 0, 4), std::invalid_argument);
}

TEST_CASE("a mask covers the latents that it covers in diffusers' pipelines") {
  const auto mask = models::decode_picture(read_all(kFixtures / "init/mask.png"));
  int sizes = 0;
  for (const auto& [name, wanted] :
       models::load_safetensors(kFixtures / "expected/inpaint.safetensors")) {
    if (!name.starts_with("mask_")) continue;
    CAPTURE(name);
    const auto height = wanted.size(0), width = wanted.size(1);
    const auto sized = models::resize_lanczos(mask, 8 * height, 8 * width);
    const auto covered = models::latent_mask(sized, height, width);
    CHECK(covered.sizes() == at::IntArrayRef({1, 1, height, width}));
    CHECK(at::equal(covered[0][0], wanted.to(at::kFloat)));
    CHECK(wanted.any().item<bool>());
    CHECK_FALSE(wanted.all().item<bool>());
    ++sizes;
  }
  CHECK(sizes == 2);
  // Half of white is covered; colours count as the eye sees them.
  for (const auto& [red, green, blue, painted] :
       {std::tuple{127, 127, 127, 0}, {128, 128, 128, 1}, {255, 0, 255, 0}, {0, 255, 0, 1}}) {
    const auto pixel = at::tensor({red, green, blue}, at::kByte).expand({8, 8, 3});
    CHECK(models::latent_mask(pixel, 1, 1).item<int>() == painted);
  }
  CHECK_THROWS_AS(models::latent_mask(mask, 7, 4), std::invalid_argument);
}
