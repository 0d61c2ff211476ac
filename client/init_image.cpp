#include "client/init_image.h"

#include <stdexcept>
#include <string_view>

#include "client/png_check.h"
#include "models/image/picture_file.h"
#include "models/image/png_text.h"

namespace troupe::client {
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
