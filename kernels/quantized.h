#pragma once

#include <ATen/core/Tensor.h>

namespace troupe::kernels {

/// Type in which a matrix product keeps its weight: that of the computation, or numbers of 8 bits
/// with a scale for each output.
enum class WeightType { as_computed, int8, fp8 };

/// weight[o][i] ≈ values[o][i] · scales[o], where scales[o] = largest |weight[o]| / 127, or / 448.
struct QuantizedWeight {
  WeightType type = WeightType::as_computed;
  at::Tensor values;  ///< [out, in] int8, or float8_e4m3fn
  at::Tensor scales;  ///< [out] float32
};

/// weight [out, in] of any floating type. Shards are cut from the result, never quantized by
/// themselves: an output has one scale, whoever computes it.
QuantizedWeight quantize_weight(const at::Tensor& weight, WeightType type);

/// Throws std::runtime_error naming the reason if products with such weights cannot be computed on
/// `device`: int8 is for the CPU, fp8 for GPUs of compute capability 8.9.
void require_weight_type(WeightType type, at::Device device);

/// Returns whether int8 products run on the CPU's dot products of bytes (AVX-512 VNNI). Elsewhere
/// the same integers are summed up in float32, at float32's speed.
bool has_byte_products();

/// Largest magnitude in each row of x [..., in]: [rows] float32, NaN for a row that is not finite.
at::Tensor largest_of_rows(const at::Tensor& x);

/// Returns x · 127 / largest[row] [rows, in] as int8, to nearest; zeros where largest is 0 or not
/// finite.
at::Tensor bytes_of_rows(const at::Tensor& x, const at::Tensor& largest);
/// Returns the same by the largest magnitudes of x's own rows, which are stored in `largest`.
at::Tensor bytes_of_rows(const at::Tensor& x, at::Tensor* largest);

/// Σ q(x)·values over the inputs, for rows that are quantized by `largest` [rows]: int8 gives
/// [rows, out] int32, exact; fp8 float32.
at::Tensor quantized_sums(const at::Tensor& x, const at::Tensor& largest,
                          const QuantizedWeight& weight);

namespace detail {
/// a [rows, depth] · bᵀ, b [out, depth], all int8, as int32: by LibTorch, or exactly in float32.
at::Tensor byte_products(const at::Tensor& a, const at::Tensor& b);
at::Tensor byte_products_in_floats(const at::Tensor& a, const at::Tensor& b);
at::Tensor fp8_sums(const at::Tensor& x, const at::Tensor& largest, const at::Tensor& values);
constexpr double kLargestFp8 = 448;
}  // namespace detail

}  // namespace troupe::kernels
