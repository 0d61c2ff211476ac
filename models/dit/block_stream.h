#pragma once

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

namespace troupe::models {

/// A stage's blocks that are not kept in memory: a thread of the stream's own reads the next block
/// while one is computed, and forgets the block before. At most two blocks are in memory at any
/// time. On a device that queues, blocks are read on a stream of their own; events order it with
/// the stream that computes.
class BlockStream {
 public:
  /// Makes a block anew, on the reading thread.
  using Read = std::function<std::shared_ptr<const void>()>;

  explicit BlockStream(at::Device device) : device_(device) {}
  ~BlockStream();
  BlockStream(const BlockStream&) = delete;
  BlockStream& operator=(const BlockStream&) = delete;

  at::Device device() const { return device_; }

  /// Adds the next block in order, of `bytes` bytes; returns its number. Called before the first
  /// `get`.
  int add(Read read, int64_t bytes);
  /// Returns the block, valid until the next call, also of another block. Throws the error that
  /// reading it threw; the next call reads again. Waits for as long as the file or the device
  /// takes, as reading in place would.
  const void* get(int number);

  /// Most bytes that two neighbours have together, the last and the first block among them.
  int64_t bytes() const;
  /// Most bytes that were in memory at once so far.
  int64_t most_held() const;

 private:
  struct Slot {
    std::shared_ptr<const void> block;
    std::optional<c10::Event> read;  // the device has it
    std::exception_ptr error;
  };
  struct Used {
    int number = -1;
    Slot slot;
    std::shared_ptr<c10::Event> used;  // the device has computed with it
  };

  bool wanted(int number) const { return number == current_ || number == next_; }
  std::optional<int> missing() const;
  void work();
  /// Gives back what is not wanted any more.
  void forget(std::unique_lock<std::mutex>& lock);
  Slot read(int number);

  const at::Device device_;
  std::vector<Read> reads_;
  std::vector<int64_t> bytes_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<int, Slot> slots_;
  std::vector<Used> used_;
  int current_ = -1, next_ = -1;
  int64_t held_ = 0, most_held_ = 0;
  bool stopped_ = false;
  std::optional<c10::Stream> stream_;  // the reading thread's; nothing on a CPU
  std::thread thread_;                 // begins with the first `get`
};

}  // namespace troupe::models
