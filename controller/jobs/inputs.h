#pragma once
#include <vector>

#include "transport/wire/job.h"

namespace troupe::jobs {

/// A blob that a request starts from, by the field that names it.
struct InputBlob {
  const char* name;
  std::uint64_t* id;  // 0 = none
};

/// All that a request may have.
inline std::vector<InputBlob> input_blobs(wire::ImageRequest& request) {
  return {{"init_latents", &request.init_latents_blob}, {"init_image", &request.init_image_blob}};
}

}  // namespace troupe::jobs
