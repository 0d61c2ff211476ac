#include "models/dit/ports.h"

#include <ATen/ATen.h>

#include <cmath>
#include <optional>

#include "kernels/attention.h"

namespace troupe::models {

at::Tensor LocalAttention::attend(int, const at::Tensor& qkv, Attend to) {
  std::optional<at::Tensor> bias;
  if (text_.defined() && to == Attend::everything) {
    bias = at::zeros({qkv.size(0), qkv.size(1)}, qkv.options().dtype(at::kFloat));
    bias->slice(1, 0, text_.size(1)).masked_fill_(text_.logical_not(), -INFINITY);
  }
  return kernels::attention(qkv.select(2, 0), qkv.select(2, 1), qkv.select(2, 2),
                            1.0 / std::sqrt(static_cast<double>(qkv.size(4))), bias);
}

}  // namespace troupe::models
