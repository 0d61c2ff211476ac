#include "models/spec/tensor_values.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "base/format.h"
#include "base/numbers.h"
#include "models/spec/lora_spec.h"

namespace troupe::spec {
namespace {

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

std::vector<float> any_values(const TensorEntry& entry, std::string_view bytes) {
  const char* data = bytes.data() + entry.begin;
  const std::size_t count = entry.elements();
  const auto as_is = [](auto value) { return value; };
  switch (entry.dtype) {
    case Dtype::float32:
      return converted<float>(data, count, as_is);
    case Dtype::bfloat16:
      return converted<std::uint16_t>(data, count, from_bfloat16);
    case Dtype::float16:
      return converted<std::uint16_t>(data, count, from_float16);
    case Dtype::float64:
      return converted<double>(data, count, as_is);
    case Dtype::int64:
      return converted<std::int64_t>(data, count, as_is);
    case Dtype::int32:
      return converted<std::int32_t>(data, count, as_is);
    case Dtype::int8:
      return converted<std::int8_t>(data, count, as_is);
    case Dtype::uint8:
    case Dtype::boolean:
      return converted<std::uint8_t>(data, count, as_is);
    default:
      break;
  }
  throw std::runtime_error("tensor " + in_quotes(entry.name) + " has dtype " +
                           std::string(dtype_name(entry.dtype)) +
                           ", which only a model's weights may have");
}

}  // namespace

std::vector<float> float_values(const TensorEntry& entry, std::string_view file) {
  if (entry.stored_as != StoredAs::as_is || entry.end > file.size())
    throw std::runtime_error("tensor " + in_quotes(entry.name) +
                             " does not lie row by row in the file");
  auto values = any_values(entry, file);
  if (const auto odd = first_not_finite(values))
    throw std::runtime_error(
        fmt::format("tensor {} is not finite at element {}", in_quotes(entry.name), *odd));
  return values;
}

}  // namespace troupe::spec
