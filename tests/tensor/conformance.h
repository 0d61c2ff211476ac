#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "transport/tensor/backend.h"

namespace troupe::tensor::testing {

/// One rank of a group that a test has made, whatever the backend, thread or process.
struct Rank {
  Device& door;
  std::vector<std::string> addresses;
  std::string name;  ///< name of this run: prefix of any further group's
  int rank;
  int size;
  at::Device where;  ///< device that tensors lie on
  Group& group;

  /// Makes a further group of some of the ranks, in that order, which all of them call; null at the
  /// others.
  std::unique_ptr<Group> among(const std::string& suffix, const std::vector<int>& members);
};

/// Returns [count] float32 on the rank's device, whose elements tell message and place.
at::Tensor pattern(const Rank& me, std::int64_t count, int seed);
/// Returns [count] on the rank's device, to be received into.
at::Tensor room(const Rank& me, std::int64_t count, at::ScalarType type = at::kFloat);
/// True if the bits are the same, wherever the tensors lie.
bool same_bits(const at::Tensor& a, const at::Tensor& b);

/// Case that every backend must pass: one body, run at all ranks of a group of each size. Throws
/// where the backend does not pass.
struct ConformanceCase {
  std::string name;
  std::vector<int> sizes;
  void (*body)(Rank& me);
  std::string cpu_alone = {};  ///< reason why only backends of CPUs promise it; empty: all do
};
const std::vector<ConformanceCase>& conformance_cases();

}  // namespace troupe::tensor::testing
