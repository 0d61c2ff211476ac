#include "models/dit/ports.h"

#include <cmath>

#include "kernels/attention.h"

namespace troupe::models {

at::Tensor LocalAttention::attend(int, const at::Tensor& qkv, Attend) {
  return kernels::attention(qkv.select(2, 0), qkv.select(2, 1), qkv.select(2, 2),
                            1.0 / std::sqrt(static_cast<double>(qkv.size(4))));
}

}  // namespace troupe::models
