#include "web/encodings.h"

#include <sodium.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <regex>
#include <stdexcept>

#include "base/format.h"
#include "base/numbers.h"
#include "web/api_error.h"

namespace troupe::web {

std::string base64(std::string_view bytes) {
  constexpr int kVariant = sodium_base64_VARIANT_ORIGINAL;
  std::string text(sodium_base64_encoded_len(bytes.size(), kVariant), '\0');
  sodium_bin2base64(text.data(), text.size(), reinterpret_cast<const unsigned char*>(bytes.data()),
                    bytes.size(), kVariant);
  text.pop_back();  // the terminating zero
  return text;
}

std::string hex(std::string_view bytes) {
  std::string text(bytes.size() * 2 + 1, '\0');
  sodium_bin2hex(text.data(), text.size(), reinterpret_cast<const unsigned char*>(bytes.data()),
                 bytes.size());
  text.pop_back();  // the terminating zero
  return text;
}

std::optional<std::string> from_base64(std::string_view text) {
  constexpr std::string_view kMark = ";base64,";
  if (text.starts_with("data:")) {
    const std::size_t mark = text.substr(0, 256).find(kMark);
    if (mark == text.npos) return std::nullopt;
    text.remove_prefix(mark + kMark.size());
  }
  std::string bytes(text.size() / 4 * 3 + 3, '\0');
  std::size_t size = 0;
  const char* end = nullptr;
  for (const int variant :
       {sodium_base64_VARIANT_ORIGINAL, sodium_base64_VARIANT_ORIGINAL_NO_PADDING}) {
    if (sodium_base642bin(reinterpret_cast<unsigned char*>(bytes.data()), bytes.size(), text.data(),
                          text.size(), " \r\n", &size, &end, variant) != 0 ||
        end != text.data() + text.size())
      continue;
    bytes.resize(size);
    return bytes;
  }
  return std::nullopt;
}

namespace {

static_assert(std::endian::native == std::endian::little, "\"<f4\" is little-endian");

// Magic, version, length of the header: docs of numpy.lib.format.
constexpr std::size_t kMagic = 6, kVersion = 8;
constexpr std::size_t kMostHeader = 1024;
constexpr std::int64_t kMostElements = std::int64_t{1} << 28;

}  // namespace

Latents latents_from_npy(const std::string& bytes) {
  if (bytes.size() < kVersion + 4 || bytes.compare(0, kMagic, "\x93NUMPY") != 0)
    throw std::runtime_error("is no .npy file");
  const int version = static_cast<unsigned char>(bytes[kMagic]);
  if (version < 1 || version > 3) throw std::runtime_error("is a .npy file of another version");
  std::uint32_t length = 0;
  const std::size_t begin = kVersion + (version == 1 ? 2 : 4);
  std::memcpy(&length, bytes.data() + kVersion, begin - kVersion);
  if (length > kMostHeader || length > bytes.size() - begin)
    throw std::runtime_error("is a .npy file that was cut");
  const std::string header = bytes.substr(begin, length);

  std::smatch found;
  if (!std::regex_search(header, found, std::regex("'descr': *'<f4'")))
    throw std::runtime_error("is not float32");
  if (!std::regex_search(header, found, std::regex("'fortran_order': *False")))
    throw std::runtime_error("is not row-major");
  static const std::regex kShape("'shape': *\\((\\d+), *(\\d+), *(\\d+), *(\\d+),?\\)");
  if (!std::regex_search(header, found, kShape))
    throw std::runtime_error("has not the shape [n, channels, height / 8, width / 8]");
  Latents latents;
  std::int64_t elements = 1;
  for (std::size_t axis = 1; axis <= 4; ++axis) {
    const auto size = parse_number<std::int64_t>(found[axis].str());
    if (!size || *size < 1 || *size > kMostElements / elements)
      throw std::runtime_error("has a shape that is empty or too large");
    elements *= *size;
    latents.shape.push_back(*size);
  }
  const std::size_t data = static_cast<std::size_t>(elements) * sizeof(float);
  if (bytes.size() - begin - length != data)
    throw std::runtime_error(fmt::format("has {} bytes of values, its shape needs {}",
                                         bytes.size() - begin - length, data));
  latents.data.resize(static_cast<std::size_t>(elements));
  std::memcpy(latents.data.data(), bytes.data() + begin + length, data);
  if (const auto odd = first_not_finite(latents.data))
    throw std::runtime_error(fmt::format("is not finite at element {}", *odd));
  return latents;
}

namespace {

constexpr std::size_t kMostParts = 64;
constexpr std::size_t kMostPartHeader = 8192;

std::string lower(std::string_view text) {
  std::string out(text);
  for (char& letter : out)
    if (letter >= 'A' && letter <= 'Z') letter = static_cast<char>(letter | 0x20);
  return out;
}

/// The value of NAME=VALUE or NAME="VALUE" among the parameters of a header's value, or "".
std::string parameter(std::string_view header, std::string_view name) {
  std::size_t at = header.find(';');
  while (at != header.npos) {
    ++at;
    while (at < header.size() && (header[at] == ' ' || header[at] == '\t'))
      ++at;
    const std::size_t equals = header.find('=', at);
    if (equals == header.npos) return "";
    const bool found = lower(header.substr(at, equals - at)) == name;
    std::string value;
    at = equals + 1;
    if (at < header.size() && header[at] == '"') {
      for (++at; at < header.size() && header[at] != '"'; ++at) {
        if (header[at] == '\\' && at + 1 < header.size()) ++at;
        value += header[at];
      }
      at = header.find(';', at);
    } else {
      const std::size_t end = std::min(header.find(';', at), header.size());
      value = header.substr(at, end - at);
      while (!value.empty() && value.back() == ' ')
        value.pop_back();
      at = header.find(';', at);
    }
    if (found) return value;
  }
  return "";
}

ApiError wrong(const std::string& why) {
  return {400, ErrorCode::bad_request, "the form " + why};
}

FormPart part_of(std::string_view header, std::string_view bytes) {
  while (!header.empty()) {
    const std::size_t end = std::min(header.find("\r\n"), header.size());
    const std::string_view line = header.substr(0, end);
    header.remove_prefix(std::min(header.size(), end + 2));
    const std::size_t colon = line.find(':');
    if (colon == line.npos || lower(line.substr(0, colon)) != "content-disposition") continue;
    FormPart part{parameter(line, "name"), parameter(line, "filename"), std::string(bytes)};
    if (part.name.empty()) break;
    return part;
  }
  throw wrong("has a part without a name");
}

}  // namespace

std::vector<FormPart> parse_multipart(const std::string& content_type, std::string_view body) {
  if (!lower(content_type).starts_with("multipart/form-data"))
    throw ApiError(415, ErrorCode::bad_request, "this call takes a form: multipart/form-data");
  const std::string boundary = parameter(content_type, "boundary");
  if (boundary.empty() || boundary.size() > 70) throw wrong("has no boundary of 1 to 70 letters");
  const std::string mark = "\r\n--" + boundary;
  // The first mark has no line end before it where nothing stands before the first part.
  std::size_t at = 0;
  if (body.starts_with(std::string_view(mark).substr(2))) {
    at = mark.size() - 2;
  } else {
    at = body.find(mark);
    if (at == body.npos) throw wrong("does not begin with its boundary");
    at += mark.size();
  }
  std::vector<FormPart> parts;
  for (;;) {
    const std::string_view rest = body.substr(at);
    if (rest.starts_with("--")) return parts;
    if (!rest.starts_with("\r\n")) throw wrong("goes on otherwise behind a boundary");
    if (parts.size() >= kMostParts) throw wrong(fmt::format("has more than {} parts", kMostParts));
    const std::size_t end = body.find(mark, at);
    if (end == body.npos) throw wrong("ends before its last boundary");
    const std::size_t blank = body.find("\r\n\r\n", at);
    if (blank == body.npos || blank > end || blank - at > kMostPartHeader)
      throw wrong("has a part without a header's end");
    const std::size_t header = at + 2;
    const std::size_t begin = std::min(blank + 4, end);
    parts.push_back(part_of(body.substr(header, std::max(blank, header) - header),
                            body.substr(begin, end - begin)));
    at = end + mark.size();
  }
}

}  // namespace troupe::web
