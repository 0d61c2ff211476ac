#pragma once
#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>

#include "models/image/png_text.h"

namespace troupe::models {

/// A PNG file of `rgb`, uint8 [H, W, 3] on the CPU, with its text chunks as add_png_text lays them
/// down. Throws std::invalid_argument for another tensor and as add_png_text does.
std::string encode_png(const at::Tensor& rgb, const PngText& text);

/// The pixels of any PNG, uint8 [H, W, 3], converted to 8-bit sRGB; alpha is dropped, not blended.
/// Takes four bytes a pixel, also as long as the tensor lives. Throws std::runtime_error for
/// whatever libpng cannot read and for more than 2^28 pixels.
at::Tensor decode_png(std::string_view png);

}  // namespace troupe::models
