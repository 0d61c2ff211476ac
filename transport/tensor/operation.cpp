#include "transport/tensor/operation.h"

#include "transport/tensor/engine.h"

namespace troupe::tensor {

std::string Membership::prefix() const {
  return "[tensor." + backend + "] group \"" + group + "\" rank " + std::to_string(rank) + ": ";
}

void Operation::wait(Deadline deadline) {
  if (!done()) {
    const auto start = std::chrono::steady_clock::now();
    if (const auto engine = member_->engine.lock()) engine->wait(*this, deadline);
    const auto now = std::chrono::steady_clock::now();
    member_->waiting_nanoseconds +=
        std::chrono::duration_cast<std::chrono::nanoseconds>(now - start).count();
  }
  switch (state_.load(std::memory_order_acquire)) {
    case State::succeeded:
      return;
    case State::failed:
      throw error();
    case State::pending:
      throw TransferError(Failure::timeout, peer_,
                          member_->prefix() + describe() + ": deadline passed");
  }
}

void Operation::succeed() {
  settle(State::succeeded);
}

void Operation::fail(Failure failure, int peer, const std::string& cause) {
  if (done()) return;
  failure_ = failure;
  culprit_ = peer;
  cause_ = cause;
  settle(State::failed);
}

void Operation::settle(State state) {
  tensors_.clear();
  open_gate = nullptr;
  state_.store(state, std::memory_order_release);
}

TransferError Operation::error() const {
  return {failure_, culprit_, member_->prefix() + describe() + ": " + cause_};
}

std::string Operation::describe() const {
  std::string text = std::string(kind_) + " of " + std::to_string(bytes_) + " bytes";
  if (peer_ >= 0) text += std::string(" ") + relation_ + " rank " + std::to_string(peer_);
  return text;
}

}  // namespace troupe::tensor
