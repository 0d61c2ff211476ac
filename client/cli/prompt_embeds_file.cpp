#include "client/cli/prompt_embeds_file.h"

#include <bit>
#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "base/finite.h"
#include "base/format.h"
#include "base/read_file.h"
#include "models/spec/weight_index.h"

namespace troupe::cli {
namespace {

constexpr std::size_t kLargestEmbeds = std::size_t{1} << 30;

static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");

float from_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

float from_float16(std::uint16_t bits) {
  const int exponent = bits >> 10 & 0x1f;
  const int fraction = bits & 0x3ff;
  const float sign = bits >> 15 ? -1.0F : 1.0F;
  if (exponent == 0x1f) return sign * (fraction ? NAN : INFINITY);
  if (exponent == 0) return sign * std::ldexp(static_cast<float>(fraction), -24);
  return sign * std::ldexp(static_cast<float>(fraction + 0x400), exponent - 25);
}

template <class Stored, class Convert>
std::vector<float> converted(const char* bytes, std::size_t count, Convert convert) {
  std::vector<float> values(count);
  for (std::size_t i = 0; i < count; ++i) {
    Stored stored;
    std::memcpy(&stored, bytes + i * sizeof stored, sizeof stored);
    values[i] = static_cast<float>(convert(stored));
  }
  return values;
}

std::vector<float> values_of(const spec::TensorEntry& entry, const std::string& bytes) {
  const char* data = bytes.data() + entry.begin;
  const auto count = entry.bytes() / spec::dtype_bytes(entry.dtype);
  const auto as_is = [](auto value) { return value; };
  switch (entry.dtype) {
    case spec::Dtype::float32:
      return converted<float>(data, count, as_is);
    case spec::Dtype::bfloat16:
      return converted<std::uint16_t>(data, count, from_bfloat16);
    case spec::Dtype::float16:
      return converted<std::uint16_t>(data, count, from_float16);
    case spec::Dtype::float64:
      return converted<double>(data, count, as_is);
    case spec::Dtype::int64:
      return converted<std::int64_t>(data, count, as_is);
    case spec::Dtype::int32:
      return converted<std::int32_t>(data, count, as_is);
    case spec::Dtype::int8:
      return converted<std::int8_t>(data, count, as_is);
    case spec::Dtype::uint8:
    case spec::Dtype::boolean:
      break;
  }
  return converted<std::uint8_t>(data, count, as_is);
}

}  // namespace

std::map<std::string, Tensor> read_prompt_embeds(const std::string& path) {
  const std::string bytes = read_file(path, kLargestEmbeds);
  const auto index = spec::WeightIndex::read_file(path);
  std::map<std::string, Tensor> tensors;
  for (const auto& entry : index.tensors()) {
    const auto refuse = [&](const std::string& why) {
      throw std::runtime_error("[prompt embeds] " + path + ": tensor \"" + entry.name + "\" " +
                               why);
    };
    if (entry.end > bytes.size()) refuse("ends behind the file, which became shorter");
    Tensor tensor{.shape = entry.shape, .data = values_of(entry, bytes)};
    if (const auto odd = first_not_finite(tensor.data))
      refuse(fmt::format("is not finite at element {}", *odd));
    tensors.emplace(entry.name, std::move(tensor));
  }
  if (tensors.empty()) throw std::runtime_error("[prompt embeds] " + path + ": has no tensor");
  return tensors;
}

}  // namespace troupe::cli
