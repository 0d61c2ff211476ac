#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "transport/tensor/backend.h"

namespace troupe::testing {

/// One of the processes that share a GPU.
struct Rank {
  tensor::Device& door;
  std::vector<std::string> addresses;
  std::string name;  ///< of this run: prefix of any further group's
  int rank;
  int size;
  at::Device gpu;
  tensor::Group& group;

  /// A further group of some of the ranks, which all of them call; null at the others.
  std::unique_ptr<tensor::Group> among(const std::string& suffix, const std::vector<int>& members);
};

using Scenarios = std::map<std::string, std::function<void(Rank&)>>;

/// What the processes can be told to do together, by name.
const Scenarios& scenarios();

}  // namespace troupe::testing
