#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace troupe::spec {

/// Element types that weights, latents and options may have.
enum class Dtype : std::uint8_t {
  float32,
  bfloat16,
  float16,
  float64,
  int64,
  int32,
  int8,
  uint8,
  boolean
};

/// Size of one element in bytes.
std::size_t dtype_bytes(Dtype dtype);

/// The name used in options and reports: "float32", "bfloat16", ..., "bool".
std::string_view dtype_name(Dtype dtype);

/// The name in a safetensors header: "F32", "BF16", ..., "BOOL".
std::string_view safetensors_dtype_name(Dtype dtype);

/// Reads either kind of name; nothing if it is neither.
std::optional<Dtype> parse_dtype(std::string_view name);

}  // namespace troupe::spec
