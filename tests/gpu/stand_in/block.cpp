#include "tests/gpu/stand_in/block.h"

#include <array>
#include <cstring>
#include <deque>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu/stand_in/fiber.h"
#include "tests/gpu/stand_in/shared_memory.h"

namespace troupe::cuda_stand_in {
namespace {

constexpr unsigned kWarp = 32;

struct Thread {
  Index index;
  bool living = true;
  std::optional<Wait> wait;
  // Of a shuffle.
  unsigned source = 0;
  const void* mine = nullptr;
  void* theirs = nullptr;
  std::size_t size = 0;
};

class Block {
 public:
  void run(const Index& size, const std::function<void()>& thread, Order& order);

  /// Returns the thread that runs.
  Thread& running() { return *running_; }
  unsigned lane() const { return number_ % kWarp; }
  [[noreturn]] void fail(std::string why);

 private:
  void start(const Index& size, const std::function<void()>& thread);
  void run_warp(unsigned warp, const std::array<unsigned, kWarp>& lanes);
  bool release_lanes(unsigned warp);
  bool may_go_on(unsigned warp, unsigned lane);
  void release_block();
  std::string whereabouts() const;
  Thread* thread_at(unsigned warp, unsigned lane) {
    const unsigned number = warp * kWarp + lane;
    return number < threads_.size() ? &threads_[number] : nullptr;
  }

  std::deque<Fiber> fibers_;  // kept from block to block; as many at least as threads
  std::vector<Thread> threads_;
  Thread* running_ = nullptr;
  unsigned number_ = 0;
  std::string failure_;
};

Block& the_block() {
  static Block block;
  return block;
}

bool same_place(const Wait& a, const Wait& b) {
  return a.kind == b.kind && a.mask == b.mask && a.where.line() == b.where.line() &&
         a.where.column() == b.where.column() &&
         (a.where.file_name() == b.where.file_name() ||
          std::strcmp(a.where.file_name(), b.where.file_name()) == 0);
}

void Block::start(const Index& size, const std::function<void()>& thread) {
  const unsigned count = size.x * size.y * size.z;
  threads_.assign(count, Thread{});
  while (fibers_.size() < count)
    fibers_.emplace_back();
  const auto work = [](void* argument) {
    (*static_cast<const std::function<void()>*>(argument))();
  };
  for (unsigned i = 0; i < count; ++i) {
    threads_[i].index = {i % size.x, i / size.x % size.y, i / size.x / size.y};
    fibers_[i].start(work, const_cast<std::function<void()>*>(&thread));
  }
  place.block_size = size;
  failure_.clear();
  clear_shared_memory();
}

/// Warps run as far as they can, one after another: as far apart as a device may let them drift.
void Block::run(const Index& size, const std::function<void()>& thread, Order& order) {
  start(size, thread);
  std::vector<unsigned> warps((threads_.size() + kWarp - 1) / kWarp);
  std::array<unsigned, kWarp> lanes;
  const auto living = [](const Thread& thread) { return thread.living; };
  while (std::any_of(threads_.begin(), threads_.end(), living)) {
    std::iota(warps.begin(), warps.end(), 0u);
    order.arrange(warps.begin(), warps.end());
    for (const unsigned warp : warps) {
      std::iota(lanes.begin(), lanes.end(), 0u);
      order.arrange(lanes.begin(), lanes.end());
      run_warp(warp, lanes);
    }
    release_block();
  }
  if (!shared_memory_whole()) throw BlockError("bytes beside a shared array were written");
}

void Block::run_warp(unsigned warp, const std::array<unsigned, kWarp>& lanes) {
  do {
    for (const unsigned lane : lanes) {
      Thread* thread = thread_at(warp, lane);
      if (!thread || !thread->living || thread->wait) continue;
      running_ = thread;
      number_ = warp * kWarp + lane;
      place.thread = thread->index;
      fibers_[number_].resume();
      if (!failure_.empty()) throw BlockError(failure_);
      thread->living = !fibers_[number_].ended();
    }
  } while (release_lanes(warp));
}

/// Lets lanes go on that all have come to what they wait for; whether there were any.
bool Block::release_lanes(unsigned warp) {
  bool any = false;
  for (unsigned first = 0; first < kWarp; ++first) {
    if (!may_go_on(warp, first)) continue;
    any = true;
    const Wait wait = *thread_at(warp, first)->wait;
    for (unsigned lane = 0; lane < kWarp; ++lane) {
      Thread* thread = thread_at(warp, lane);
      if (!(wait.mask >> lane & 1) || !thread || !thread->living) continue;
      if (wait.kind == Wait::kShuffle)
        std::memcpy(thread->theirs, thread_at(warp, thread->source)->mine, thread->size);
      thread->wait.reset();
    }
  }
  return any;
}

bool Block::may_go_on(unsigned warp, unsigned lane) {
  const Thread* first = thread_at(warp, lane);
  if (!first || !first->living || !first->wait || first->wait->kind == Wait::kBlock) return false;
  for (unsigned i = 0; i < kWarp; ++i) {
    if (!(first->wait->mask >> i & 1)) continue;
    const Thread* other = thread_at(warp, i);
    if (!other || !other->living) {
      if (first->wait->kind == Wait::kShuffle) return false;
    } else if (!other->wait || !same_place(*other->wait, *first->wait)) {
      return false;
    }
  }
  return true;
}

/// Releases living threads that all wait at one barrier of the block; throws BlockError if they
/// wait for each other. Called when nothing runs any more.
void Block::release_block() {
  const Thread* first = nullptr;
  for (const Thread& thread : threads_) {
    if (!thread.living) continue;
    if (!first) first = &thread;
    if (thread.wait->kind != Wait::kBlock || !same_place(*thread.wait, *first->wait))
      throw BlockError(whereabouts());
  }
  for (Thread& thread : threads_)
    thread.wait.reset();
}

std::string Block::whereabouts() const {
  std::map<std::string, int> at;
  int ended = 0;
  for (const Thread& thread : threads_) {
    if (!thread.living) {
      ++ended;
      continue;
    }
    const Wait& wait = *thread.wait;
    constexpr const char* kFor[] = {"the block", "lanes of the warp", "a shuffle with the warp"};
    ++at[std::string(wait.where.file_name()) + ":" + std::to_string(wait.where.line()) + " for " +
         kFor[wait.kind]];
  }
  std::string text = "threads wait for each other:";
  for (const auto& [where, threads] : at)
    text += " " + std::to_string(threads) + " at " + where + ",";
  return text + " " + std::to_string(ended) + " have ended";
}

void Block::fail(std::string why) {
  failure_.swap(why);
  std::string().swap(why);  // what is left on this stack is never freed
  for (;;)
    Fiber::suspend();
}

}  // namespace

void run_block(const Index& size, const std::function<void()>& thread, Order& order) {
  the_block().run(size, thread, order);
}

void fail_block(std::string why) {
  the_block().fail(std::move(why));
}

void wait_for(const Wait& wait) {
  Block& block = the_block();
  if (wait.kind != Wait::kBlock && !(wait.mask >> block.lane() & 1))
    block.fail("lane " + std::to_string(block.lane()) + " is not in its own mask");
  block.running().wait = wait;
  Fiber::suspend();
}

void exchange(const Wait& wait, unsigned step, const void* mine, void* theirs, std::size_t size) {
  Block& block = the_block();
  const unsigned source = block.lane() ^ step;
  if (source >= kWarp || !(wait.mask >> source & 1))
    block.fail("lane " + std::to_string(block.lane()) + " asks for the value of lane " +
               std::to_string(source) + ", which is not in the mask");
  Thread& self = block.running();
  self.source = source;
  self.mine = mine;
  self.theirs = theirs;
  self.size = size;
  wait_for(wait);
}

}  // namespace troupe::cuda_stand_in
