#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <stdexcept>
#include <string>

namespace troupe::models {

/// Bytes of feature maps that a decoder works on at once: on the CPU near what caches hold, so that
/// norm, SiLU and convolution find their rows there (an eighth faster at 1024 pixels than whole
/// feature maps); a GPU wants to be filled.
inline constexpr std::int64_t kCpuChunk = std::int64_t{8} << 20;
inline constexpr std::int64_t kGpuChunk = std::int64_t{512} << 20;

/// A run of rows.
struct RowRun {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
  bool operator==(const RowRun&) const = default;
};

/// The rows of a picture's latents dealt out in runs to `count` shards, as evenly as they go, what
/// is left over to the first. A shard owns the same part of the picture at every resolution: its
/// rows times the scale there.
class RowShards {
 public:
  /// Throws std::invalid_argument where a shard would have no row.
  RowShards(std::int64_t rows, int count) : rows_(rows), count_(count) {
    if (count < 1 || rows < count) {
      throw std::invalid_argument("[RowShards] " + std::to_string(rows) + " rows of latents over " +
                                  std::to_string(count) + " shards: each needs a row at least");
    }
  }

  int count() const { return count_; }
  std::int64_t rows() const { return rows_; }
  RowRun of(int shard) const {
    const std::int64_t each = rows_ / count_;
    const std::int64_t longer = rows_ % count_;
    const std::int64_t begin = shard * each + (shard < longer ? shard : longer);
    return {begin, begin + each + (shard < longer ? 1 : 0)};
  }

 private:
  std::int64_t rows_;
  int count_;
};

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
