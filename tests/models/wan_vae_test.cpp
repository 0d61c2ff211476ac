#include <c10/core/InferenceMode.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "models/vae/autoencoder_kl_wan.h"
#include "tests/models/memory_halo.h"
#include "tests/models/vae_support.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::models;
using namespace troupe::models::testing;

namespace {

const std::filesystem::path kWanVae = kRoot / "tests/fixtures/tiny-wan/vae";

spec::WanVaeSpec wan_spec() {
  return spec::read_wan_vae_spec(spec::ConfigReader::read(kWanVae / "config.json"));
}

AutoencoderKLWan load_wan() {
  const WeightStore weights(
      spec::WeightIndex::read_file(kWanVae / "diffusion_pytorch_model.safetensors"));
  return {wan_spec(), weights, at::kCPU};
}

struct Clip {
  std::string name;
  std::int64_t frames = 0, pixel_frames = 0;
  at::Tensor latents, pixels;
};

std::vector<Clip> clips() {
  const auto tensors = load_safetensors(kRoot / "tests/fixtures/expected/wan_vae.safetensors");
  const auto book =
      nlohmann::json::parse(std::ifstream(kRoot / "tests/fixtures/expected/wan_vae.json"));
  std::vector<Clip> all;
  for (const auto& item : book.at("cases")) {
    const std::string name = item.at("name");
    all.push_back({name, item.at("frames"), item.at("pixel_frames"), tensors.at(name + ".latents"),
                   tensors.at(name + ".pixels")});
  }
  return all;
}

}  // namespace

TEST_CASE("videos decode as diffusers decodes them, of any number of frames") {
  const auto vae = load_wan();
  double worst = 0;
  for (const auto& clip : clips()) {
    CAPTURE(clip.name);
    CHECK(vae.spec().latent_frames(clip.pixel_frames) == clip.frames);
    const at::Tensor got = vae.decode(clip.latents, clip.frames);
    REQUIRE(got.sizes() == clip.pixels.sizes());
    const double error = relative_error(got, clip.pixels);
    CHECK(error < 1e-5);
    worst = std::max(worst, error);
  }
  MESSAGE("within " << worst << " of range");
}

TEST_CASE("chunks of rows change nothing in a video but rounding") {
  auto vae = load_wan();
  const auto clip = clips().at(1);
  const at::Tensor whole = vae.decode(clip.latents, clip.frames);
  vae.set_chunk_bytes(1 << 10);
  CHECK(relative_error(vae.decode(clip.latents, clip.frames), whole) < 1e-6);
}

TEST_CASE("shards of a video's rows are together the whole video") {
  const OneThread one_thread;
  const auto vae = load_wan();
  const auto clip = clips().at(1);
  const std::int64_t height = clip.latents.size(2) / clip.frames;
  for (const int shards : {2, 3}) {
    CAPTURE(shards);
    const auto parts = on_shards(shards, [&](HaloPort& port) {
      std::vector<at::Tensor> frames;
      vae.decode_rows(clip.latents, clip.frames, port, nullptr,
                      [&](std::int64_t, std::int64_t, const at::Tensor& pixels) {
                        frames.push_back(pixels.contiguous());
                      });
      return frames;
    });
    const std::int64_t tall = height * vae.spec().scale_factor();
    const auto count = static_cast<std::int64_t>(parts[0].size());
    REQUIRE(count == clip.pixel_frames * clip.latents.size(0));
    for (std::int64_t i = 0; i < count; ++i) {
      std::vector<at::Tensor> rows;
      for (const auto& part : parts)
        rows.push_back(part.at(i));
      const at::Tensor want = clip.pixels.narrow(0, i / clip.pixel_frames, 1)
                                  .narrow(2, i % clip.pixel_frames * tall, tall);
      CHECK((at::cat(rows, 2) - want).abs().max().item<double>() < 2e-5);
    }
  }
}

TEST_CASE("latents that are no whole frames are refused") {
  const auto vae = load_wan();
  CHECK_THROWS_WITH_AS(vae.decode(at::zeros({1, 4, 7, 4}), 2),
                       "[AutoencoderKLWan] latents [1, 4, 7, 4] are not [B, 4, 2 · h, w]",
                       std::invalid_argument);
}

TEST_CASE("configs of video decoders: what is not supported is refused by key") {
  const auto read = [](const std::string& key, const nlohmann::json& value) {
    nlohmann::json config = nlohmann::json::parse(std::ifstream(kWanVae / "config.json"));
    config[key] = value;
    return spec::read_wan_vae_spec(spec::ConfigReader(config.dump(), "config.json"));
  };
  CHECK(read("dropout", 0.5) == wan_spec());
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, nlohmann::json>>{{"patch_size", 2},
                                                           {"attn_scales", {0.5}},
                                                           {"temperal_downsample", {true, true}},
                                                           {"latents_std", {1.0}},
                                                           {"scale_factor_temporal", 8},
                                                           {"scale_factor_spatial", 16},
                                                           {"something", 1}}) {
    CAPTURE(key);
    try {
      read(key, value);
      FAIL("was not refused");
    } catch (const std::runtime_error& error) {
      CHECK(std::string(error.what()).find(key) != std::string::npos);
    }
  }
}
