#include "models/dit/blocks.h"

#include <atomic>
#include <random>
#include <stdexcept>
#include <vector>

#include "tests/support/doctest.h"

using namespace troupe::models;

namespace {

/// A block that counts how many of its kind there are.
struct Counted {
  Counted(int number, std::atomic<int>& alive, std::atomic<int>& most)
      : number(number), alive(alive) {
    const int now = ++alive;
    int seen = most;
    while (now > seen && !most.compare_exchange_weak(seen, now)) {
    }
  }
  ~Counted() { --alive; }

  int number;
  std::atomic<int>& alive;
};

struct CountedBlocks {
  explicit CountedBlocks(int count) {
    for (int i = 0; i < count; ++i) {
      stream.add(
          [this, i]() -> std::shared_ptr<const void> {
            ++reads;
            if (broken == i) throw std::runtime_error("[test] block " + std::to_string(i));
            return std::make_shared<const Counted>(i, alive, most);
          },
          10 + i);
    }
  }
  int get(int i) { return static_cast<const Counted*>(stream.get(i))->number; }

  std::atomic<int> alive{0}, most{0}, reads{0}, broken{-1};
  BlockStream stream{at::kCPU};
};

}  // namespace

TEST_CASE("blocks come in any order, and two are in memory at most") {
  CountedBlocks blocks(7);
  CHECK(blocks.stream.bytes() == 15 + 16);
  for (int turn = 0; turn < 50; ++turn)
    for (int i = 0; i < 7; ++i)
      REQUIRE(blocks.get(i) == i);
  CHECK(blocks.reads <= 50 * 7 + 1);  // each once a turn, and the one that is read ahead
  std::mt19937 random(1);
  for (int turn = 0; turn < 500; ++turn) {
    const int i = static_cast<int>(random() % 7);
    REQUIRE(blocks.get(i) == i);
    REQUIRE(blocks.get(i) == i);
  }
  CHECK(blocks.most == 2);
  CHECK(blocks.stream.most_held() <= blocks.stream.bytes());
}

TEST_CASE("a stage of one block or two reads each once") {
  for (const int count : {1, 2}) {
    CountedBlocks blocks(count);
    for (int turn = 0; turn < 20; ++turn)
      for (int i = 0; i < count; ++i)
        REQUIRE(blocks.get(i) == i);
    CHECK(blocks.reads == count);
    CHECK(blocks.stream.bytes() == (count == 1 ? 10 : 21));
  }
}

TEST_CASE("what reading throws reaches who asked, and the next one reads again") {
  CountedBlocks blocks(4);
  CHECK(blocks.get(0) == 0);
  blocks.broken = 2;
  CHECK(blocks.get(1) == 1);
  CHECK_THROWS_WITH_AS(blocks.get(2), "[test] block 2", std::runtime_error);
  CHECK_THROWS_WITH_AS(blocks.get(2), "[test] block 2", std::runtime_error);
  // Read ahead in vain, and not asked for.
  CHECK(blocks.get(1) == 1);
  CHECK(blocks.get(0) == 0);
  CHECK(blocks.get(3) == 3);
  blocks.broken = -1;
  CHECK(blocks.get(2) == 2);
  CHECK(blocks.get(3) == 3);
  CHECK(blocks.most == 2);
  CHECK(blocks.stream.most_held() <= blocks.stream.bytes());
}

TEST_CASE("a stream that was never asked, or is busy reading, goes at once") {
  { CountedBlocks idle(3); }
  for (int turn = 0; turn < 50; ++turn) {
    CountedBlocks busy(3);
    CHECK(busy.get(turn % 3) == turn % 3);
  }
}
