#pragma once
// For classes that ask for torch. The one public header that needs more than the standard library:
// LibTorch's ATen.
#include <ATen/ATen.h>

#include <stdexcept>
#include <string>
#include <utility>

#include "troupe/actor_values.h"

namespace troupe {

namespace detail {
inline constexpr std::pair<const char*, at::ScalarType> kDtypes[] = {
    {"float32", at::kFloat},     {"float64", at::kDouble}, {"float16", at::kHalf},
    {"bfloat16", at::kBFloat16}, {"int8", at::kChar},      {"int16", at::kShort},
    {"int32", at::kInt},         {"int64", at::kLong},     {"uint8", at::kByte},
    {"bool", at::kBool}};
}  // namespace detail

/// A tensor's numbers, copied to the host. Throws std::invalid_argument for a dtype that Array does
/// not know.
inline Array to_array(const at::Tensor& tensor) {
  for (const auto& [name, type] : detail::kDtypes) {
    if (tensor.scalar_type() != type) continue;
    const at::Tensor flat = tensor.detach().to(at::kCPU).contiguous();
    Array array{name, flat.sizes().vec(), {}};
    array.bytes.assign(static_cast<const char*>(flat.const_data_ptr()), flat.nbytes());
    return array;
  }
  throw std::invalid_argument(std::string("[array] cannot hold ") +
                              c10::toString(tensor.scalar_type()));
}

/// A tensor of its own on the host. Throws std::invalid_argument when the dtype is unknown or the
/// bytes do not fill the shape.
inline at::Tensor to_tensor(const Array& array) {
  for (const auto& [name, type] : detail::kDtypes) {
    if (array.dtype != name) continue;
    for (const auto size : array.shape) {
      if (size < 0) throw std::invalid_argument("[array] has a negative size");
    }
    at::Tensor tensor = at::empty(array.shape, at::TensorOptions().dtype(type));
    if (tensor.nbytes() != array.bytes.size()) {
      throw std::invalid_argument("[array] has " + std::to_string(array.bytes.size()) +
                                  " bytes, its shape needs " + std::to_string(tensor.nbytes()));
    }
    if (!array.bytes.empty())
      std::memcpy(tensor.mutable_data_ptr(), array.bytes.data(), array.bytes.size());
    return tensor;
  }
  throw std::invalid_argument("[array] dtype " + array.dtype + " is not known here");
}

/// Tensors as arguments and results: on the way they are Arrays.
template <>
struct Value<at::Tensor> {
  static void write(ValueWriter& out, const at::Tensor& tensor) {
    Value<Array>::write(out, to_array(tensor));
  }
  static void read(ValueReader& in, at::Tensor& tensor) {
    Array array;
    Value<Array>::read(in, array);
    tensor = to_tensor(array);
  }
  static void name(std::string& out, int depth) { Value<Array>::name(out, depth); }
};

}  // namespace troupe
