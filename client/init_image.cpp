#include "client/init_image.h"

#include <boost/crc.hpp>
#include <cstdint>
#include <stdexcept>
#include <string_view>

#include "base/format.h"
#include "models/image/picture_file.h"
#include "models/image/png_text.h"

namespace troupe::client {

namespace {

using models::kPngSignature;
using models::png_number;

constexpr std::size_t kHeaderData = 13;

std::uint32_t checksum(std::string_view bytes) {
  boost::crc_32_type sum;
  sum.process_bytes(bytes.data(), bytes.size());
  return sum.checksum();
}

bool is_name(std::string_view name) {
  for (const char letter : name) {
    const char lower = static_cast<char>(letter | 0x20);
    if (lower < 'a' || lower > 'z') return false;
  }
  return true;
}

/// True if a picture cannot be read without the chunk; the case of the name's first letter says so.
bool is_critical(std::string_view name) {
  return name[0] >= 'A' && name[0] <= 'Z';
}

/// Returns what is wrong with a PNG, whose signature is right; "" if nothing is.
std::string wrong_with_png(std::string_view png) {
  bool pixels = false;
  for (std::size_t at = kPngSignature.size(); true;) {
    const std::string place = fmt::format(" at byte {}", at);
    if (png.size() < at + models::kPngChunkFrame) return "is cut off" + place + ", before its end";
    const std::uint32_t length = png_number(png, at);
    const auto name = png.substr(at + 4, 4);
    if (!is_name(name)) return "has no chunk" + place + ", where one should begin";
    if (length > png.size() - at - models::kPngChunkFrame) {
      return fmt::format("is cut off: its {} chunk{} has {} bytes, {} are left", name, place,
                         length, png.size() - at - 8);
    }
    if ((at == kPngSignature.size()) != (name == "IHDR") ||
        (name == "IHDR" && length != kHeaderData))
      return "has no proper header chunk (IHDR)";
    if (is_critical(name) &&
        checksum(png.substr(at + 4, length + 4)) != png_number(png, at + 8 + length))
      return "is damaged: its " + std::string(name) + " chunk" + place + " fails its checksum";
    pixels = pixels || name == "IDAT";
    if (name == "IEND") return pixels ? "" : "has no pixels (IDAT)";
    at += models::kPngChunkFrame + length;
  }
}

}  // namespace
namespace {

std::optional<Error> check_picture(const std::string& field, std::string_view file) {
  if (file.empty()) return {};
  if (file.starts_with(models::kPngSignature)) {
    const auto wrong = wrong_with_png(file);
    if (!wrong.empty()) return Error{ErrorCode::bad_request, field + " " + wrong, field};
  }
  try {
    models::read_picture_header(file);
    return {};
  } catch (const std::runtime_error& error) {
    return Error{ErrorCode::bad_request, field + " " + error.what(), field};
  }
}

}  // namespace

std::optional<Error> check_init_image(const ImageRequest& request) {
  if (!request.init_image.empty() && request.init_latents)
    return Error{ErrorCode::bad_request, "init_image and init_latents do not go together",
                 "init_image"};
  if (!request.mask_image.empty() && request.init_image.empty())
    return Error{ErrorCode::bad_request,
                 "mask_image needs init_image, the picture that it is laid over", "mask_image"};
  if (auto error = check_picture("init_image", request.init_image)) return error;
  return check_picture("mask_image", request.mask_image);
}

}  // namespace troupe::client
