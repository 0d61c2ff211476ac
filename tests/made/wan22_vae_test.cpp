#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

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

TEST_CASE("Wan 2.2's videos decode as diffusers decodes them, whole, in chunks and by shards") {
  if (lacks_made_fixtures()) return;
  const OneThread one_thread;
  const auto tensors = load_safetensors(kMade / "expected/wan22_vae.safetensors");
  const auto book = nlohmann::json::parse(std::ifstream(kMade / "expected/wan22_vae.json"));
  for (const auto& item : book.at("cases")) {
    const std::string name = item.at("name");
    CAPTURE(name);
    const auto folder = kMade / item.at("checkpoint").get<std::string>() / "vae";
    const auto spec = spec::read_wan_vae_spec(spec::ConfigReader::read(folder / "config.json"));
    CHECK(spec.is_residual);
    CHECK(spec.scale_factor() == 16);
    const WeightStore weights(
        spec::WeightIndex::read_file(folder / "diffusion_pytorch_model.safetensors"));
    AutoencoderKLWan vae(spec, weights, at::kCPU);
    const at::Tensor &latents = tensors.at(name + ".latents"),
                     &pixels = tensors.at(name + ".pixels");
    const std::int64_t frames = item.at("frames");
    const at::Tensor whole = vae.decode(latents, frames);
    REQUIRE(whole.sizes() == pixels.sizes());
    CHECK(relative_error(whole, pixels) < 1e-5);
    const std::int64_t made = (frames - 1) * spec.frame_factor() + 1;
    for (const int shards : {2, 3}) {
      CAPTURE(shards);
      auto parts = on_shards(
          shards, [&](HaloPort& port) { return vae.decode(latents, frames, port, nullptr); });
      for (at::Tensor& rows : parts)
        rows = rows.view({pixels.size(0), 3, made, -1, pixels.size(3)});
      CHECK(relative_error(at::cat(parts, 3).view(pixels.sizes()), pixels) < 1e-5);
    }
    vae.set_chunk_bytes(1 << 10);
    CHECK(relative_error(vae.decode(latents, frames), pixels) < 1e-5);
  }
}

TEST_CASE("given frames are encoded as diffusers encodes them, whole, in chunks and by shards") {
  if (lacks_made_fixtures()) return;
  const OneThread one_thread;
  const auto tensors = load_safetensors(kMade / "expected/wan_image_vae.safetensors");
  const auto book = nlohmann::json::parse(std::ifstream(kMade / "expected/wan_image_vae.json"));
  for (const auto& item : book.at("cases")) {
    const std::string name = item.at("name");
    CAPTURE(name);
    const auto folder = kMade / item.at("checkpoint").get<std::string>() / "vae";
    const auto spec = spec::read_wan_vae_spec(spec::ConfigReader::read(folder / "config.json"));
    const WeightStore weights(
        spec::WeightIndex::read_file(folder / "diffusion_pytorch_model.safetensors"));
    AutoencoderKLWan vae(spec, weights, at::kCPU, spec::VaeHalf::encoder);
    const at::Tensor &pixels = tensors.at(name + ".pixels"),
                     &latents = tensors.at(name + ".latents");
    const std::int64_t frames = item.at("frames");
    const auto source = [&](std::int64_t frame) {
      const std::int64_t height = pixels.size(2) / frames;
      return pixels.narrow(2, frame * height, height);
    };
    const at::Tensor whole = vae.encode(frames, source);
    REQUIRE(whole.sizes() == latents.sizes());
    CHECK(relative_error(whole, latents) < 1e-5);
    const std::int64_t made = spec.latent_frames(frames);
    auto parts = on_shards(
        2, [&](HaloPort& port) { return vae.encode_rows(frames, source, port, nullptr); });
    for (at::Tensor& rows : parts)
      rows = rows.contiguous().view({1, spec.z_dim, made, -1, latents.size(3)});
    CHECK(relative_error(at::cat(parts, 3).view(latents.sizes()), latents) < 1e-5);
    vae.set_chunk_bytes(1 << 10);
    CHECK(relative_error(vae.encode(frames, source), latents) < 1e-5);
  }
}
