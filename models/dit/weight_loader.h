#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "kernels/linear.h"
#include "models/unpack_weights.h"

namespace troupe::models {

class BlockStream;

/// Items [begin, end).
struct Slice {
  int64_t begin = 0;
  int64_t end = 0;
};

/// Source of a transformer's tensors, in its compute dtype and on its device.
struct WeightLoader {
  struct Noted;

  /// Throws for a name that is missing or a shape that differs.
  std::function<at::Tensor(const std::string& name, at::IntArrayRef shape)> get;
  /// Called when the values have been copied elsewhere.
  std::function<void(const std::string& name)> release = [](const std::string&) {};
  /// Returns the values that a part of a matrix, rows [row, …) and columns [column, …), has when it
  /// is used; `part` comes from `get`. Empty: parts stay as they are.
  std::function<at::Tensor(const std::string& name, const at::Tensor& part, int64_t row,
                           int64_t column)>
      adapt = {};
  /// Returns a matrix that products keep as it is stored, or nothing: it is unpacked by `get`.
  /// Empty: all are.
  std::function<std::optional<PackedMatrix>(const std::string& name)> packed = {};
  /// Way in which products of tokens (`joined`, `narrow`) keep their weights; all other tensors are
  /// kept in the compute dtype.
  kernels::WeightType type = kernels::WeightType::as_computed;
  /// Stream of the blocks that are not kept in memory; null: all blocks are kept.
  std::shared_ptr<BlockStream> stream = {};
  /// True if streamed blocks come from copies in the host's memory; else they come from where all
  /// tensors come from.
  bool from_host = false;

  /// Returns the same loader without the stream, for later readings, which a stream keeps.
  WeightLoader detached() const;

  /// A whole tensor, adapted.
  at::Tensor whole(const std::string& name, at::IntArrayRef shape) const;

  /// `name.weight` [out, in] and `name.bias` [out].
  kernels::Linear linear(const std::string& name, int64_t in, int64_t out, bool bias = true) const;
  /// Several products of one input as one, in the order of `names`; of each the outputs in `rows`.
  kernels::Linear joined(const std::vector<std::string>& names, int64_t in, int64_t out_each,
                         bool bias, Slice rows) const;
  /// One product that is stored with others as one of `out` outputs: the outputs in `rows`, one run
  /// behind the other.
  kernels::Linear rows_of(const std::string& name, int64_t in, int64_t out,
                          const std::vector<Slice>& rows, bool bias = false) const;
  /// The two halves, of `wide` outputs each, of a feed-forward in which one gates the other: of
  /// each the outputs in `columns`, the one that gates first. `gate_last`: it is stored last.
  kernels::Linear gated(const std::string& name, int64_t in, int64_t wide, Slice columns, bool bias,
                        bool gate_last) const;
  /// A product that takes only the inputs in `columns` of all; the other shards' are summed to it,
  /// and one of them brings the `bias`. Quantized products add it to the sum, each shard for
  /// itself; `has_bias` is whether there is one at all.
  kernels::Linear narrow(const std::string& name, int64_t in, int64_t out, Slice columns, bool bias,
                         bool has_bias = true) const;
  /// Returns a tensor in memory of its own.
  at::Tensor copy(const std::string& name, at::IntArrayRef shape) const;

 private:
  at::Tensor part(const std::string& name, const at::Tensor& stored, Slice rows,
                  Slice columns) const;
  /// A product of rows and columns of several tensors of `shape`, each run of rows of one tensor
  /// kept as it is stored where that is possible; nothing if it is possible for none of them.
  std::optional<kernels::Linear> kept_packed(const std::vector<std::string>& tensors,
                                             at::IntArrayRef shape, const std::vector<Slice>& rows,
                                             Slice columns, const at::Tensor& bias) const;
  /// Returns the quantized weight of a whole tensor; the caller cuts it.
  kernels::QuantizedWeight quantized(const std::string& tensor, int64_t in, int64_t out) const;
};

/// A loader that notes which tensors it was asked for.
struct WeightLoader::Noted {
  explicit Noted(const WeightLoader& of);
  /// Releases all tensors that were asked for.
  void release() const;

  WeightLoader loader;
  std::set<std::string> names = {};
};

}  // namespace troupe::models
