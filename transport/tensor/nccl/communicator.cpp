#include "transport/tensor/nccl/communicator.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <cstring>
#include <thread>

namespace troupe::tensor::nccl {
namespace {

/// Pauses between two looks of a waiting thread. Busy at first, since most waits end within
/// microseconds; then easy on the processor.
inline void pause(int turn) {
  using namespace std::chrono_literals;
  if (turn < 200)
    std::this_thread::yield();
  else
    std::this_thread::sleep_for(turn < 2000 ? 20us : 200us);
}

inline bool is_failure(ncclResult_t result) {
  return result != ncclSuccess && result != ncclInProgress;
}

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

/// Time that NCCL has to accept an operation whose peers are connected already.
constexpr auto kIssueLimit = 10s;
/// Time after a member's goodbye from which what is still awaited from the member counts as
/// missing.
constexpr auto kGrace = 1s;
/// Time that the members' own word about a failure is waited for, once NCCL speaks of one.
constexpr auto kHearsayLimit = 200ms;

/// Times that `abort` waits for the device to let go, and a leaving member for the others.
constexpr auto kAbortLimit = 500ms;
constexpr auto kCloseLimit = 2s;
/// Time that an abort waits for a thread that is inside NCCL with this communicator.
constexpr auto kOthersLeave = 50ms;
/// Time behind other work after which the tensors of an aborted operation are never freed.
constexpr auto kDrainLimit = 120s;

}  // namespace

/// Operation that a communicator has queued on its stream: done once the event behind it has
/// passed.
class Communicator::Operation : public WorkState {
 public:
  Operation(std::shared_ptr<Communicator> owner, std::string what, std::vector<at::Tensor> tensors,
            Event event)
      : owner_(std::move(owner)),
        what_(std::move(what)),
        tensors_(std::move(tensors)),
        event_(std::move(event)) {}

  bool done() override;
  void wait(Deadline deadline) override;
  void join_stream(Deadline deadline) override;

  // All of this under the owner's mutex.
  const Event& event() const { return event_; }
  bool succeeded() const { return succeeded_; }
  void succeed() { succeeded_ = true; }
  void release() { tensors_.clear(); }
  /// Takes the event for another operation, once nobody asks this operation for it any more.
  Event take_event() { return std::move(event_); }

 private:
  std::shared_ptr<Communicator> owner_;
  std::string what_;
  std::vector<at::Tensor> tensors_;
  Event event_;
  bool succeeded_ = false;
};

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

Communicator::Communicator(Settings settings)
    : settings_(std::move(settings)), stream_(std::make_shared<Stream>()) {}

Communicator::~Communicator() = default;

std::shared_ptr<Communicator> Communicator::join(Settings settings, Group& watch,
                                                 Deadline deadline) {
  const c10::cuda::CUDAGuard current(static_cast<c10::DeviceIndex>(settings.device));
  std::shared_ptr<Communicator> made(new Communicator(std::move(settings)));
  made->aborter_ = std::make_unique<Aborter>(
      Aborter::Calls{
          .begin = [device = made->device()] { check(cudaSetDevice(device), "cudaSetDevice"); },
          .end =
              [weak = std::weak_ptr(made)] {
                if (const auto communicator = weak.lock()) communicator->tear_down();
              }},
      deadline);
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
    ncclComm_t comm = nullptr;
    const ncclResult_t begun =
        ncclCommInitRankConfig(&comm, watch.size(), id, watch.rank(), &config);
    comm_ = comm;
    call(begun, "joining");
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
  const c10::cuda::CUDAGuard current(static_cast<c10::DeviceIndex>(settings_.device));
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
  if (!ended() && watch_) {
    if (const auto error = watch_->failure())
      collapse(error->failure(), error->peer(), error->what());
    else if (const int rank = watch_->left(kGrace); rank >= 0)
      collapse(Failure::peer_left, rank, "rank " + std::to_string(rank) + " has left the group");
  }
  if (const auto cause = verdict_.cause())
    throw TransferError(cause->kind, cause->culprit, settings_.prefix + what + ": " + cause->text);
}

void Communicator::call(ncclResult_t result, const std::string& what) {
  if (!is_failure(result)) return;
  const char* detail = ncclGetLastError(nullptr);
  hear_peers();
  collapse(result == ncclRemoteError ? Failure::peer_lost : Failure::aborted, -1,
           std::string(ncclGetErrorString(result)) +
               (detail && *detail ? std::string(" (") + detail + ")" : ""));
  check_alive(what);
}

/// NCCL only sees that a connection broke; the members know who went, and why.
void Communicator::hear_peers() {
  const Deadline end = within(kHearsayLimit);
  for (int turn = 0; !ended() && watch_ && Clock::now() < end; ++turn) {
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
  while (!ended() && !in_flight_.empty() && finished(*in_flight_.front())) {
    in_flight_.front()->release();
    // A `Work` elsewhere only asks whether it succeeded; the event serves the next operation.
    spare_events_.push_back(in_flight_.front()->take_event());
    in_flight_.pop_front();
  }
}

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
