#pragma once
#include <ATen/core/Tensor.h>

#include <functional>

#include "transport/control/blob_channel.h"
#include "transport/wire/actor_messages.h"

namespace troupe::actors {

/// Latents and sampler history at a boundary, put together from its pieces.
struct BoundaryShape {
  std::int64_t channels = 0;
  std::int64_t latent_height = 0;
  std::int64_t latent_width = 0;
  std::int64_t patch_size = 1;  // latent rows of a token row
};

/// Float32 [1 + history, pictures of this replica, channels, latent height, latent width] from the
/// pieces that BeginJob names. Throws std::runtime_error naming the piece that does not come or
/// fit, or what no piece covers.
at::Tensor assemble_boundary(const wire::BeginJob& begin, const BoundaryShape& shape,
                             const std::function<control::BlobResult(const wire::BlobRef&)>& fetch);

}  // namespace troupe::actors
