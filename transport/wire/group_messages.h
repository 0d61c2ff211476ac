#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "transport/wire/kind.h"

namespace troupe::wire {

/// One tensor-plane group of a deployment, as one member sees it.
struct GroupSpec {
  std::uint32_t id = 0;   // names the group in tasks; unique in the deployment
  std::string name;       // for people and errors: "edge 0→1", "cfg 1,3", "caption 0,1,2,3"
  std::string backend;    // shm | tcp | nccl
  std::int32_t rank = 0;  // the receiver's rank in it
  std::vector<std::string> addresses;  // tensor-plane address of each member, in rank order

  template <class Archive>
  void serialize(Archive& ar) {
    ar(id, name, backend, rank, addresses);
  }
};

/// controller → actor: make the communicators of this deployment's epoch. Answered by
/// GroupsConnected or Failure.
struct ConnectGroups {
  static constexpr Kind kKind = Kind::connect_groups;
  std::uint64_t deployment = 0;
  std::uint64_t epoch = 0;
  std::vector<GroupSpec> groups;
  std::uint32_t deadline_ms = 10000;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(deployment, epoch, groups, deadline_ms);
  }
};

struct GroupsConnected {
  static constexpr Kind kKind = Kind::groups_connected;
  double seconds = 0;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(seconds);
  }
};

/// Edge to or from a stage that is no neighbour: hidden states that blocks here leave and blocks
/// there take up again go past the stages in between.
struct SkipEdge {
  std::uint32_t group = 0;
  std::int32_t stage = 0;     // the other end
  std::int64_t channels = 0;  // of a token

  template <class Archive>
  void serialize(Archive& ar) {
    ar(group, stage, channels);
  }
  bool operator==(const SkipEdge&) const = default;
};

/// Groups of an actor for one job, by their use. Ids of the deployment's groups; 0 = the actor is
/// alone there.
struct JobGroups {
  std::uint32_t caption = 0;   // the whole replica: text states
  std::uint32_t previous = 0;  // edge from the previous stage; of stage 0: from the last stage
  std::uint32_t next = 0;      // edge to the next stage; of the last stage: to stage 0
  std::uint32_t cfg = 0;       // the other branch, of the last stage
  std::uint32_t ulysses = 0;   // all-to-all over heads
  std::uint32_t ring = 0;      // K,V blocks
  std::uint32_t tp = 0;        // sums of sharded matmuls
  std::uint32_t heads = 0;     // ulysses × tp: who shares these tokens
  std::uint32_t stage = 0;     // ring × ulysses × tp: who shares this stage and branch
  std::uint32_t rows = 0;      // ranks that hold latents, and ranks that decode them
  std::uint32_t vae = 0;       // ranks that decode together, in the order of their rows
  std::vector<SkipEdge> skips_from;  // from stages before the previous one, the nearest first
  std::vector<SkipEdge> skips_to;    // to stages behind the next one, the nearest first

  template <class Archive>
  void serialize(Archive& ar) {
    ar(caption, previous, next, cfg, ulysses, ring, tp, heads, stage, rows, vae, skips_from,
       skips_to);
  }
  bool operator==(const JobGroups&) const = default;
};

}  // namespace troupe::wire
