#include "models/image/pixels.h"

#include <ATen/ATen.h>

#include <sstream>
#include <stdexcept>

namespace troupe::models {

at::Tensor to_uint8(const at::Tensor& decoded) {
  if (decoded.dim() != 4 || !decoded.is_floating_point()) {
    std::ostringstream text;
    text << "[to_uint8] " << decoded.scalar_type() << " " << decoded.sizes()
         << " is not a floating [B, C, H, W]";
    throw std::invalid_argument(text.str());
  }
  // Scaled in the tensor's own dtype, rounded in float32: the order in which diffusers does it.
  const at::Tensor unit = (decoded * 0.5 + 0.5).clamp(0, 1);
  const at::Tensor rows = unit.to(at::kCPU, at::kFloat).permute({0, 2, 3, 1});
  return (rows * 255).round().to(at::kByte).contiguous();
}

}  // namespace troupe::models
