#pragma once
#include <cstdint>
#include <type_traits>
#include <vector>

#include "transport/wire/job.h"
#include "transport/wire/job_field.h"

namespace troupe::jobs {

/// A blob that a request starts from, and the field that it is sent along by.
template <class Number>
struct InputBlob {
  wire::JobField field;
  Number* id;  // 0 = none
  Number* bytes;
};

/// Returns all inputs that a request may have.
template <class Request>
auto input_blobs(Request& request) {
  using Number = std::remove_pointer_t<decltype(&request.init_latents_blob)>;
  return std::vector<InputBlob<Number>>{
      {wire::JobField::init_latents, &request.init_latents_blob, &request.init_latents_bytes},
      {wire::JobField::init_image, &request.init_image_blob, &request.init_image_bytes},
      {wire::JobField::mask_image, &request.mask_image_blob, &request.mask_image_bytes},
      {wire::JobField::prompt_embeds, &request.prompt_embeds_blob, &request.prompt_embeds_bytes}};
}

}  // namespace troupe::jobs
