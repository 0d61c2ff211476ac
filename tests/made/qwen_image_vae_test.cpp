#include <string>

#include "models/vae/autoencoder_kl_wan.h"
#include "tests/models/memory_halo.h"
#include "tests/models/vae_support.h"
#include "tests/support/doctest.h"
#include "tests/support/made.h"

using namespace troupe;
using namespace troupe::models;
using namespace troupe::models::testing;
using troupe::testing::kMade;
using troupe::testing::lacks_made_fixtures;

TEST_CASE(
    "Qwen-Image's pictures decode as diffusers decodes them, whole, in chunks and by shards") {
  if (lacks_made_fixtures()) return;
  const OneThread one_thread;
  const auto folder = kMade / "tiny-qwen-image/vae";
  auto spec = spec::read_wan_vae_spec(spec::ConfigReader::read(folder / "config.json"));
  const std::uint64_t whole = spec::kept_elements(spec);
  spec.one_frame = true;
  CHECK(spec::kept_elements(spec) < whole / 2);
  const WeightStore weights(
      spec::WeightIndex::read_file(folder / "diffusion_pytorch_model.safetensors"));
  AutoencoderKLWan vae(spec, weights, at::kCPU);
  const auto tensors = load_safetensors(kMade / "expected/qwen_image.safetensors");
  for (const char* name : {"plain", "three", "alone"}) {
    CAPTURE(name);
    const std::string of = std::string("qwen-image_") + name;
    const at::Tensor &latents = tensors.at(of + ".latents"), &pixels = tensors.at(of + ".pixels");
    const at::Tensor got = vae.decode(latents, 1);
    REQUIRE(got.sizes() == pixels.sizes());
    CHECK(relative_error(got, pixels) < 1e-5);
    for (const int shards : {2, 3}) {
      const auto parts =
          on_shards(shards, [&](HaloPort& port) { return vae.decode(latents, 1, port, nullptr); });
      CHECK(relative_error(at::cat(parts, 2), pixels) < 1e-5);
    }
  }
  vae.set_chunk_bytes(1 << 10);
  const std::string of = "qwen-image_plain";
  CHECK(relative_error(vae.decode(tensors.at(of + ".latents"), 1), tensors.at(of + ".pixels")) <
        1e-5);
  CHECK_THROWS_AS(vae.decode(at::zeros({1, 4, 8, 4}), 2), std::invalid_argument);
}
