#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "models/dit/weight_loader.h"

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

/// Returns a copy in the host's memory; if `tensor` is on another device, in pages that this device
/// can read by itself.
at::Tensor on_host(const at::Tensor& tensor);

/// Blocks of one kind of a stage, in order. The loader that makes the blocks decides whether they
/// are all in memory or are read when they are asked for.
template <class Block>
class Blocks {
 public:
  using Make = std::function<Block(const WeightLoader&)>;

  /// Reads the block even if it is not kept, so that errors in its weights show here. `make` is
  /// called again whenever the block is read anew.
  void add(const WeightLoader& weights, Make make) {
    if (!weights.stream) {
      kept_.push_back(make(weights));
      kept_bytes_ += bytes_of(kept_.back());
      return;
    }
    stream_ = weights.stream;
    if (weights.from_host) {
      add_from_host(make(weights));
    } else {
      add_from_files(weights.detached(), std::move(make));
    }
  }

  bool empty() const { return size() == 0; }
  size_t size() const { return stream_ ? numbers_.size() : kept_.size(); }
  /// Returns whether blocks are read when they are asked for, not kept in memory.
  bool streamed() const { return stream_ != nullptr; }
  /// Returns block `index`, valid until another block of the stage, of whatever kind, is asked for.
  const Block& operator[](int index) const {
    const auto i = static_cast<size_t>(index);
    return stream_ ? *static_cast<const Block*>(stream_->get(numbers_.at(i))) : kept_[i];
  }
  /// Returns the bytes that the blocks have in memory. The bytes of a stream are counted by the
  /// object that holds the stream's first block.
  int64_t bytes() const {
    if (stream_) return numbers_.front() == 0 ? stream_->bytes() : 0;
    return kept_bytes_;
  }

 private:
  static std::vector<at::Tensor*> tensors_of(Block& block) {
    std::vector<at::Tensor*> all;
    block.list_tensors(all);
    std::erase_if(all, [](const at::Tensor* tensor) { return !tensor->defined(); });
    return all;
  }

  /// Returns the bytes of the tensors that a block lists, or those that it says where some of its
  /// tensors are made from others.
  static int64_t bytes_of(Block& block) {
    if constexpr (requires { block.bytes(); }) {
      return block.bytes();
    } else {
      int64_t total = 0;
      for (const at::Tensor* tensor : tensors_of(block))
        total += static_cast<int64_t>(tensor->nbytes());
      return total;
    }
  }

  void add_from_files(const WeightLoader& weights, Make make) {
    const auto read = [weights, make = std::move(make)] {
      auto noted = std::make_shared<WeightLoader::Noted>(weights);
      // When a block is gone, no page of the file stays either.
      return std::shared_ptr<Block>(new Block(make(noted->loader)), [noted](Block* block) {
        delete block;
        noted->release();
      });
    };
    numbers_.push_back(stream_->add(read, bytes_of(*read())));
  }

  void add_from_host(Block block) {
    const int64_t bytes = bytes_of(block);
    const auto device = stream_->device();
    int64_t copied = 0;
    for (at::Tensor* tensor : tensors_of(block)) {
      copied += static_cast<int64_t>(tensor->nbytes());
      *tensor = on_host(*tensor);
    }
    if (copied < bytes) throw std::logic_error("[transformer] a block lists too few tensors");
    const auto read = [block, device] {
      auto made = std::make_shared<Block>(block);
      for (at::Tensor* tensor : tensors_of(*made))
        *tensor =
            tensor->to(tensor->options().device(device), /*non_blocking=*/true, /*copy=*/true);
      return std::shared_ptr<const Block>(made);
    };
    numbers_.push_back(stream_->add(read, bytes));
  }

  std::vector<Block> kept_;
  int64_t kept_bytes_ = 0;
  std::shared_ptr<BlockStream> stream_;
  std::vector<int> numbers_;
};

}  // namespace troupe::models
