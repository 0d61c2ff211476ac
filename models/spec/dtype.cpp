#include "models/spec/dtype.h"

#include <array>

namespace troupe::spec {
namespace {

struct Row {
  Dtype dtype;
  std::size_t bytes;
  std::string_view name;
  std::string_view safetensors_name;
};

constexpr std::array<Row, 9> kRows{{
    {Dtype::float32, 4, "float32", "F32"},
    {Dtype::bfloat16, 2, "bfloat16", "BF16"},
    {Dtype::float16, 2, "float16", "F16"},
    {Dtype::float64, 8, "float64", "F64"},
    {Dtype::int64, 8, "int64", "I64"},
    {Dtype::int32, 4, "int32", "I32"},
    {Dtype::int8, 1, "int8", "I8"},
    {Dtype::uint8, 1, "uint8", "U8"},
    {Dtype::boolean, 1, "bool", "BOOL"},
}};

const Row& row(Dtype dtype) {
  return kRows.at(static_cast<std::size_t>(dtype));
}

}  // namespace

std::size_t dtype_bytes(Dtype dtype) {
  return row(dtype).bytes;
}

std::string_view dtype_name(Dtype dtype) {
  return row(dtype).name;
}

std::string_view safetensors_dtype_name(Dtype dtype) {
  return row(dtype).safetensors_name;
}

std::optional<Dtype> parse_dtype(std::string_view name) {
  for (const Row& row : kRows) {
    if (name == row.name || name == row.safetensors_name) return row.dtype;
  }
  return std::nullopt;
}

}  // namespace troupe::spec
