#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

#include "actors/parallel/wait_for_work.h"
#include "models/vae/autoencoder_kl.h"
#include "models/vae/halo_port.h"
#include "transport/tensor/group.h"

namespace troupe::actors {

/// Rows of one picture over the members of a group: rank r has RowShards(latent_rows, size).of(r).
/// Neighbours exchange rows in one grouped transfer; moments are summed by all_reduce; keys and
/// values come by all_gather. Nothing is negotiated: every size follows from `latent_rows`.
class HaloExchange final : public models::HaloPort {
 public:
  /// `group` outlives this. Throws std::invalid_argument where a rank would have no row.
  HaloExchange(tensor::Group& group, std::int64_t latent_rows, WaitForWork wait);

  int shard() const override { return group_.rank(); }
  int shards() const override { return group_.size(); }
  models::Halo exchange(const at::Tensor& x, bool above, bool below) override;
  void sum(const at::Tensor& values) override;
  at::Tensor gather(const at::Tensor& own) override;

  /// Finished rows of all ranks, `own` [n, C, rows · k, w] on each, as one tensor
  /// [n, C, latent_rows · k, w] at rank 0; undefined elsewhere, where it returns when the rows have
  /// left.
  at::Tensor collect_rows(const at::Tensor& own);

 private:
  std::int64_t unit_of(const at::Tensor& own, int dimension) const;

  tensor::Group& group_;
  models::RowShards rows_;
  WaitForWork wait_;
};

/// The picture of AutoencoderKL::decode_tiled, bit for bit, its tiles computed by the members of a
/// group in turn: [n, C, h·f, w·f] at rank 0, undefined elsewhere. Every rank passes all the
/// latents. `progress` counts this rank's own blocks. Rank 0 holds one tile of each rank at a time.
at::Tensor decode_tiles_together(const models::AutoencoderKL& vae, const at::Tensor& latents,
                                 tensor::Group& group, const WaitForWork& wait,
                                 const models::VaeProgress& progress = nullptr);

/// AutoencoderKL::encode_tiled in the same way: every rank passes the whole pictures, rank 0 has
/// the distribution, the others undefined tensors.
models::LatentDistribution encode_tiles_together(const models::AutoencoderKL& vae,
                                                 const at::Tensor& pictures, tensor::Group& group,
                                                 const WaitForWork& wait,
                                                 const models::VaeProgress& progress = nullptr);

}  // namespace troupe::actors
