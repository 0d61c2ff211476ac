#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include "models/safetensors.h"
#include "models/spec/vae_spec.h"
#include "models/vae/autoencoder_kl.h"
#include "models/vae/layers.h"
#include "tests/models/vae_support.h"
#include "tests/support/doctest.h"

namespace {

using troupe::models::AutoencoderKL;
using troupe::models::WeightStore;
using troupe::models::testing::kFixtures;
using troupe::models::testing::relative_error;
using troupe::spec::ConfigReader;
using troupe::spec::VaeSpec;
using troupe::spec::WeightIndex;

const std::filesystem::path kVae = kFixtures / "tiny-pixart/vae";
const std::filesystem::path kWeights = kVae / "diffusion_pytorch_model.safetensors";

VaeSpec tiny_spec() {
  return troupe::spec::read_vae_spec(ConfigReader::read(kVae / "config.json"));
}

AutoencoderKL tiny_vae(at::ScalarType dtype = at::kFloat) {
  const WeightStore weights(WeightIndex::read_file(kWeights));
  return AutoencoderKL(tiny_spec(), weights, dtype, at::kCPU);
}

at::Tensor group_norm(const at::Tensor& x, std::int64_t groups, const at::Tensor& weight,
                      const at::Tensor& bias) {
  namespace vae = troupe::models::vae;
  troupe::models::WholePicture whole;
  return vae::apply_affine(x, vae::group_norm_affine(x, groups, weight, bias, 1e-6, whole));
}

// A folder of its own for one test.
struct Folder {
  explicit Folder(const std::string& name)
      : path(std::filesystem::temp_directory_path() /
             (name + std::to_string(std::chrono::steady_clock::now().time_since_epoch().count()))) {
    std::filesystem::create_directories(path);
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path, ignored);
  }
  std::filesystem::path path;
};

}  // namespace

TEST_CASE("the decoder gives diffusers' pictures") {
  const auto tensors = troupe::models::load_safetensors(kFixtures / "expected/vae.safetensors");
  const VaeSpec spec = tiny_spec();
  const AutoencoderKL vae = tiny_vae();
  int compared = 0;
  double worst = 0;
  for (const auto& [name, latents] : tensors) {
    if (!name.starts_with("decode_") || name.starts_with("decode_tiled") ||
        !name.ends_with(".latents"))
      continue;
    CAPTURE(name);
    const std::string base = name.substr(0, name.size() - std::string(".latents").size());
    const at::Tensor expected = tensors.at(base + ".pixels");
    // The fixture's latents are what reaches the network, ours what leaves the sampler.
    const at::Tensor pixels = vae.decode(latents * spec.scaling_factor);
    REQUIRE(pixels.sizes() == expected.sizes());
    const double error = relative_error(pixels, expected);
    worst = std::max(worst, error);
    CHECK(error < 1e-5);
    ++compared;
  }
  MESSAGE(compared << " pictures, largest difference " << worst << " of the range");
  CHECK(compared == 3);
}

TEST_CASE("group norm keeps its digits where the mean is large, on any number of threads") {
  const at::Tensor weight = at::randn({12});
  const at::Tensor bias = at::randn({12});
  const int threads = at::get_num_threads();
  for (double mean : {0.0, 3.0, 300.0}) {
    CAPTURE(mean);
    const at::Tensor x = at::randn({1, 12, 67, 129}) + mean;
    const at::Tensor expected =
        at::group_norm(x.to(at::kDouble), 3, weight.to(at::kDouble), bias.to(at::kDouble), 1e-6);
    at::set_num_threads(1);
    const at::Tensor one = group_norm(x, 3, weight, bias);
    at::set_num_threads(2);
    const at::Tensor two = group_norm(x, 3, weight, bias);
    at::set_num_threads(threads);
    CHECK(at::equal(one, two));
    // What float32 leaves of x itself.
    CHECK((one - expected).abs().max().item<double>() < 3e-6 + 1e-6 * mean);
  }
}

TEST_CASE("half precision stays near float32") {
  const at::Tensor latents = at::randn({1, 4, 6, 5});
  const at::Tensor expected = tiny_vae().decode(latents);
  const std::map<at::ScalarType, double> bounds = {{at::kBFloat16, 0.05}, {at::kHalf, 0.01}};
  for (const auto& [dtype, bound] : bounds) {
    const at::Tensor pixels = tiny_vae(dtype).decode(latents.to(dtype));
    CHECK((pixels.scalar_type() == dtype));
    const double error = relative_error(pixels, expected);
    MESSAGE(std::string(c10::toString(dtype)) << ": " << error << " of the range");
    CHECK(error < bound);
  }
}

TEST_CASE("a picture does not depend on its neighbours in the batch") {
  const AutoencoderKL vae = tiny_vae();
  const at::Tensor latents = at::randn({3, 4, 5, 7});
  const at::Tensor all = vae.decode(latents);
  for (int i = 0; i < 3; ++i) {
    CHECK(at::equal(all[i], vae.decode(latents.narrow(0, i, 1))[0]));
  }
}

TEST_CASE("progress counts every block, and may end the decoding") {
  const AutoencoderKL vae = tiny_vae();
  std::vector<int> seen;
  vae.decode(at::randn({2, 4, 2, 2}), [&](int done, int total) {
    CHECK(total == 2 * vae.blocks());
    seen.push_back(done);
  });
  REQUIRE(seen.size() == static_cast<size_t>(2 * vae.blocks()));
  for (size_t i = 0; i < seen.size(); ++i) {
    CHECK(seen[i] == static_cast<int>(i) + 1);
  }
  struct Cancelled {};
  CHECK_THROWS_AS(vae.decode(at::randn({1, 4, 2, 2}), [](int, int) { throw Cancelled(); }),
                  Cancelled);
}

TEST_CASE("the attention's older names load to the same picture") {
  auto tensors = troupe::models::load_safetensors(kWeights);
  const std::map<std::string, std::string> names = {{".to_q.", ".query."},
                                                    {".to_k.", ".key."},
                                                    {".to_v.", ".value."},
                                                    {".to_out.0.", ".proj_attn."}};
  std::map<std::string, at::Tensor> renamed;
  int count = 0;
  for (const auto& [name, tensor] : tensors) {
    std::string old_name = name;
    for (const auto& [now, before] : names) {
      const size_t at = old_name.find(now);
      if (at == std::string::npos) continue;
      old_name.replace(at, now.size(), before);
      ++count;
    }
    renamed[old_name] = tensor;
  }
  REQUIRE(count >= 8);
  const Folder folder("troupe-vae-test-");
  troupe::models::save_safetensors(folder.path / "old.safetensors", renamed);
  const WeightStore weights(WeightIndex::read_file(folder.path / "old.safetensors"));
  const AutoencoderKL old_vae(tiny_spec(), weights, at::kFloat, at::kCPU);
  const at::Tensor latents = at::randn({1, 4, 4, 4});
  CHECK(at::equal(old_vae.decode(latents), tiny_vae().decode(latents)));
}

TEST_CASE("other depths, widths and options decode, and each needs its tensors") {
  VaeSpec spec;
  spec.latent_channels = 3;
  spec.block_out_channels = {4, 8};
  spec.layers_per_block = 3;
  spec.norm_num_groups = 2;
  spec.scaling_factor = 2;
  spec.shift_factor = 0.25;
  spec.mid_block_add_attention = false;
  spec.use_post_quant_conv = false;
  std::map<std::string, at::Tensor> tensors;
  for (const auto& expected : troupe::spec::expected_tensors(spec)) {
    tensors[expected.name] = at::randn(expected.shape) * 0.2;
  }
  const Folder folder("troupe-vae-test-");
  troupe::models::save_safetensors(folder.path / "w.safetensors", tensors);
  const WeightStore weights(WeightIndex::read_file(folder.path / "w.safetensors"));
  const AutoencoderKL vae(spec, weights, at::kFloat, at::kCPU);
  const at::Tensor latents = at::randn({1, 3, 3, 5});
  const at::Tensor pixels = vae.decode(latents);
  CHECK(pixels.sizes() == at::IntArrayRef{1, 3, 6, 10});

  VaeSpec plain = spec;
  plain.scaling_factor = 1;
  plain.shift_factor = 0;
  const AutoencoderKL unscaled(plain, weights, at::kFloat, at::kCPU);
  CHECK(relative_error(unscaled.decode(latents / 2 + 0.25), pixels) < 1e-6);

  spec.mid_block_add_attention = true;
  std::string text;
  try {
    AutoencoderKL(spec, weights, at::kFloat, at::kCPU);
  } catch (const std::exception& error) {
    text = error.what();
  }
  CHECK(text.find("decoder.mid_block.attentions.0.") != std::string::npos);
}

TEST_CASE("latents of another shape are refused") {
  const AutoencoderKL vae = tiny_vae();
  CHECK_THROWS_AS(vae.decode(at::zeros({4, 8, 8})), std::invalid_argument);
  CHECK_THROWS_AS(vae.decode(at::zeros({1, 3, 8, 8})), std::invalid_argument);
  CHECK_THROWS_AS(vae.decode(at::zeros({0, 4, 8, 8})), std::invalid_argument);
}

TEST_CASE("float16 is decoded in float32 where the checkpoint asks for it") {
  VaeSpec spec;
  CHECK((AutoencoderKL::decode_dtype(spec, at::kHalf) == at::kFloat));
  CHECK((AutoencoderKL::decode_dtype(spec, at::kBFloat16) == at::kBFloat16));
  spec.force_upcast = false;
  CHECK((AutoencoderKL::decode_dtype(spec, at::kHalf) == at::kHalf));
}
