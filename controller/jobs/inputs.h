#pragma once
#include <cstdint>
#include <type_traits>
#include <vector>

#include "transport/wire/job.h"

namespace troupe::jobs {

/// A blob that a request starts from, by the field that names it.
template <class Number>
struct InputBlob {
  const char* name;
  Number* id;  // 0 = none
  Number* bytes;
};

/// Returns all inputs that a request may have.
template <class Request>
auto input_blobs(Request& request) {
  using Number = std::remove_pointer_t<decltype(&request.init_latents_blob)>;
  return std::vector<InputBlob<Number>>{
      {"init_latents", &request.init_latents_blob, &request.init_latents_bytes},
      {"init_image", &request.init_image_blob, &request.init_image_bytes},
      {"mask_image", &request.mask_image_blob, &request.mask_image_bytes},
      {"prompt_embeds", &request.prompt_embeds_blob, &request.prompt_embeds_bytes}};
}

}  // namespace troupe::jobs
