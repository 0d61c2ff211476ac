#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "actors/stage/job_context.h"
#include "models/spec/resolution_bins.h"
#include "transport/control/blob_store.h"

namespace troupe::actors {

/// Returns the picture, uint8 [H, W, 3], as it is, and drops the file. Throws std::logic_error if
/// it is not here, std::runtime_error if it cannot be decoded. `what`: its name in errors.
at::Tensor read_picture(const JobContext& job, control::BlobBytes& file, const std::string& what);
/// Does the same, and brings it to the given size.
at::Tensor read_resized(const JobContext& job, control::BlobBytes& file, const std::string& what,
                        spec::PixelSize size);

/// Encodes a picture of the request's size together with all ranks that decode. `pixels` [1, 3, H,
/// W] as a model takes them; `noise` [k, C, h, w]. The first of the ranks returns k samples of the
/// encoder's distribution, float32, scaled as a sampler takes latents; the others return an
/// undefined tensor.
at::Tensor encode_together(JobContext& job, const at::Tensor& pixels, const at::Tensor& noise);

}  // namespace troupe::actors
