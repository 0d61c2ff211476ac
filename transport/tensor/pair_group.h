#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <atomic>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "transport/tensor/engine.h"
#include "transport/tensor/fd.h"
#include "transport/tensor/group.h"

namespace troupe::tensor {

/// A run of bytes to write from or read into.
struct Part {
  std::byte* data;
  std::size_t size;
};

/// An ordered two-way byte link to one peer; the only thing a backend over pairs has to supply.
/// Called under the drive lock. Neither call waits: one that moves less than was asked for has
/// arranged that the engine is kicked when it can go on.
class Stream {
 public:
  /// Result of a stream whose peer has closed its end with nothing left to read, or does not read
  /// any more.
  static constexpr std::size_t kEnded = std::numeric_limits<std::size_t>::max();

  virtual ~Stream() = default;
  virtual std::size_t write(Part first, Part second) = 0;
  virtual std::size_t read(Part first, Part second) = 0;
  /// The peer said goodbye: what it has written before is complete.
  virtual void peer_closed() {}
};

/// Both directions to one peer of one group: FIFO queues of transfers over a stream. Every message
/// goes with a header, so that a disagreement about sizes or order is noticed and not acted upon.
class Pair {
 public:
  /// Counts what has been moved; shared with the group.
  struct Tally {
    std::atomic<std::uint64_t> bytes_sent{0}, bytes_received{0};
    std::atomic<std::uint64_t> messages_sent{0}, messages_received{0};
  };

  Pair(std::unique_ptr<Stream> stream, int peer, Tally& tally)
      : stream_(std::move(stream)), peer_(peer), tally_(tally) {}

  int peer() const { return peer_; }

  /// Any thread; the caller keeps the order.
  void post_send(Transfer transfer) { outgoing_.push(std::move(transfer)); }
  void post_receive(Transfer transfer) { incoming_.push(std::move(transfer)); }

  // Under the drive lock:

  using Ended = std::function<void(const Transfer&)>;
  /// Moves at most about `budget` bytes each way and calls `ended` for each completed transfer.
  /// True if it stopped for the budget alone. Throws TransferError with the bare cause.
  bool advance(std::size_t budget, const Ended& ended);
  void peer_closed();
  bool closed() const { return peer_closed_; }
  /// Empties both queues, calling `ended` for each transfer in them.
  void clear(const Ended& ended);

 private:
  struct Header {
    std::uint64_t bytes;
    std::uint32_t sequence;
    std::uint32_t magic;
  };
  static constexpr std::uint32_t kMagic = 0x54505554;

  class Lane {
   public:
    void push(Transfer transfer);
    Transfer* head();
    void pop();

    Header header{};
    std::size_t moved = 0;  ///< bytes of the head's header and payload
    std::uint32_t sequence = 0;

   private:
    std::mutex mutex_;
    std::deque<Transfer> queue_;
    std::atomic<std::size_t> count_{0};
  };

  bool advance_sends(std::size_t budget, const Ended& ended);
  bool advance_receives(std::size_t budget, const Ended& ended);
  void check_header(const Transfer& transfer);

  std::unique_ptr<Stream> stream_;
  int peer_;
  Tally& tally_;
  bool peer_closed_ = false;
  Lane outgoing_;
  Lane incoming_;
};

/// Notice that one end of a pair sends to the other beside the data.
struct Notice {
  enum class Kind : std::uint8_t {
    goodbye = 'B',  ///< the group was destroyed in good order
    failure = 'F',  ///< the group failed: why, and which rank was at fault
    lost = 'L',     ///< never sent: the connection ended without a goodbye
  };
  Kind kind = Kind::lost;
  Failure failure = Failure::peer_lost;
  int culprit = -1;
  std::string cause;
};

/// The socket beside a pair's data. It carries at most one notice each way, and its end tells that
/// the peer's process is gone.
class ControlLink : public std::enable_shared_from_this<ControlLink> {
 public:
  using Handler = std::function<void(const Notice&)>;

  ControlLink(boost::asio::io_context& io, UniqueFd socket);

  /// Begins to listen; `handler` runs on the io thread, at most once for a notice and at most once
  /// for the loss of the connection.
  void start(Handler handler);
  /// Sends a notice. Never blocks. Only the first notice goes out.
  void send(const Notice& notice);
  /// Detaches the handler: after this returns, the handler does not run any more.
  void detach();

 private:
  void listen();
  void received(const boost::system::error_code& error, std::size_t size);
  void deliver(const Notice& notice);

  static constexpr std::size_t kMaxCause = 400;
  struct Frame {
    std::uint8_t kind;
    std::uint8_t failure;
    std::uint16_t length;
    std::int32_t culprit;
    char cause[kMaxCause];
  };

  boost::asio::posix::stream_descriptor socket_;
  std::mutex send_mutex_;
  bool sent_ = false;
  std::mutex handler_mutex_;
  Handler handler_;
  Frame frame_{};
  std::size_t filled_ = 0;
};

/// True if `reduce_in_order` knows the type: the real numbers, Half and BFloat16 included.
bool is_reducible(at::ScalarType type);

/// Computes out[i] = parts[0][i] op parts[1][i] op …, from left to right, on the calling thread
/// alone. Half and BFloat16 are accumulated in float32 and rounded once; max passes NaN on. `out`
/// may be one of the parts. All point to `count` elements of `type`.
void reduce_in_order(void* out, const std::vector<const void*>& parts, std::int64_t count,
                     at::ScalarType type, ReduceOp op);

/// One connected peer, as the rendezvous hands it over.
struct PeerConnection {
  int peer;
  std::unique_ptr<Stream> stream;
  UniqueFd control;
};

/// A group over directed pairs: collectives written once for every backend that moves bytes
/// between two processes.
class PairGroup : public Group, private Pollable {
 public:
  PairGroup(std::shared_ptr<Engine> engine, const std::string& backend, const std::string& name,
            int rank, int size, std::vector<PeerConnection> connections);
  ~PairGroup() override;

  int rank() const override { return member_->rank; }
  int size() const override { return size_; }
  const std::string& name() const override { return member_->group; }

  Work send(const at::Tensor& in, int destination) override;
  Work receive(const at::Tensor& out, int source) override;
  Work grouped(const std::vector<PeerTensor>& sends,
               const std::vector<PeerTensor>& receives) override;
  Work broadcast(const at::Tensor& inout, int root) override;
  Work all_gather(const std::vector<at::Tensor>& outs, const at::Tensor& in) override;
  Work all_to_all(const std::vector<at::Tensor>& outs, const std::vector<at::Tensor>& ins) override;
  Work all_reduce(const at::Tensor& inout, ReduceOp op) override;
  void abort(const std::string& why) override;
  Counters counters() const override;

 private:
  struct Peer {
    std::unique_ptr<Pair> pair;
    std::shared_ptr<ControlLink> control;
  };
  struct Collapse {
    Failure failure;
    int peer;
    std::string cause;
  };
  /// Transfers of one operation, gathered before they are queued all at once.
  class Issue;

  bool advance() override;
  void transfer_ended(const Transfer& transfer);
  void noticed(int peer, const Notice& notice);
  void fail(Failure failure, int peer, const std::string& cause);
  void fail_driving(Failure failure, int peer, const std::string& cause);

  std::shared_ptr<Operation> operation(const char* kind, const char* relation, int peer,
                                       std::size_t bytes) const;
  at::Tensor readable(const char* what, const at::Tensor& tensor) const;
  void check_writable(const char* what, const at::Tensor& tensor) const;
  void check_peer(const char* what, int peer) const;
  void check_count(const char* what, std::size_t count) const;
  [[noreturn]] void refuse(const std::string& text) const;

  std::shared_ptr<Engine> engine_;
  std::shared_ptr<Membership> member_;
  int size_;
  Pair::Tally tally_;
  std::vector<Peer> links_;  ///< one per rank; the own rank's is empty
  std::mutex issue_mutex_;
  bool ready_ = false;
  std::optional<Collapse> collapse_;  ///< guarded by both the issue mutex and the drive lock
};

}  // namespace troupe::tensor
