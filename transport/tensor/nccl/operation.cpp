#include "transport/tensor/nccl/operation.h"

#include <c10/cuda/CUDAStream.h>

#include "transport/tensor/nccl/polling.h"

namespace troupe::tensor::nccl {

using Clock = std::chrono::steady_clock;

bool Communicator::Operation::done() {
  std::lock_guard lock(owner_->mutex_);
  if (succeeded_ || owner_->ended() || owner_->watch_->failure()) return true;
  return owner_->finished(*this) || owner_->ended();
}

void Communicator::Operation::wait(Deadline deadline) {
  const auto start = Clock::now();
  const auto waited = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
  for (int turn = 0;; ++turn) {
    {
      std::lock_guard lock(owner_->mutex_);
      if (succeeded_ || (!owner_->ended() && owner_->finished(*this))) {
        owner_->reap();
        owner_->counters_.waiting_seconds += waited();
        return;
      }
      owner_->check_alive(what_);
      ncclResult_t state = ncclSuccess;
      owner_->call(ncclCommGetAsyncError(owner_->comm_, &state), what_);
      owner_->call(state, what_);
      if (Clock::now() >= deadline) {
        owner_->counters_.waiting_seconds += waited();
        throw TransferError(Failure::timeout, -1,
                            owner_->settings_.prefix + what_ + ": deadline passed");
      }
    }
    pause(turn);
  }
}

void Communicator::Operation::join_stream(Deadline) {
  std::lock_guard lock(owner_->mutex_);
  if (succeeded_) return;
  owner_->check_alive(what_);
  check(cudaStreamWaitEvent(c10::cuda::getCurrentCUDAStream(owner_->settings_.device), event_.get(),
                            0),
        "cudaStreamWaitEvent");
}

}  // namespace troupe::tensor::nccl
