#include "transport/tensor/nccl/peer_watch.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <cstring>

namespace troupe::tensor::nccl {

using Clock = std::chrono::steady_clock;

PeerWatch::PeerWatch(Group& group) {
  for (int rank = 0; rank < group.size(); ++rank) {
    if (rank == group.rank()) continue;
    const at::Tensor byte = at::empty({1}, at::kByte);
    peers_.push_back({rank, group.receive(byte, rank), byte, std::nullopt});
  }
}

void PeerWatch::share(Group& group, ncclUniqueId& id, Deadline deadline) {
  const at::Tensor bytes = at::empty({static_cast<std::int64_t>(sizeof id)}, at::kByte);
  std::memcpy(bytes.data_ptr(), &id, sizeof id);
  group.broadcast(bytes, 0).wait(deadline);
  std::memcpy(&id, bytes.data_ptr(), sizeof id);
}

std::optional<TransferError> PeerWatch::failure() {
  for (Peer& peer : peers_) {
    if (peer.gone_since || !peer.goodbye.done()) continue;
    try {
      peer.goodbye.wait(Clock::now());
      peer.gone_since = Clock::now();
    } catch (const TransferError& error) {
      return error;
    }
  }
  return std::nullopt;
}

int PeerWatch::left(Clock::duration grace) {
  for (const Peer& peer : peers_)
    if (peer.gone_since && Clock::now() - *peer.gone_since > grace) return peer.rank;
  return -1;
}

void PeerWatch::leave(Group& group, Deadline deadline) {
  try {
    std::vector<Work> sent;
    for (const Peer& peer : peers_)
      sent.push_back(group.send(at::zeros({1}, at::kByte), peer.rank));
    for (const Work& work : sent)
      work.wait(deadline);
    for (const Peer& peer : peers_)
      peer.goodbye.wait(deadline);
  } catch (const TransferError&) {
    // Whoever is late or dead does not hold up those who leave.
  }
}

}  // namespace troupe::tensor::nccl
