#pragma once

#include <ATen/core/Tensor.h>
#include <nccl.h>

#include <chrono>
#include <optional>
#include <vector>

#include "transport/tensor/group.h"

namespace troupe::tensor::nccl {

/// Watch over a communicator's members, by a group over TCP with the same members: it tells of a
/// death or an abort at once, which NCCL itself would not, and that a member leaves in good order.
/// Every member awaits a byte from every other one, which is sent when a member leaves.
class PeerWatch {
 public:
  /// Collective over all members; `group` must outlive `leave`, but not the watch.
  explicit PeerWatch(Group& group);

  /// Hands rank 0's id to everybody.
  static void share(Group& group, ncclUniqueId& id, Deadline deadline);

  /// Returns why the group failed, if it has. Never blocks.
  std::optional<TransferError> failure();

  /// Returns a rank that has been gone in good order for longer than `grace`, or -1.
  int left(std::chrono::steady_clock::duration grace);

  /// Says goodbye and waits for everybody else's, at most until `deadline`.
  void leave(Group& group, Deadline deadline);

 private:
  struct Peer {
    int rank;
    Work goodbye;
    at::Tensor byte;
    std::optional<std::chrono::steady_clock::time_point> gone_since;
  };
  std::vector<Peer> peers_;
};

}  // namespace troupe::tensor::nccl
