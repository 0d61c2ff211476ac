#include <ATen/ATen.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "tests/models/vae_support.h"
#include "tests/support/doctest.h"

using namespace troupe::models;
using namespace troupe::models::testing;
using troupe::spec::VaeHalf;

namespace {

std::vector<std::string> names_of(const std::vector<troupe::spec::ExpectedTensor>& tensors) {
  std::vector<std::string> names;
  for (const auto& tensor : tensors)
    names.push_back(tensor.name);
  return names;
}

}  // namespace

TEST_CASE("the encoder gives diffusers' distribution") {
  const auto tensors = vae_fixture();
  const AutoencoderKL vae = load_vae(kTinyVae);
  const auto found = vae.encode(tensors.at("encode.pixels"));
  const double mean = relative_error(found.mean, tensors.at("encode.mean"));
  const double logvar = relative_error(found.logvar, tensors.at("encode.logvar"));
  MESSAGE("mean " << mean << ", logvar " << logvar << " of the range");
  CHECK(mean < 1e-5);
  CHECK(logvar < 1e-5);
}

TEST_CASE("a distribution's mode and samples, scaled, go back through decode") {
  LatentDistribution latents{at::randn({1, 4, 3, 2}), at::randn({1, 4, 3, 2})};
  const auto noise = at::randn({1, 4, 3, 2});
  CHECK(at::equal(latents.mode(), latents.mean));
  CHECK(at::equal(latents.sample(at::zeros_like(noise)), latents.mean));
  const auto deviation = (latents.sample(noise) - latents.mean) / noise;
  CHECK(at::allclose(deviation.square().log(), latents.logvar, 1e-3, 1e-3));

  const AutoencoderKL vae = load_vae(kTinyVae);
  const auto scaled = vae.scaled(latents.mean);
  CHECK(at::allclose(scaled / vae.spec().scaling_factor + vae.spec().shift_factor, latents.mean));
  CHECK_FALSE(at::allclose(scaled, latents.mean));
}

TEST_CASE("the halves' tensors are the checkpoint's, and each half needs its own only") {
  const AutoencoderKL both = load_vae(kTinyVae);
  auto tensors = load_safetensors(kTinyVae / "diffusion_pytorch_model.safetensors");
  std::set<std::string> stored;
  for (const auto& [name, tensor] : tensors)
    stored.insert(name);
  std::set<std::string> expected;
  const auto encoder = names_of(troupe::spec::expected_tensors(both.spec(), VaeHalf::encoder));
  const auto decoder = names_of(troupe::spec::expected_tensors(both.spec(), VaeHalf::decoder));
  expected.insert(encoder.begin(), encoder.end());
  expected.insert(decoder.begin(), decoder.end());
  CHECK(expected == stored);
  CHECK(expected.size() == encoder.size() + decoder.size());
  CHECK(std::ranges::all_of(encoder, troupe::spec::is_ignorable_vae_tensor));
  CHECK(std::ranges::none_of(decoder, troupe::spec::is_ignorable_vae_tensor));

  const WeightStore weights(
      troupe::spec::WeightIndex::read_file(kTinyVae / "diffusion_pytorch_model.safetensors"));
  const AutoencoderKL decodes(both.spec(), weights, at::kFloat, at::kCPU);
  CHECK_THROWS_AS(decodes.encode(at::zeros({1, 3, 8, 8})), std::logic_error);
  const AutoencoderKL encodes(both.spec(), weights, at::kFloat, at::kCPU, {VaeHalf::encoder});
  CHECK_THROWS_AS(encodes.decode(at::zeros({1, 4, 1, 1})), std::logic_error);
  CHECK(encodes.encode(at::zeros({1, 3, 8, 8})).mean.sizes() == at::IntArrayRef{1, 4, 1, 1});
}

TEST_CASE("encoding counts every block; pictures of another shape are refused") {
  const AutoencoderKL vae = load_vae(kTinyVae);
  int count = 0;
  vae.encode(at::zeros({2, 3, 16, 8}), [&](int done, int total) {
    CHECK(total == 2 * vae.encoder_blocks());
    CHECK(done == ++count);
  });
  CHECK(count == 2 * vae.encoder_blocks());
  CHECK_THROWS_AS(vae.encode(at::zeros({3, 16, 16})), std::invalid_argument);
  CHECK_THROWS_AS(vae.encode(at::zeros({1, 4, 16, 16})), std::invalid_argument);
  CHECK_THROWS_AS(vae.encode(at::zeros({1, 3, 7, 16})), std::invalid_argument);
}
