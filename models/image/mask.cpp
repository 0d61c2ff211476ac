#include "models/image/mask.h"

#include <ATen/ATen.h>

#include <stdexcept>

namespace troupe::models {

at::Tensor latent_mask(const at::Tensor& rgb, std::int64_t latent_height,
                       std::int64_t latent_width) {
  if (rgb.dim() != 3 || rgb.size(2) != 3 || rgb.scalar_type() != at::kByte || latent_height < 1 ||
      latent_width < 1 || rgb.size(0) % latent_height != 0 || rgb.size(1) % latent_width != 0) {
    throw std::invalid_argument(
        "[latent_mask] uint8 [H, W, 3] is needed, multiples of the latents' sides");
  }
  const auto pixels = rgb.slice(0, 0, at::nullopt, rgb.size(0) / latent_height)
                          .slice(1, 0, at::nullopt, rgb.size(1) / latent_width)
                          .to(at::kInt)
                          .unbind(2);
  // ITU-R 601, in fixed point of 16 bits.
  const auto gray =
      (pixels[0] * 19595 + pixels[1] * 38470 + pixels[2] * 7471 + 0x8000).bitwise_right_shift(16);
  return gray.ge(128).to(at::kFloat).unsqueeze(0).unsqueeze(0);
}

}  // namespace troupe::models
