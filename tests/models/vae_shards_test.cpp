#include <ATen/ATen.h>

#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "models/vae/halo_port.h"
#include "models/vae/layers.h"
#include "tests/models/memory_halo.h"
#include "tests/models/vae_support.h"
#include "tests/support/doctest.h"

using namespace troupe::models;
using namespace troupe::models::testing;
using troupe::spec::VaeHalf;
using troupe::spec::VaeSpec;

namespace {

at::Tensor decode_on(const AutoencoderKL& vae, const at::Tensor& latents, int shards) {
  return at::cat(on_shards(shards, [&](HaloPort& port) { return vae.decode_rows(latents, port); }),
                 2);
}

at::Tensor encode_on(const AutoencoderKL& vae, const at::Tensor& pictures, int shards) {
  const auto parts = on_shards(shards, [&](HaloPort& port) {
    const auto found = vae.encode_rows(pictures, port);
    return at::cat({found.mean, found.logvar}, 1);
  });
  return at::cat(parts, 2);
}

// A VAE of random weights, in a file that is gone at once.
AutoencoderKL random_vae(const VaeSpec& spec) {
  std::map<std::string, at::Tensor> tensors;
  for (const auto half : {VaeHalf::decoder, VaeHalf::encoder}) {
    for (const auto& expected : troupe::spec::expected_tensors(spec, half)) {
      tensors[expected.name] = at::randn(expected.shape) * 0.2;
    }
  }
  const auto file = std::filesystem::temp_directory_path() /
                    ("troupe-vae-" + std::to_string(std::random_device{}()) + ".safetensors");
  save_safetensors(file, tensors);
  const WeightStore weights(troupe::spec::WeightIndex::read_file(file));
  std::filesystem::remove(file);
  return AutoencoderKL(spec, weights, at::kFloat, at::kCPU, {VaeHalf::decoder, VaeHalf::encoder});
}

VaeSpec odd_spec() {
  VaeSpec spec;
  spec.in_channels = 2;
  spec.latent_channels = 3;
  spec.block_out_channels = {4, 6, 10};
  spec.layers_per_block = 2;
  spec.norm_num_groups = 2;
  spec.scaling_factor = 2;
  spec.shift_factor = 0.25;
  spec.use_post_quant_conv = false;
  spec.use_quant_conv = false;
  return spec;
}

}  // namespace

TEST_CASE("rows are dealt out evenly, what is left over to the first") {
  const RowShards shards(11, 4);
  CHECK(shards.of(0) == RowRun{0, 3});
  CHECK(shards.of(1) == RowRun{3, 6});
  CHECK(shards.of(2) == RowRun{6, 9});
  CHECK(shards.of(3) == RowRun{9, 11});
  for (int rows = 1; rows < 20; ++rows) {
    for (int count = 1; count <= rows; ++count) {
      const RowShards dealt(rows, count);
      std::int64_t next = 0;
      for (int i = 0; i < count; ++i) {
        CHECK(dealt.of(i).begin == next);
        CHECK(dealt.of(i).size() >= 1);
        next = dealt.of(i).end;
      }
      CHECK(next == rows);
    }
  }
  CHECK_THROWS_AS(RowShards(3, 4), std::invalid_argument);
  CHECK_THROWS_AS(RowShards(3, 0), std::invalid_argument);
}

TEST_CASE("any number of shards decodes the picture of one") {
  const OneThread one_thread;
  const std::vector<AutoencoderKL> vaes = {load_vae(kTinyVae), load_vae(kDemoVae),
                                           random_vae(odd_spec())};
  double worst = 0;
  for (size_t v = 0; v < vaes.size(); ++v) {
    for (const auto& [height, width] : {std::pair{7, 5}, {5, 9}, {12, 4}}) {
      const auto latents = at::randn({2, vaes[v].spec().latent_channels, height, width});
      const auto whole = vaes[v].decode(latents);
      for (int shards : {1, 2, 3, 4, 5, 7}) {
        if (shards > height) continue;
        CAPTURE(v);
        CAPTURE(height);
        CAPTURE(shards);
        const auto found = decode_on(vaes[v], latents, shards);
        REQUIRE(found.sizes() == whole.sizes());
        const double error = relative_error(found, whole);
        CHECK(error < 1e-6);
        worst = std::max(worst, error);
      }
    }
  }
  MESSAGE("largest difference " << worst << " of the range");
}

TEST_CASE("ATen's own kernels, which a GPU runs, decode the same") {
  const OneThread one_thread;
  const AutoencoderKL vae = load_vae(kTinyVae);
  const AutoencoderKL wide = load_vae(kTinyVae, at::kDouble);
  const auto latents = at::randn({1, 4, 5, 6});
  const auto whole = wide.decode(latents);
  CHECK(relative_error(vae.decode(latents), whole) < 1e-6);
  CHECK(relative_error(decode_on(wide, latents, 3).to(at::kFloat), whole) < 1e-6);
}

TEST_CASE("any number of shards encodes the latents of one, odd pictures too") {
  const OneThread one_thread;
  const std::vector<AutoencoderKL> vaes = {load_vae(kTinyVae), load_vae(kDemoVae),
                                           random_vae(odd_spec())};
  double worst = 0;
  for (size_t v = 0; v < vaes.size(); ++v) {
    for (const auto& [height, width] : {std::pair{56, 40}, {45, 27}}) {
      const auto pictures = at::rand({2, vaes[v].spec().in_channels, height, width}) * 2 - 1;
      const auto whole = encode_on(vaes[v], pictures, 1);
      const std::int64_t scale = vaes[v].spec().scale_factor();
      REQUIRE(whole.size(2) == height / scale);
      REQUIRE(whole.size(3) == width / scale);
      for (int shards : {2, 3, 4, 5, 7}) {
        if (shards > height / scale) continue;
        CAPTURE(v);
        CAPTURE(height);
        CAPTURE(shards);
        const auto found = encode_on(vaes[v], pictures, shards);
        REQUIRE(found.sizes() == whole.sizes());
        const double error = relative_error(found, whole);
        CHECK(error < 1e-6);
        worst = std::max(worst, error);
      }
    }
  }
  MESSAGE("largest difference " << worst << " of the range");
}

TEST_CASE("group norm over shards is exact where their means lie far apart") {
  const OneThread one_thread;
  const auto weight = at::randn({12});
  const auto bias = at::randn({12});
  for (double mean : {0.0, 3.0, 300.0}) {
    CAPTURE(mean);
    // Each third about another mean: the spread between shards outweighs that within.
    auto x = at::randn({1, 12, 31, 9}) + mean;
    x.narrow(2, 0, 11).add_(5);
    x.narrow(2, 21, 10).sub_(7);
    const auto expected =
        at::group_norm(x.to(at::kDouble), 3, weight.to(at::kDouble), bias.to(at::kDouble), 1e-6);
    for (const auto type : {at::kFloat, at::kDouble}) {
      const auto parts = on_shards(3, [&](HaloPort& port) {
        const RowRun rows = RowShards(31, 3).of(port.shard());
        const auto own = x.narrow(2, rows.begin, rows.size()).to(type);
        return vae::apply_affine(
            own, vae::group_norm_affine(own, 3, weight.to(type), bias.to(type), 1e-6, port));
      });
      CHECK((at::cat(parts, 2) - expected).abs().max().item<double>() < 3e-6 + 1e-6 * mean);
    }
  }
}

TEST_CASE("runs of rows of any size compute what the whole does") {
  const OneThread one_thread;
  for (const auto& folder : {kTinyVae, kDemoVae}) {
    AutoencoderKL vae = load_vae(folder);
    const auto latents = at::randn({1, 4, 5, 6});
    const auto pictures = at::rand({1, 3, 41, 50}) * 2 - 1;
    const auto decoded = vae.decode(latents);
    const auto encoded = encode_on(vae, pictures, 1);
    for (std::int64_t bytes : {1, 4000, 30000, 100000}) {
      CAPTURE(bytes);
      vae.set_chunk_bytes(bytes);
      CHECK(relative_error(vae.decode(latents), decoded) < 1e-6);
      CHECK(relative_error(decode_on(vae, latents, 3), decoded) < 1e-6);
      CHECK(relative_error(encode_on(vae, pictures, 1), encoded) < 1e-6);
      CHECK(relative_error(encode_on(vae, pictures, 3), encoded) < 1e-6);
    }
  }
}

TEST_CASE("every shard counts its blocks, and more shards than rows are refused") {
  const OneThread one_thread;
  const AutoencoderKL vae = load_vae(kTinyVae);
  const auto latents = at::randn({2, 4, 3, 2});
  const auto counts = on_shards(3, [&](HaloPort& port) {
    int last = 0;
    vae.decode_rows(latents, port, [&](int done, int total) {
      last = done == last + 1 && total == 2 * vae.blocks() ? done : -1;
    });
    return last;
  });
  for (int count : counts)
    CHECK(count == 2 * vae.blocks());
  CHECK_THROWS_AS(decode_on(vae, latents, 4), std::invalid_argument);
}
