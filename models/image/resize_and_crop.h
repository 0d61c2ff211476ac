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

}  // namespace troupe::models
