#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace troupe::models {

/// Returns the latents that are painted anew under a mask of the picture's size, uint8 [H, W, 3] on
/// the CPU: float32 [1, 1, latent_height, latent_width], 1 where the pixel that a latent begins
/// with is at least half as bright as white, else 0. This follows diffusers' inpainting pipelines:
/// Pillow's gray, cut at one half, the nearest pixel. Throws std::invalid_argument for another
/// tensor.
at::Tensor latent_mask(const at::Tensor& rgb, std::int64_t latent_height,
                       std::int64_t latent_width);

}  // namespace troupe::models
