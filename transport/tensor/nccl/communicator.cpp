#include "transport/tensor/nccl/communicator.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAStream.h>

#include <cstring>
#include <thread>

namespace troupe::tensor::nccl {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

/// How long NCCL may take to accept an operation whose peers are connected already.
constexpr auto kIssueLimit = 10s;
/// How long `abort` waits for the device to let go, and a leaving member for the others.
constexpr auto kAbortLimit = 500ms;
constexpr auto kCloseLimit = 2s;
/// How long after a member's goodbye what is still awaited from it counts as missing.
constexpr auto kGrace = 1s;
/// How long the members' own word about a failure is waited for, once NCCL speaks of one.
constexpr auto kHearsayLimit = 200ms;
/// After this long behind other work, the tensors of an aborted operation are never freed.
constexpr auto kDrainLimit = 120s;

/// Busy at first, since most waits end within microseconds; then easy on the processor.
void pause(int turn) {
  if (turn < 200)
    std::this_thread::yield();
  else
    std::this_thread::sleep_for(turn < 2000 ? 20us : 200us);
}

bool is_failure(ncclResult_t result) {
  return result != ncclSuccess && result != ncclInProgress;
}

}  // namespace

class Communicator::Operation : public WorkState {
 public:
  Operation(std::shared_ptr<Communicator> owner, std::string what, std::vector<at::Tensor> tensors,
            Event event)
      : owner_(std::move(owner)),
        what_(std::move(what)),
        tensors_(std::move(tensors)),
        event_(std::move(event)) {}

  bool done() override {
    std::lock_guard lock(owner_->mutex_);
    if (succeeded_ || !owner_->failure_.empty() || owner_->watch_->failure()) return true;
    return owner_->finished(*this) || !owner_->failure_.empty();
  }

  void wait(Deadline deadline) override {
    const auto start = Clock::now();
    const auto waited = [&] { return std::chrono::duration<double>(Clock::now() - start).count(); };
    for (int turn = 0;; ++turn) {
      {
        std::lock_guard lock(owner_->mutex_);
        if (succeeded_ || (owner_->failure_.empty() && owner_->finished(*this))) {
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

  void join_stream(Deadline) override {
    std::lock_guard lock(owner_->mutex_);
    if (succeeded_) return;
    owner_->check_alive(what_);
    check(cudaStreamWaitEvent(c10::cuda::getCurrentCUDAStream(owner_->settings_.device),
                              event_.get(), 0),
          "cudaStreamWaitEvent");
  }

  // All of this under the owner's mutex.
  const Event& event() const { return event_; }
  bool succeeded() const { return succeeded_; }
  void succeed() { succeeded_ = true; }
  void release() { tensors_.clear(); }
  /// The event, for another operation: nobody asks this one for it any more.
  Event take_event() { return std::move(event_); }

 private:
  std::shared_ptr<Communicator> owner_;
  std::string what_;
  std::vector<at::Tensor> tensors_;
  Event event_;
  bool succeeded_ = false;
};

/// What a failed communicator leaves behind, until the device has let go of it.
struct Communicator::Remains {
  int device;
  ncclComm_t comm;
  bool flushed;
  std::shared_ptr<Stream> stream;
  std::deque<std::shared_ptr<Operation>> operations;
};

Communicator::Communicator(Settings settings)
    : settings_(std::move(settings)), stream_(std::make_shared<Stream>()) {}

Communicator::~Communicator() = default;

std::shared_ptr<Communicator> Communicator::join(Settings settings, Group& watch,
                                                 Deadline deadline) {
  const DeviceScope scope(settings.device);
  std::shared_ptr<Communicator> made(new Communicator(std::move(settings)));
  try {
    made->connect(watch, deadline);
  } catch (const std::exception& error) {
    made->abort(Failure::aborted, watch.rank(), error.what());
    throw;
  }
  return made;
}

void Communicator::connect(Group& watch, Deadline deadline) {
  ncclUniqueId id{};
  if (watch.rank() == 0) call(ncclGetUniqueId(&id), "making an id");
  PeerWatch::share(watch, id, deadline);
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  config.maxCTAs = settings_.max_ctas;
  {
    std::lock_guard lock(mutex_);
    watch_ = std::make_unique<PeerWatch>(watch);
    issue_deadline_ = deadline;
    call(ncclCommInitRankConfig(&comm_, watch.size(), id, watch.rank(), &config), "joining");
    settle("joining", deadline);
  }

  // Connects every pair and every collective now, so that no later operation stalls on it.
  const auto options = at::TensorOptions().dtype(at::kByte).device(at::kCUDA, settings_.device);
  const at::Tensor out = at::empty({watch.size()}, options),
                   in = at::empty({watch.size()}, options);
  const auto byte = [](const at::Tensor& bytes, int rank) {
    return static_cast<std::byte*>(bytes.data_ptr()) + rank;
  };
  const std::string what = "first contact";
  const Work contact = issue(what, {out, in}, [&] {
    grouped(what, [&](ncclComm_t comm) {
      for (int peer = 0; peer < watch.size(); ++peer) {
        if (peer == watch.rank()) continue;
        for (const auto result : {ncclSend(byte(out, peer), 1, ncclInt8, peer, comm, stream()),
                                  ncclRecv(byte(in, peer), 1, ncclInt8, peer, comm, stream())})
          if (is_failure(result)) return result;
      }
      return ncclSuccess;
    });
    grouped(what, [&](ncclComm_t comm) {
      return ncclBroadcast(out.data_ptr(), out.data_ptr(), 1, ncclInt8, 0, comm, stream());
    });
    grouped(what, [&](ncclComm_t comm) {
      return ncclAllReduce(out.data_ptr(), out.data_ptr(), 1, ncclUint8, ncclMax, comm, stream());
    });
  });
  contact.wait(deadline);
  std::lock_guard lock(mutex_);
  issue_deadline_ = {};
  counters_ = {};
}

Work Communicator::issue(const std::string& what, std::vector<at::Tensor> tensors,
                         const std::function<void()>& body) {
  std::lock_guard turn(settings_.turns->issuing);
  std::lock_guard lock(mutex_);
  const DeviceScope scope(settings_.device);
  check_alive(what);
  reap();
  const cudaStream_t caller = c10::cuda::getCurrentCUDAStream(settings_.device);
  cudaStreamCaptureStatus capturing = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(caller, &capturing), "cudaStreamIsCapturing");
  if (capturing != cudaStreamCaptureStatusNone)
    throw std::invalid_argument(settings_.prefix + what +
                                ": inside a graph capture, where transfers have no place");
  if (spare_events_.empty()) spare_events_.emplace_back();
  auto operation = std::make_shared<Operation>(shared_from_this(), what, std::move(tensors),
                                               std::move(spare_events_.back()));
  spare_events_.pop_back();
  try {
    check(cudaEventRecord(ready_.get(), caller), "cudaEventRecord");
    check(cudaStreamWaitEvent(stream(), ready_.get(), 0), "cudaStreamWaitEvent");
    in_flight_.push_back(operation);
    body();
    check(cudaEventRecord(operation->event().get(), stream()), "cudaEventRecord");
  } catch (const TransferError&) {
    throw;
  } catch (const std::exception& error) {
    collapse(Failure::aborted, -1, error.what());
    check_alive(what);
  }
  return Work(operation);
}

void Communicator::grouped(const std::string& what,
                           const std::function<ncclResult_t(ncclComm_t)>& calls) {
  call(ncclGroupStart(), what);
  const ncclResult_t inside = calls(comm_);
  const ncclResult_t ended = ncclGroupEnd();  // also after a failure: the thread must leave it
  call(is_failure(inside) ? inside : ended, what);
  settle(what, issue_deadline_ == Deadline{} ? within(kIssueLimit) : issue_deadline_);
}

void Communicator::count(std::uint64_t bytes_sent, std::uint64_t messages_sent,
                         std::uint64_t bytes_received, std::uint64_t messages_received) {
  counters_.bytes_sent += bytes_sent;
  counters_.messages_sent += messages_sent;
  counters_.bytes_received += bytes_received;
  counters_.messages_received += messages_received;
}

Counters Communicator::counters() const {
  std::lock_guard lock(mutex_);
  return counters_;
}

void Communicator::check_alive(const std::string& what) {
  if (failure_.empty() && watch_) {
    if (const auto error = watch_->failure())
      collapse(error->failure(), error->peer(), error->what());
    else if (const int rank = watch_->left(kGrace); rank >= 0)
      collapse(Failure::peer_left, rank, "rank " + std::to_string(rank) + " has left the group");
  }
  if (!failure_.empty())
    throw TransferError(failure_kind_, culprit_, settings_.prefix + what + ": " + failure_);
}

void Communicator::call(ncclResult_t result, const std::string& what) {
  if (!is_failure(result)) return;
  const char* detail = ncclGetLastError(comm_);
  hear_peers();
  collapse(result == ncclRemoteError ? Failure::peer_lost : Failure::aborted, -1,
           std::string(ncclGetErrorString(result)) +
               (detail && *detail ? std::string(" (") + detail + ")" : ""));
  check_alive(what);
}

/// NCCL only sees that a connection broke; the members know who went, and why.
void Communicator::hear_peers() {
  const Deadline end = within(kHearsayLimit);
  for (int turn = 0; failure_.empty() && watch_ && Clock::now() < end; ++turn) {
    if (const auto error = watch_->failure())
      collapse(error->failure(), error->peer(), error->what());
    pause(turn);
  }
}

void Communicator::settle(const std::string& what, Deadline deadline) {
  for (int turn = 0;; ++turn) {
    check_alive(what);
    ncclResult_t state = ncclSuccess;
    call(ncclCommGetAsyncError(comm_, &state), what);
    call(state, what);
    if (state == ncclSuccess) return;
    if (Clock::now() >= deadline) {
      collapse(Failure::timeout, -1, "NCCL did not get ready in time");
      check_alive(what);
    }
    pause(turn);
  }
}

bool Communicator::finished(Operation& operation) {
  if (operation.succeeded()) return true;
  const cudaError_t status = operation.event().query();
  if (status == cudaErrorNotReady) return false;
  if (status == cudaSuccess) {
    operation.succeed();
    return true;
  }
  collapse(Failure::aborted, -1, std::string("CUDA: ") + cudaGetErrorString(status));
  return false;
}

void Communicator::reap() {
  while (failure_.empty() && !in_flight_.empty() && finished(*in_flight_.front())) {
    in_flight_.front()->release();
    // A `Work` elsewhere only asks whether it succeeded; the event serves the next operation.
    spare_events_.push_back(in_flight_.front()->take_event());
    in_flight_.pop_front();
  }
}

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

void Communicator::abort(Failure kind, int culprit, const std::string& why) {
  std::shared_future<void> torn_down;
  {
    std::lock_guard lock(mutex_);
    collapse(kind, culprit, why);
    torn_down = torn_down_;
  }
  if (torn_down.valid()) torn_down.wait_for(kAbortLimit);
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
