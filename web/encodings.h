#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "troupe/client.h"

namespace troupe::web {

/// RFC 4648, with padding.
std::string base64(std::string_view bytes);
/// Returns two lower-case digits per byte.
std::string hex(std::string_view bytes);
/// Decodes base64, also of a data: URL, whose beginning is left out; spaces and line ends are
/// skipped. Returns nothing if the text is not base64.
std::optional<std::string> from_base64(std::string_view text);

/// Returns latents of a .npy file's bytes: float32, little-endian, row-major, four dimensions, all
/// values finite. Throws std::runtime_error saying what is otherwise.
Latents latents_from_npy(const std::string& bytes);

/// A part of a multipart/form-data body.
struct FormPart {
  std::string name;
  std::string file;  // its file's name; "" = a plain field
  std::string bytes;
};

/// Source: RFC 7578, RFC 2046 section 5.1. At most 64 parts. Throws ApiError 400 for a content type
/// without a boundary, and for a body that does not follow it.
std::vector<FormPart> parse_multipart(const std::string& content_type, std::string_view body);

}  // namespace troupe::web
