#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "transport/tensor/group.h"
#include "transport/tensor/nccl/aborter.h"
#include "transport/tensor/nccl/cuda_handles.h"
#include "transport/tensor/nccl/peer_watch.h"

namespace troupe::tensor::nccl {

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
