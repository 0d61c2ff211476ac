#include "transport/tensor/nccl/communicator.h"

#include <ATen/ops/empty.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "transport/tensor/nccl/operation.h"
#include "transport/tensor/nccl/polling.h"

namespace troupe::tensor::nccl {
namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

/// Time that NCCL has to accept an operation whose peers are connected already.
constexpr auto kIssueLimit = 10s;
/// Time after a member's goodbye from which what is still awaited from the member counts as
/// missing.
constexpr auto kGrace = 1s;
/// Time that the members' own word about a failure is waited for, once NCCL speaks of one.
constexpr auto kHearsayLimit = 200ms;

}  // namespace

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

}  // namespace troupe::tensor::nccl
