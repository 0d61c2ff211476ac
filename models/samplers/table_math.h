#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

/// Functions of a schedule's small tables: float32 on the CPU, any shape, rounded once from double.
/// ATen's come from a vendor's library, whose last bit depends on the processor; a schedule that
/// ends near zero signal makes a hundred times as much of it.
namespace troupe::models::table {

at::Tensor sqrt(const at::Tensor& x);
at::Tensor log(const at::Tensor& x);
at::Tensor exp(const at::Tensor& x);
at::Tensor expm1(const at::Tensor& x);
/// Returns n values from `from` to `to` as ATen's vector code computes them: from either end to the
/// middle, product and sum rounded together.
at::Tensor linspace(double from, double to, int64_t n);
/// The values one after the other.
std::vector<float> to_vector(const at::Tensor& x);

}  // namespace troupe::models::table
