// The tiny model of the fixtures on the GPU against the same on the CPU.
#include <ATen/ATen.h>

#include <cstdlib>
#include <string>

#include "models/dit/diffusion_transformer.h"
#include "models/dit/ports.h"
#include "models/safetensors.h"
#include "models/spec/model_spec.h"
#include "models/vae/autoencoder_kl.h"
#include "tests/gpu/gpu.h"

#include "tests/support/doctest.h"

using namespace troupe;

namespace {

constexpr models::PictureSize kSize{16, 12};

double apart(const at::Tensor& got, const at::Tensor& want) {
  const at::Tensor wide = want.to(at::kDouble);
  return ((got.cpu().to(at::kDouble) - wide).abs().max() / wide.abs().max()).item<double>();
}

/// TROUPE_SOURCE: the project's folder, where this was built elsewhere.
spec::ModelSpec tiny() {
  const char* moved = std::getenv("TROUPE_SOURCE");
  return spec::read_model_spec(std::string(moved ? moved : TROUPE_SOURCE_DIR) +
                               "/tests/fixtures/tiny-pixart");
}

at::Tensor prediction(const spec::ModelSpec& spec, at::ScalarType type, at::Device device,
                      const at::Tensor& latents, const at::Tensor& text) {
  const models::StagePart part{.blocks = {0, static_cast<int>(spec.transformer.num_layers)}};
  const auto model = models::load_transformer(spec, part, type, device);
  const models::TokenRows rows{0, kSize.latent_height / model->patch_size()};
  const auto states =
      model->project_caption({{.states = text.to(device, type), .lengths = {}, .pooled = {}}});
  const at::Tensor mask = at::ones({text.size(0), text.size(1)}, at::kBool);
  const auto caption = model->cache_caption(states, mask.to(device));
  const auto condition = model->condition({501, 1, kSize}, *caption);
  models::LocalAttention attention;
  models::WholeWeights sums;
  at::Tensor hidden = model->embed(latents.to(device, type), kSize, rows);
  hidden = model->run_blocks(std::move(hidden), {kSize, {}}, *condition, *caption, attention, sums);
  return model->project(hidden, *condition, kSize, rows);
}

}  // namespace

TEST_CASE("the transformer's prediction is the CPU's") {
  TROUPE_NEEDS_GPU();
  at::manual_seed(1);
  const spec::ModelSpec spec = tiny();
  const at::Tensor latents =
      at::randn({2, spec.transformer.in_channels, kSize.latent_height, kSize.latent_width});
  const at::Tensor text =
      at::randn({2, 7, std::get<spec::PixArtSpec>(spec.transformer.family).caption_channels});
  const at::Tensor want = prediction(spec, at::kFloat, at::kCPU, latents, text);
  CHECK(apart(prediction(spec, at::kFloat, *troupe::testing::gpu(), latents, text), want) < 1e-4);
  CHECK(apart(prediction(spec, at::kBFloat16, *troupe::testing::gpu(), latents, text), want) < 0.1);
}

TEST_CASE("the decoder's picture is the CPU's") {
  TROUPE_NEEDS_GPU();
  at::manual_seed(2);
  const spec::ModelSpec spec = tiny();
  const at::Tensor latents = at::randn({1, spec.vae.latent_channels, 8, 12});
  const auto decoded = [&](at::Device device) {
    models::WeightStore weights(spec.vae_weights);
    models::AutoencoderKL vae(spec.vae, weights, at::kFloat, device);
    return vae.decode(latents.to(device), [](int, int) {}).cpu();
  };
  CHECK(apart(decoded(*troupe::testing::gpu()), decoded(at::kCPU)) < 1e-3);
}
