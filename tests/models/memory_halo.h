#pragma once
#include <ATen/ATen.h>

#include <chrono>
#include <condition_variable>
#include <exception>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "models/vae/halo_port.h"

namespace troupe::models::testing {

/// Board on which the shards of one picture, a thread each, lay down what the others are to see.
class Board {
 public:
  explicit Board(int shards) : slots_(shards) {}
  int shards() const { return static_cast<int>(slots_.size()); }

  /// Returns everybody's `mine`, in the order of shards. Throws when the others do not come.
  std::vector<at::Tensor> swap(int shard, at::Tensor mine) {
    std::unique_lock lock(mutex_);
    slots_[shard] = std::move(mine);
    meet(lock);
    std::vector<at::Tensor> all = slots_;
    meet(lock);
    return all;
  }
  void give_up() {
    const std::lock_guard lock(mutex_);
    given_up_ = true;
    changed_.notify_all();
  }

 private:
  void meet(std::unique_lock<std::mutex>& lock) {
    const int round = round_;
    if (++here_ == shards()) {
      here_ = 0;
      ++round_;
      changed_.notify_all();
      return;
    }
    const auto over = [&] { return given_up_ || round_ != round; };
    if (!changed_.wait_for(lock, std::chrono::seconds(60), over) || round_ == round) {
      throw std::runtime_error("a shard did not come");
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<at::Tensor> slots_;
  int here_ = 0;
  int round_ = 0;
  bool given_up_ = false;
};

class MemoryHalo final : public HaloPort {
 public:
  MemoryHalo(Board& board, int shard) : board_(board), shard_(shard) {}
  int shard() const override { return shard_; }
  int shards() const override { return board_.shards(); }

  Halo exchange(const at::Tensor& x, bool above, bool below) override {
    const auto edges = at::cat({x.narrow(2, 0, 1), x.narrow(2, x.size(2) - 1, 1)}, 2);
    const auto all = board_.swap(shard_, edges);
    Halo halo;
    if (above && shard_ > 0) halo.above = all[shard_ - 1].narrow(2, 1, 1).clone();
    if (below && shard_ + 1 < shards()) halo.below = all[shard_ + 1].narrow(2, 0, 1).clone();
    return halo;
  }
  void sum(const at::Tensor& values) override {
    const auto all = board_.swap(shard_, values.clone());
    values.copy_(at::stack(all).sum(0));
  }
  at::Tensor gather(const at::Tensor& own) override { return at::cat(board_.swap(shard_, own)); }

 private:
  Board& board_;
  int shard_;
};

/// Returns what `work` returns for each of `shards` shards, each a thread of its own.
template <class Work>
auto on_shards(int shards, const Work& work) {
  using Result = decltype(work(std::declval<HaloPort&>()));
  Board board(shards);
  std::vector<Result> results(shards);
  std::vector<std::exception_ptr> errors(shards);
  std::vector<std::thread> threads;
  for (int shard = 0; shard < shards; ++shard) {
    threads.emplace_back([&, shard] {
      try {
        MemoryHalo port(board, shard);
        results[shard] = work(port);
      } catch (...) {
        errors[shard] = std::current_exception();
        board.give_up();
      }
    });
  }
  for (auto& thread : threads)
    thread.join();
  for (const auto& error : errors) {
    if (error) std::rethrow_exception(error);
  }
  return results;
}

}  // namespace troupe::models::testing
