#pragma once

#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kernels/attention.h"

/// Attention through ATen, for what the own code does not cover. Shapes have been checked, and no
/// dimension is 0.
namespace troupe::kernels {

/// key_bias may be undefined.
at::Tensor library_attention(const at::Tensor& q, const std::vector<KeyValueRun>& runs,
                             double scale, const at::Tensor& key_bias);

PartialAttention library_attention_part(const at::Tensor& q, const std::vector<KeyValueRun>& runs,
                                        double scale);

}  // namespace troupe::kernels
