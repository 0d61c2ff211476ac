#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace troupe::web {

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
