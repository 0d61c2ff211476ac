#include <thread>

#include "transport/tensor/nccl/communicator.h"
#include "transport/tensor/nccl/operation.h"
#include "transport/tensor/nccl/polling.h"

namespace troupe::tensor::nccl {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

/// Times that `abort` waits for the device to let go, and a leaving member for the others.
constexpr auto kAbortLimit = 500ms;
constexpr auto kCloseLimit = 2s;
/// Time that an abort waits for a thread that is inside NCCL with this communicator.
constexpr auto kOthersLeave = 50ms;
/// Time behind other work after which the tensors of an aborted operation are never freed.
constexpr auto kDrainLimit = 120s;

}  // namespace

void Communicator::collapse(Failure kind, int culprit, const std::string& cause) {
  if (verdict_.give({kind, culprit, cause})) aborter_->ask();
}

void Communicator::tear_down() {
  verdict_.give({Failure::aborted, -1, "the group was destroyed"});
  // A thread that is inside NCCL comes out of it first, so that nothing goes under its feet. One
  // that does not is stuck behind the device, and this abort is what frees it.
  const bool alone = mutex_.try_lock_for(kOthersLeave);
  const ncclComm_t comm = comm_.exchange(nullptr);
  if (alone) mutex_.unlock();
  // NCCL sets its kernels' abort flag first, then frees memory, for which the device must come to
  // rest. That may take another communicator's abort: each has a thread of its own.
  if (comm) (void)(flushed_ ? ncclCommDestroy(comm) : ncclCommAbort(comm));
  release_when_idle();
}

void Communicator::release_when_idle() {
  const Deadline end = within(kDrainLimit);
  for (int turn = 0; stream_->query() == cudaErrorNotReady; ++turn) {
    if (Clock::now() >= end) {
      // A kernel may still write: memory is lost instead.
      new std::shared_ptr<Communicator>(shared_from_this());
      return;
    }
    pause(turn);
  }
  std::lock_guard lock(mutex_);
  for (const auto& operation : std::exchange(in_flight_, {}))
    operation->release();
}

void Communicator::begin_abort(Failure kind, int culprit, const std::string& why) {
  collapse(kind, culprit, why);
}

void Communicator::abort(Failure kind, int culprit, const std::string& why) {
  collapse(kind, culprit, why);
  aborter_->await_end(kAbortLimit);
}

bool Communicator::await_idle(Deadline deadline) {
  for (int turn = 0;; ++turn) {
    {
      std::lock_guard lock(mutex_);
      reap();
      if (ended() || watch_->failure()) return false;
      if (in_flight_.empty()) return true;
    }
    if (Clock::now() >= deadline) return false;
    pause(turn);
  }
}

void Communicator::flush(Deadline deadline) {
  ncclResult_t state = ncclSuccess;
  {
    std::lock_guard turn(settings_.turns->issuing);
    std::lock_guard lock(mutex_);
    if (ended()) return;
    state = ncclCommFinalize(comm_);
  }
  for (int turn = 0; state == ncclInProgress && Clock::now() < deadline; ++turn) {
    std::lock_guard lock(mutex_);
    if (ended() || ncclCommGetAsyncError(comm_, &state) != ncclSuccess) return;
    if (state == ncclInProgress) pause(turn);
  }
  std::lock_guard lock(mutex_);
  flushed_ = state == ncclSuccess;
}

void Communicator::leave(Group& watch) {
  const Deadline deadline = within(kCloseLimit);
  (void)cudaSetDevice(settings_.device);
  try {
    if (await_idle(deadline)) {
      flush(deadline);
      watch_->leave(watch, deadline);
    }
  } catch (const std::exception&) {
    // Nobody is left to be told; the abort follows.
  }
  abort(Failure::aborted, watch.rank(), "the group was destroyed");
}

void Communicator::close(std::unique_ptr<Group> watch) {
  aborter_->ask_by(within(kCloseLimit + kAbortLimit));  // also where leaving is stuck
  const auto turns = settings_.turns;
  {
    std::lock_guard lock(turns->mutex);
    ++turns->leaving;
  }
  std::thread([self = shared_from_this(), watch = std::move(watch), turns]() mutable {
    self->leave(*watch);
    watch.reset();
    self.reset();
    std::lock_guard lock(turns->mutex);
    --turns->leaving;
    turns->changed.notify_all();
  }).detach();
}

}  // namespace troupe::tensor::nccl
