#pragma once
#include <cstdint>
#include <filesystem>
#include <iosfwd>
#include <random>
#include <vector>

#include "models/spec/planned_tensors.h"
#include "models/spec/weight_index.h"

namespace troupe::testing {

/// Runs of a few million normal values, scaled; another place in them for each chunk.
class RandomValues {
 public:
  RandomValues();

  /// `dtype` float32 or bfloat16.
  void write(std::ostream& out, spec::Dtype dtype, std::uint64_t count, float mean,
             float deviation);

 private:
  std::mt19937 generator_{1};
  std::vector<float> standard_;
};

std::uint64_t elements(const spec::ExpectedTensor& tensor);

/// A safetensors file of random values of sizes that keep a deep network's states finite and alive.
/// Returns the bytes of its tensors; throws when it cannot be written.
std::uint64_t write_random_weights(const std::filesystem::path& file,
                                   const std::vector<spec::ExpectedTensor>& tensors,
                                   spec::Dtype dtype, RandomValues& values);

}  // namespace troupe::testing
