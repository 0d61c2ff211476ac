#pragma once
#include <string>
#include <string_view>

#include "models/image/load_picture.h"
#include "web/calls.h"

namespace troupe::web {

/// A PNG as the kind of file that is asked for; as PNG it stays as it is, with its parameters.
/// Throws std::runtime_error for a PNG that cannot be read, and where the format cannot hold it.
std::string picture_file(std::string_view png, const PictureKind& kind);

/// The file of a picture as a job takes it: a PNG, JPEG or WebP as it came, or, where its alpha
/// counts, a PNG of what that makes of it. All of it is decoded, so that damage is found here.
/// Throws std::runtime_error as load_picture does.
std::string taken_picture(std::string file, models::AlphaUse alpha = models::AlphaUse::dropped);

/// NumPy's file of float32 values. Source: NumPy's format 1.0.
std::string npy_file(const Latents& latents);

}  // namespace troupe::web
