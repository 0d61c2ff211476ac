#pragma once
#include <string>
#include <string_view>

#include "web/calls.h"

namespace troupe::web {

/// A PNG as the kind of file that is asked for; as PNG it stays as it is, with its parameters.
/// Throws std::runtime_error for a PNG that cannot be read, and where the format cannot hold it.
std::string picture_file(std::string_view png, const PictureKind& kind);

/// The PNG of a picture that is a PNG (which stays as it is), a JPEG or a WebP. Throws
/// std::runtime_error for another file, a damaged one, and more than 2^25 pixels of a JPEG or WebP.
std::string to_png(const std::string& file);

/// What a PNG with alpha says as a mask, where OpenAI's API paints what is transparent: a PNG that
/// is white there. One without alpha stays as it is. Throws as to_png, also for a JPEG or WebP.
std::string mask_of_alpha(const std::string& png);

/// NumPy's file of float32 values. Source: NumPy's format 1.0.
std::string npy_file(const Latents& latents);

}  // namespace troupe::web
