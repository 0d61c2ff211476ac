#pragma once
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <filesystem>
#include <map>
#include <string>

#include "models/safetensors.h"
#include "models/spec/vae_spec.h"
#include "models/vae/autoencoder_kl.h"
#include "tests/models/fixtures.h"

namespace troupe::models::testing {

inline const std::filesystem::path kTinyVae = kRoot / "tests/fixtures/tiny-pixart/vae";
inline const std::filesystem::path kDemoVae = kRoot / "examples/demo/model/vae";

/// The VAE of a checkpoint's folder, both halves.
inline AutoencoderKL load_vae(const std::filesystem::path& folder,
                              at::ScalarType dtype = at::kFloat) {
  const auto spec = spec::read_vae_spec(spec::ConfigReader::read(folder / "config.json"));
  const WeightStore weights(
      spec::WeightIndex::read_file(folder / "diffusion_pytorch_model.safetensors"));
  return AutoencoderKL(spec, weights, dtype, at::kCPU,
                       {spec::VaeHalf::decoder, spec::VaeHalf::encoder});
}

inline double relative_error(const at::Tensor& found, const at::Tensor& expected) {
  const double range = (expected.max() - expected.min()).item<double>();
  return (found.to(at::kFloat) - expected).abs().max().item<double>() / range;
}

inline std::map<std::string, at::Tensor> vae_fixture() {
  return load_safetensors(kRoot / "tests/fixtures/expected/vae.safetensors");
}

/// One thread for every shard while it lives, and the same random numbers in every run.
class OneThread {
 public:
  OneThread() {
    at::manual_seed(7);
    at::set_num_threads(1);
  }
  ~OneThread() { at::set_num_threads(before_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int before_ = at::get_num_threads();
};

}  // namespace troupe::models::testing
