#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "transport/tensor/group.h"

namespace troupe::tensor {

class Engine;

/// Owner of an operation: backend, group and rank. Lives as long as the last of a group's
/// operations.
struct Membership {
  std::string backend;
  std::string group;
  int rank = 0;
  std::weak_ptr<Engine> engine;
  std::atomic<std::uint64_t> waiting_nanoseconds{0};

  /// `[tensor.shm] group "g" rank 0: `
  std::string prefix() const;
};

/// An operation over pairs. Everything but `done` and `wait` happens under the engine's drive lock,
/// or before the operation is handed to the engine.
class Operation : public WorkState {
 public:
  enum class State { pending, succeeded, failed };

  Operation(std::shared_ptr<Membership> member, const char* kind, const char* relation, int peer,
            std::size_t bytes)
      : member_(std::move(member)), kind_(kind), relation_(relation), peer_(peer), bytes_(bytes) {}

  bool done() override { return state_.load(std::memory_order_acquire) != State::pending; }
  void wait(Deadline deadline) override;

  /// Keeps `tensor` until the operation has ended.
  void keep(at::Tensor tensor) { tensors_.push_back(std::move(tensor)); }

  void succeed();
  void fail(Failure failure, int peer, const std::string& cause);
  /// `receive of 4096 bytes from rank 1`
  std::string describe() const;

  /// Transfers that have not ended yet.
  std::size_t transfers_left = 0;
  /// Number of those that are receives which must end before `open_gate` runs and gated transfers
  /// may start.
  std::size_t gate_left = 0;
  bool gate_open = true;
  std::function<void()> open_gate;

 private:
  void settle(State state);
  TransferError error() const;

  std::shared_ptr<Membership> member_;
  const char* kind_;
  const char* relation_;
  int peer_;
  std::size_t bytes_;
  std::vector<at::Tensor> tensors_;
  Failure failure_ = Failure::aborted;
  int culprit_ = -1;
  std::string cause_;
  std::atomic<State> state_{State::pending};
};

/// Bytes to move over one pair in one direction, as one message.
struct Transfer {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  std::shared_ptr<Operation> operation;
  bool gated = false;       ///< a send that may start only when its operation's gate is open
  bool opens_gate = false;  ///< a receive that the gate waits for
};

}  // namespace troupe::tensor
