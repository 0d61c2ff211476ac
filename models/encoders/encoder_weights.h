#pragma once

#include <ATen/ATen.h>

#include <map>
#include <string>

#include "models/safetensors.h"

namespace troupe::models {

/// The weights of a text encoder as it computes with them: those of the block at hand, or all that
/// it has used so far where they stay.
class EncoderWeights {
 public:
  EncoderWeights(WeightStore store, at::ScalarType dtype, at::Device device);

  const spec::WeightIndex& index() const { return store_.index(); }
  bool contains(const std::string& name) const { return store_.contains(name); }

  /// Makes all weights that are used from now on stay in memory.
  void stay() { stays_ = true; }
  /// Returns the bytes of the weights that are in memory now.
  std::uint64_t bytes() const;

  /// Returns the tensor in the compute type on the device. Throws std::runtime_error naming a value
  /// that is not finite.
  const at::Tensor& get(const std::string& name);
  /// Returns rows [n, width] of a table, for ids [n] int64 on the CPU; the table itself never
  /// stays. Throws as `get`, but only for values of these rows, and std::invalid_argument,
  /// beginning with `[who]`, for an id that the table lacks.
  at::Tensor rows(const std::string& table, const at::Tensor& ids, const char* who);
  /// Ends a block: its weights leave memory, unless they stay.
  void end_block();

 private:
  WeightStore store_;
  at::ScalarType dtype_;
  at::Device device_;
  bool stays_ = false;
  std::map<std::string, at::Tensor> held_;
};

}  // namespace troupe::models
