#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <string_view>

#include "models/image/png_text.h"

namespace troupe::models {

/// Decoded pictures [B, C, H, W] around [-1, 1], any floating dtype and device, to uint8 [B, H, W,
/// C] on the CPU: halved and shifted to [0, 1], clamped, times 255, ties to even. Throws
/// std::invalid_argument for another number of dimensions.
at::Tensor to_uint8(const at::Tensor& decoded);

/// A PNG file of `rgb`, uint8 [H, W, 3] on the CPU, with its text chunks as add_png_text lays them
/// down. Throws std::invalid_argument for another tensor and as add_png_text does.
std::string encode_png(const at::Tensor& rgb, const PngText& text);

/// The pixels of a PNG, JPEG or WebP as load_picture has them, uint8 [H, W, 3] on the CPU. `tick`
/// is called every few rows. Throws as load_picture does, and what `tick` throws.
at::Tensor decode_picture(std::string_view file, const std::function<void()>& tick = {});

}  // namespace troupe::models
