#include "tests/process/support/random_weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "models/spec/vae_spec.h"

namespace troupe::testing {
namespace {

constexpr std::size_t kPool = std::size_t{1} << 21;

std::uint16_t to_bfloat16(float value) {
  std::uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

template <class T>
void write_run(std::ostream& out, const std::vector<T>& run) {
  out.write(reinterpret_cast<const char*>(run.data()),
            static_cast<std::streamsize>(run.size() * sizeof(T)));
}

void write_tensor(std::ostream& out, const spec::ExpectedTensor& tensor, spec::Dtype dtype,
                  RandomValues& values) {
  const bool vector = tensor.shape.size() == 1;
  const bool scale =
      vector && (tensor.name.ends_with("weight") || tensor.name == spec::kPatchedVariance);
  const double fan_in = double(elements(tensor)) / double(tensor.shape.front());
  const float deviation = vector ? 0.02f : static_cast<float>(1 / std::sqrt(fan_in));
  values.write(out, dtype, elements(tensor), scale ? 1.0f : 0.0f, deviation);
}

}  // namespace

RandomValues::RandomValues() : standard_(kPool) {
  std::normal_distribution<float> normal;
  for (auto& value : standard_)
    value = normal(generator_);
}

void RandomValues::write(std::ostream& out, spec::Dtype dtype, std::uint64_t count, float mean,
                         float deviation) {
  std::vector<float> floats;
  std::vector<std::uint16_t> halves;
  while (count > 0) {
    const std::size_t from = generator_() % kPool;
    const auto run = std::min<std::uint64_t>(count, kPool - from);
    floats.assign(standard_.begin() + static_cast<std::ptrdiff_t>(from),
                  standard_.begin() + static_cast<std::ptrdiff_t>(from + run));
    for (auto& value : floats)
      value = mean + deviation * value;
    if (dtype == spec::Dtype::float32) {
      write_run(out, floats);
    } else {
      halves.resize(floats.size());
      std::transform(floats.begin(), floats.end(), halves.begin(), to_bfloat16);
      write_run(out, halves);
    }
    count -= run;
  }
}

std::uint64_t elements(const spec::ExpectedTensor& tensor) {
  std::uint64_t count = 1;
  for (const auto extent : tensor.shape)
    count *= static_cast<std::uint64_t>(extent);
  return count;
}

std::uint64_t write_random_weights(const std::filesystem::path& file,
                                   const std::vector<spec::ExpectedTensor>& tensors,
                                   spec::Dtype dtype, RandomValues& values) {
  nlohmann::json header;
  std::uint64_t end = 0;
  for (const auto& tensor : tensors) {
    const auto begin = end;
    end += elements(tensor) * spec::dtype_bytes(dtype);
    header[tensor.name] = {{"dtype", dtype == spec::Dtype::float32 ? "F32" : "BF16"},
                           {"shape", tensor.shape},
                           {"data_offsets", {begin, end}}};
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t size = text.size();
  std::ofstream out(file, std::ios::binary);
  out.write(reinterpret_cast<const char*>(&size), sizeof size);
  out << text;
  for (const auto& tensor : tensors)
    write_tensor(out, tensor, dtype, values);
  out.close();
  if (!out) throw std::runtime_error("[tests] " + file.string() + ": cannot be written");
  return end;
}

}  // namespace troupe::testing
