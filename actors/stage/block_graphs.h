#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <string>

#include "actors/stage/finite_check.h"
#include "kernels/graph_cache.h"
#include "models/dit/kv_store.h"

namespace troupe::actors {

/// A job's calls of a stage's blocks as recordings that are replayed (docs/gpu.md). What the host
/// decides in a call, which K,V versions there are and how old, is part of a recording's key, and a
/// replay leaves the host as the recorded call left it, so many steps later. Only for calls without
/// transfers. The job's K,V and captions lie where they are as long as it lives.
class BlockGraphs {
 public:
  struct Call {
    std::string what;  // micro-step, batch items, columns: all that decides what is computed but
                       // the K,V's history and the shape of the hidden states
    int step = 0;
    models::BlockRange slots;  // attentions of its blocks
  };
  /// Computes the call, and tells the watch of each layer. Reads what changes from step to step
  /// from memory that does not move.
  using Compute = std::function<at::Tensor(at::Tensor hidden, LayerWatch& layers)>;

  /// `store` is null where nothing is kept from step to step.
  explicit BlockGraphs(models::KvStore* store) : store_(store) {}

  /// Runs compute(hidden), or the recording of an earlier run; `layers` is told of the layers
  /// either way.
  at::Tensor run(const Call& call, const at::Tensor& hidden, LayerWatch& layers,
                 const Compute& compute);

  kernels::GraphCache::Counts counts() const { return cache_.counts(); }
  /// Returns the reason why some call could not be recorded; empty if all could.
  const std::string& failure() const { return cache_.failure(); }

 private:
  models::KvStore* store_;
  kernels::GraphCache cache_;
};

}  // namespace troupe::actors
