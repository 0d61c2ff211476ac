#pragma once
#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "controller/mesh/mesh.h"
#include "tests/tensor/ranks.h"

namespace troupe::actors::testing {

inline void wait_long(const tensor::Work& work) {
  work.wait(tensor::within(std::chrono::seconds(60)));
}

/// The groups of one rank of a mesh, as a plan gives them to an actor: null where it is alone.
class MeshGroups {
 public:
  MeshGroups(tensor::testing::Member& member, const mesh::Mesh& mesh)
      : member_(member), mesh_(mesh) {}

  std::shared_ptr<tensor::Group> get(mesh::Axis axis) {
    const auto ranks = mesh_.group_of(axis, member_.rank);
    if (ranks.size() == 1) return nullptr;
    std::vector<std::string> addresses;
    std::string name = mesh::to_string(axis);
    for (const int rank : ranks) {
      addresses.push_back(member_.addresses[rank]);
      name.append(" ").append(std::to_string(rank));
    }
    const auto own = std::find(ranks.begin(), ranks.end(), member_.rank) - ranks.begin();
    return member_.device.connect(name, static_cast<int>(own), addresses,
                                  tensor::within(std::chrono::seconds(60)));
  }

 private:
  tensor::testing::Member& member_;
  const mesh::Mesh& mesh_;
};

/// Groups must outlive what peers still wait for.
inline void meet(tensor::testing::Member& member) {
  wait_long(member.group.all_reduce(at::zeros({1}), tensor::ReduceOp::sum));
}

}  // namespace troupe::actors::testing
