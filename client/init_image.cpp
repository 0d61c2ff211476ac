#include "client/init_image.h"

#include <string_view>

#include "base/format.h"
#include "client/png_check.h"
#include "models/image/limits.h"
#include "models/image/png_bytes.h"

namespace troupe::client {
namespace {

struct Format {
  std::string_view beginning;
  const char* name;
};

constexpr Format kOthers[] = {
    {"\xff\xd8\xff", "a JPEG"}, {"GIF8", "a GIF"}, {"RIFF", "a WebP"},     {"BM", "a BMP"},
    {"II*", "a TIFF"},          {"MM", "a TIFF"},  {"<", "an SVG or HTML"}};

std::optional<Error> check_png(const std::string& name, std::string_view image) {
  if (image.empty()) return {};
  if (image.starts_with(models::kPngSignature)) {
    if (image.size() > models::kMaxPngBytes)
      return Error{"bad_request", fmt::format("{} has {} bytes: at most {}", name, image.size(),
                                              models::kMaxPngBytes)};
    const auto wrong = wrong_with_png(image);
    if (!wrong.empty()) return Error{"bad_request", name + " " + wrong};
    return {};
  }
  for (const Format& format : kOthers) {
    if (image.starts_with(format.beginning)) {
      return Error{"bad_request", name + " is " + format.name + " file: only PNG is taken"};
    }
  }
  return Error{"bad_request", name + " is no PNG file"};
}

}  // namespace

std::optional<Error> check_init_image(const ImageRequest& request) {
  if (!request.init_image.empty() && request.init_latents)
    return Error{"bad_request", "init_image and init_latents do not go together"};
  if (!request.mask_image.empty() && request.init_image.empty())
    return Error{"bad_request", "mask_image needs init_image, the picture that it is laid over"};
  if (auto error = check_png("init_image", request.init_image)) return error;
  return check_png("mask_image", request.mask_image);
}

}  // namespace troupe::client
