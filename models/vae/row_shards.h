#pragma once
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

}  // namespace troupe::models
