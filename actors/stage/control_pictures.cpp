#include "actors/stage/control_pictures.h"

#include <ATen/ATen.h>

#include "actors/stage/encode_picture.h"
#include "models/image/resize.h"

namespace troupe::actors {

at::Tensor ControlPictures::take(std::size_t number) {
  const auto& request = job_.begin.request;
  if (request.control_images.at(number).blob == 0)
    return at::zeros({1, 3, request.height, request.width});
  return models::to_unit_range(
      read_resized(job_, files_.at(number), "a control picture", {request.height, request.width}));
}

}  // namespace troupe::actors
