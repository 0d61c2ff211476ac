#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <mutex>

#include "transport/tensor/engine.h"

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

}  // namespace troupe::tensor
