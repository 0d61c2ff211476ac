#include <thread>

#include "transport/tensor/nccl/communicator.h"
#include "transport/tensor/nccl/operation.h"
#include "transport/tensor/nccl/polling.h"

namespace troupe::tensor::nccl {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

/// How long `abort` waits for the device to let go, and a leaving member for the others.
constexpr auto kAbortLimit = 500ms;
constexpr auto kCloseLimit = 2s;
/// After this long behind other work, the tensors of an aborted operation are never freed.
constexpr auto kDrainLimit = 120s;

}  // namespace

/// What a failed communicator leaves behind, until the device has let go of it.
struct Communicator::Remains {
  int device;
  ncclComm_t comm;
  bool flushed;
  std::shared_ptr<Stream> stream;
  std::deque<std::shared_ptr<Operation>> operations;
};

void Communicator::collapse(Failure kind, int culprit, const std::string& cause) {
  if (!failure_.empty()) return;
  failure_ = cause.empty() ? "aborted" : cause;
  failure_kind_ = kind;
  culprit_ = culprit;
  if (!comm_) return;
  // NCCL sets its kernels' abort flag first, then frees memory, for which the device must come to
  // rest. That may take another communicator's abort, so nobody may wait here: a thread does.
  auto remains =
      std::make_shared<Remains>(Remains{settings_.device, std::exchange(comm_, nullptr), flushed_,
                                        stream_, std::exchange(in_flight_, {})});
  auto over = std::make_shared<std::promise<void>>();
  torn_down_ = over->get_future().share();
  torn_down_by_ = within(kAbortLimit);
  std::thread([remains, over] {
    (void)cudaSetDevice(remains->device);
    (void)(remains->flushed ? ncclCommDestroy(remains->comm) : ncclCommAbort(remains->comm));
    const Deadline end = within(kDrainLimit);
    for (int turn = 0; remains->stream->query() == cudaErrorNotReady; ++turn) {
      if (Clock::now() >= end) {
        new std::shared_ptr<Remains>(remains);  // a kernel may still write: memory is lost instead
        break;
      }
      pause(turn);
    }
    for (const auto& operation : remains->operations)
      operation->release();
    over->set_value();
  }).detach();
}

void Communicator::begin_abort(Failure kind, int culprit, const std::string& why) {
  std::lock_guard lock(mutex_);
  collapse(kind, culprit, why);
}

void Communicator::abort(Failure kind, int culprit, const std::string& why) {
  std::shared_future<void> torn_down;
  Deadline limit;
  {
    std::lock_guard lock(mutex_);
    collapse(kind, culprit, why);
    torn_down = torn_down_;
    limit = torn_down_by_;
  }
  if (torn_down.valid()) torn_down.wait_until(limit);
}

bool Communicator::await_idle(Deadline deadline) {
  for (int turn = 0;; ++turn) {
    {
      std::lock_guard lock(mutex_);
      reap();
      if (!failure_.empty() || watch_->failure()) return false;
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
    if (!failure_.empty()) return;
    state = ncclCommFinalize(comm_);
  }
  for (int turn = 0; state == ncclInProgress && Clock::now() < deadline; ++turn) {
    std::lock_guard lock(mutex_);
    if (!failure_.empty() || ncclCommGetAsyncError(comm_, &state) != ncclSuccess) return;
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
