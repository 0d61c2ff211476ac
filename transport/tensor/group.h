#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "transport/tensor/fd.h"

namespace troupe::tensor {

enum class ReduceOp { sum, max };

/// Reason why an operation, or a rendezvous, did not succeed.
enum class Failure : std::uint8_t {
  timeout,    ///< the deadline passed; the operation itself is still pending
  aborted,    ///< `Group::abort` here or at a peer, or the group was destroyed
  peer_lost,  ///< a peer's process is gone, or its connection broke
  peer_left,  ///< a peer destroyed its group without sending what was awaited
  refused,    ///< the rendezvous was turned down (wrong secret, size or name)
  mismatch,   ///< the two ends disagree about a message's size or order
};

/// One line: `[tensor.shm] group "edge 0-1" rank 0: receive of 4096 bytes from rank 1: <cause>`.
class TransferError : public std::runtime_error {
 public:
  TransferError(Failure failure, int peer, const std::string& text)
      : std::runtime_error(text), failure_(failure), peer_(peer) {}
  Failure failure() const { return failure_; }
  /// The rank at fault, or -1 where no single one is.
  int peer() const { return peer_; }

 private:
  Failure failure_;
  int peer_;
};

/// A backend's half of `Work`.
class WorkState {
 public:
  virtual ~WorkState() = default;
  virtual bool done() = 0;
  virtual void wait(Deadline deadline) = 0;
  virtual void join_stream(Deadline deadline) { wait(deadline); }
};

/// An operation under way. It keeps its tensors alive until it has ended, also when no `Work` is
/// left that refers to it, so nobody has to wait for a send. Copies refer to the same operation.
class Work {
 public:
  Work() = default;  ///< an operation that has already succeeded
  explicit Work(std::shared_ptr<WorkState> state) : state_(std::move(state)) {}

  /// True once the operation has ended, well or badly (`wait` tells which). Never blocks.
  bool done() const { return !state_ || state_->done(); }

  /// Returns once the operation has succeeded. Throws TransferError: timeout (the operation stays
  /// pending, and may be waited for again), or what ended it. May be called from any thread.
  void wait(Deadline deadline) const {
    if (state_) state_->wait(deadline);
  }

  /// nccl: makes the current CUDA stream wait for the operation, and returns at once; a failure
  /// shows at the next `wait` on the group. Other backends: `wait`.
  void join_stream(Deadline deadline) const {
    if (state_) state_->join_stream(deadline);
  }

 private:
  std::shared_ptr<WorkState> state_;
};

/// Traffic of one member of a group so far. Bytes are those of tensors: what a backend puts around
/// them is not counted.
struct Counters {
  std::uint64_t bytes_sent = 0;
  std::uint64_t bytes_received = 0;
  std::uint64_t messages_sent = 0;
  std::uint64_t messages_received = 0;
  double waiting_seconds = 0;  ///< time that callers spent inside `Work::wait`
};

/// A tensor and the rank that it goes to or comes from.
struct PeerTensor {
  at::Tensor tensor;
  int peer;
};

/// One communicator: a fixed set of ranks and an order of operations that all of them share.
///
/// Operations are asynchronous. Transfers between two ranks match in the order in which they were
/// issued, per direction; collectives take part in that order, so all members issue them alike.
/// Both ends know every shape beforehand: a disagreement in bytes ends the group (`mismatch`).
/// The first failure ends the whole group at this member and, by notice, at all others.
///
/// At each member a later operation need not start before an earlier one has ended (nccl: all of a
/// group's operations run one after another on one stream). Transfers that need each other, such
/// as both directions between two ranks or the hops of a cyclic shift, therefore go into one
/// `grouped`: were they issued singly, every member could stand in its receive before any send.
///
/// Tensors that are sent may be strided (a contiguous copy is taken when the operation is issued)
/// and must not be written to before their operation ended. Tensors that are received into must
/// be contiguous. Tensors of the wrong device, shape or layout throw std::invalid_argument at
/// once, and the group lives on. Calls are safe from several threads, but then the callers
/// answer for the common order. No call here blocks.
class Group {
 public:
  virtual ~Group() = default;

  virtual int rank() const = 0;
  virtual int size() const = 0;
  virtual const std::string& name() const = 0;

  virtual Work send(const at::Tensor& in, int destination) = 0;
  virtual Work receive(const at::Tensor& out, int source) = 0;
  /// Issues all of these transfers as one operation, so that they make progress together.
  virtual Work grouped(const std::vector<PeerTensor>& sends,
                       const std::vector<PeerTensor>& receives) = 0;
  /// `inout` is read at `root` and written elsewhere.
  virtual Work broadcast(const at::Tensor& inout, int root) = 0;
  /// outs[r] becomes rank r's `in`; sizes may differ between ranks and may be zero.
  virtual Work all_gather(const std::vector<at::Tensor>& outs, const at::Tensor& in) = 0;
  /// outs[r] becomes what rank r has as ins[rank()]; sizes may differ and may be zero.
  virtual Work all_to_all(const std::vector<at::Tensor>& outs,
                          const std::vector<at::Tensor>& ins) = 0;
  /// Reduces elementwise in the order of ranks; every rank gets the same bits.
  virtual Work all_reduce(const at::Tensor& inout, ReduceOp op) = 0;

  /// Ends every pending and future operation with `why`, here at once and at the other members as
  /// soon as word reaches them. Returns when no tensor of this group is touched any more.
  virtual void abort(const std::string& why) = 0;
  /// Same as `abort`, but need not wait for the tensors: a later `abort` does. For ending many
  /// groups in the time of one.
  virtual void begin_abort(const std::string& why) { abort(why); }

  virtual Counters counters() const = 0;
};

}  // namespace troupe::tensor
