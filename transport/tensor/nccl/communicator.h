#pragma once

#include <ATen/core/Tensor.h>
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "transport/tensor/group.h"
#include "transport/tensor/nccl/aborter.h"

namespace troupe::tensor::nccl {

inline void check(cudaError_t status, const char* call) {
  if (status != cudaSuccess)
    throw std::runtime_error(std::string("[tensor.nccl] ") + call + ": " +
                             cudaGetErrorString(status));
}

class Event {
 public:
  Event() { check(cudaEventCreateWithFlags(&event_, cudaEventDisableTiming), "cudaEventCreate"); }
  ~Event() {
    if (event_) cudaEventDestroy(event_);
  }
  Event(Event&& other) noexcept : event_(std::exchange(other.event_, nullptr)) {}
  Event& operator=(Event&& other) noexcept {
    std::swap(event_, other.event_);
    return *this;
  }
  cudaEvent_t get() const { return event_; }

  /// cudaSuccess, cudaErrorNotReady, or what went wrong on the device. "Not ready" is not left
  /// behind as the thread's last error, where the next launch would find it.
  cudaError_t query() const {
    const cudaError_t status = cudaEventQuery(event_);
    if (status == cudaErrorNotReady) (void)cudaGetLastError();
    return status;
  }

 private:
  cudaEvent_t event_ = nullptr;
};

/// A stream of the highest priority: transfers are short, and others wait for them.
class Stream {
 public:
  Stream() {
    int lowest = 0, highest = 0;
    check(cudaDeviceGetStreamPriorityRange(&lowest, &highest), "cudaDeviceGetStreamPriorityRange");
    check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, highest),
          "cudaStreamCreateWithPriority");
  }
  ~Stream() { cudaStreamDestroy(stream_); }
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;
  cudaStream_t get() const { return stream_; }

  /// Same as Event::query, for all that is queued on the stream.
  cudaError_t query() const {
    const cudaError_t status = cudaStreamQuery(stream_);
    if (status == cudaErrorNotReady) (void)cudaGetLastError();
    return status;
  }

 private:
  cudaStream_t stream_ = nullptr;
};

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

/// State that the communicators of a device share.
struct Turns {
  /// NCCL wants one host thread at a time to issue, so that kernels start in one order.
  std::mutex issuing;
  /// Number of communicators on their way out, in threads of their own.
  std::mutex mutex;
  std::condition_variable changed;
  int leaving = 0;
};

/// One non-blocking NCCL communicator, the stream that everything of it runs on, and the
/// operations under way. Shared by a group and its operations, which may outlive the group.
///
/// Ordering: an operation runs after all that the caller's current stream held when it was issued,
/// and after the operations issued before it. Nothing waits on the host for the device but
/// `wait` and `close`. Tensors are held until the event behind their operation has passed.
class Communicator : public std::enable_shared_from_this<Communicator> {
 public:
  struct Settings {
    int device = 0;
    int max_ctas = 8;
    std::string prefix;  ///< begins every error text
    std::shared_ptr<Turns> turns;
  };

  /// Collective. Throws TransferError (timeout, or what the watch or NCCL says).
  static std::shared_ptr<Communicator> join(Settings settings, Group& watch, Deadline deadline);
  ~Communicator();

  /// Runs `body`, which queues work on `stream()` and calls `grouped`, and returns the operation
  /// that ends when all of it has run. Throws what ended the communicator.
  Work issue(const std::string& what, std::vector<at::Tensor> tensors,
             const std::function<void()>& body);

  /// Runs `calls` in one NCCL group; only inside a body. `calls` returns its first result that is
  /// not success.
  void grouped(const std::string& what, const std::function<ncclResult_t(ncclComm_t)>& calls);
  cudaStream_t stream() const { return stream_->get(); }
  int device() const { return settings_.device; }
  const std::string& prefix() const { return settings_.prefix; }

  /// Adds to what `counters` returns; only inside a body.
  void count(std::uint64_t bytes_sent, std::uint64_t messages_sent, std::uint64_t bytes_received,
             std::uint64_t messages_received);
  Counters counters() const;

  /// Ends everything with `why`. Kernels under way notice within microseconds; those that still
  /// stand behind other work on the device keep their tensors until they have come and gone. Takes
  /// no lock that another thread may hold while it waits for the device.
  void abort(Failure kind, int culprit, const std::string& why);
  /// Same as `abort`, without waiting for the device; `abort` waits for what is left of half a
  /// second.
  void begin_abort(Failure kind, int culprit, const std::string& why);
  /// Leaves in good order, in the background: what was issued goes out, and memory that peers may
  /// still read stays until they leave, too; never longer than two seconds. Then `watch` goes.
  void close(std::unique_ptr<Group> watch);

 private:
  class Operation;

  explicit Communicator(Settings settings);
  void connect(Group& watch, Deadline deadline);
  void check_alive(const std::string& what);
  void call(ncclResult_t result, const std::string& what);
  void settle(const std::string& what, Deadline deadline);
  bool finished(Operation& operation);
  void reap();
  void collapse(Failure kind, int culprit, const std::string& cause);
  bool ended() const { return verdict_.given(); }
  /// Ends the communicator; on the aborter's thread.
  void tear_down();
  void release_when_idle();
  bool await_idle(Deadline deadline);
  void flush(Deadline deadline);
  void leave(Group& watch);
  void hear_peers();

  Settings settings_;
  std::shared_ptr<Stream> stream_;
  Event ready_;
  Verdict verdict_;  // cause that ended the communicator
  std::unique_ptr<Aborter> aborter_;
  std::atomic<ncclComm_t> comm_ = nullptr;  // null before joining and after the end
  std::atomic<bool> flushed_ = false;
  mutable std::timed_mutex mutex_;  // everything below; held while CUDA and NCCL are called
  std::unique_ptr<PeerWatch> watch_;
  Deadline issue_deadline_{};
  std::deque<std::shared_ptr<Operation>> in_flight_;
  std::vector<Event> spare_events_;
  Counters counters_;
};

}  // namespace troupe::tensor::nccl
