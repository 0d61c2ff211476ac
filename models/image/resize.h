#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>

namespace troupe::models {

/// Pictures [B, C, H, W], floating, to [B, C, height, width]: scaled bilinearly (pixel centres, no
/// antialiasing) until both sides suffice, then cut out of the middle, the odd pixel falling away
/// at the end. As they are where the size is right already. Throws std::invalid_argument for
/// another number of dimensions or a size that is not positive.
///
/// Equals PixArtImageProcessor.resize_and_crop_tensor of diffusers 0.42 except where that rounds
/// the scaled side one pixel short of the wanted one (a binned 464 scaled to 477, say) and so
/// returns a sliver or nothing: here the side is as wanted.
at::Tensor resize_and_crop(const at::Tensor& pictures, std::int64_t height, std::int64_t width);

/// A picture, uint8 [H, W, 3] on the CPU, in another size by a Lanczos filter of three lobes, to
/// the bit as Pillow 13's `resize` does it: one axis, then the other, in fixed point of 22 bits,
/// rounded to 8 bits in between. An axis that keeps its size is left alone.
at::Tensor resize_lanczos(const at::Tensor& rgb, std::int64_t height, std::int64_t width);
/// The same by a cubic filter of two lobes, Pillow's BICUBIC.
at::Tensor resize_bicubic(const at::Tensor& rgb, std::int64_t height, std::int64_t width);

/// The same by Pillow's bicubic filter.
at::Tensor resize_bicubic(const at::Tensor& rgb, std::int64_t height, std::int64_t width);

/// A picture, uint8 [H, W, 3], as a model takes it: float32 [1, 3, height, width] in [-1, 1].
at::Tensor to_model_range(const at::Tensor& rgb);
/// The same as a ControlNet takes it, in [0, 1].
at::Tensor to_unit_range(const at::Tensor& rgb);

/// Returns the pixels that are painted anew under a mask, uint8 [H, W, 3] on the CPU: float32 [1,
/// 1, H, W], 1 where a pixel is at least half as bright as white, else 0. This follows diffusers'
/// inpainting pipelines: Pillow's gray, cut at one half. Throws std::invalid_argument for another
/// tensor.
at::Tensor painted_pixels(const at::Tensor& rgb);

/// Returns the latents that are painted anew under a mask of the picture's size, uint8 [H, W, 3] on
/// the CPU: float32 [1, 1, latent_height, latent_width], 1 where the pixel that a latent begins
/// with is, else 0; diffusers calls that pixel the nearest one. Throws std::invalid_argument for
/// another tensor.
at::Tensor latent_mask(const at::Tensor& rgb, std::int64_t latent_height,
                       std::int64_t latent_width);

}  // namespace troupe::models
