#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>

namespace troupe::models {

/// Rows of the neighbours, [1, C, 1, w]; undefined where the picture ends or none was asked for.
struct Halo {
  at::Tensor above, below;
};

/// All that sharding a picture by rows changes in an autoencoder. Shards lie in the order of rows,
/// each with at least one row at every resolution. Every shard makes the same calls in the same
/// order; a call returns when its result is there, and throws where a neighbour is lost.
class HaloPort {
 public:
  virtual ~HaloPort() = default;

  virtual int shard() const = 0;
  virtual int shards() const = 0;

  /// x [1, C, h, w], this shard's rows. `above` asks for the last row of the shard before, `below`
  /// for the first row of the one after.
  virtual Halo exchange(const at::Tensor& x, bool above, bool below) = 0;

  /// Adds up float64 `values` over all shards, in place; every shard gets the same bits.
  virtual void sum(const at::Tensor& values) = 0;

  /// `own` [n, …] of every shard, one after the other along the first dimension. n is the shard's
  /// rows of latents times a number that all shards share.
  virtual at::Tensor gather(const at::Tensor& own) = 0;
};

/// The picture is not sharded.
class WholePicture final : public HaloPort {
 public:
  int shard() const override { return 0; }
  int shards() const override { return 1; }
  Halo exchange(const at::Tensor&, bool, bool) override { return {}; }
  void sum(const at::Tensor&) override {}
  at::Tensor gather(const at::Tensor& own) override { return own; }
};

/// One pass over a network.
struct Pass {
  HaloPort& port;
  /// Convolutions whose input or output is larger are computed in runs of rows about this large, so
  /// that what they need beside input and output does not grow with the picture.
  std::int64_t chunk_bytes;
};

}  // namespace troupe::models
