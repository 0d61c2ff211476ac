#include "web/workers.h"

#include <atomic>
#include <future>
#include <thread>
#include <vector>

#include "tests/support/doctest.h"
#include "tests/support/patience.h"

using troupe::web::Workers;

TEST_CASE("one who asks for much has half of the threads, and others their turns") {
  std::promise<void> gate;
  const auto open = gate.get_future().share();
  std::atomic<int> begun = 0;
  std::atomic<int> others = 0;
  std::atomic<int> own = 0;
  Workers workers(4);
  for (int i = 0; i < 100; ++i)
    CHECK(workers.post([&, open] { ++begun, open.wait(); }, "much"));
  const auto until = [](const std::atomic<int>& count, int wanted) {
    const auto end = std::chrono::steady_clock::now() + troupe::testing::kPatience;
    while (count < wanted && std::chrono::steady_clock::now() < end)
      std::this_thread::yield();
    return count.load();
  };
  CHECK(until(begun, 2) == 2);
  // Two threads are left, and nothing of the hundred is before these.
  for (int i = 0; i < 10; ++i)
    CHECK(workers.post([&] { ++others; }, "other"));
  CHECK(until(others, 10) == 10);
  for (int i = 0; i < 10; ++i)
    CHECK(workers.post([&] { ++own; }));
  CHECK(until(own, 10) == 10);
  CHECK(begun == 2);
  gate.set_value();
  CHECK(until(begun, 100) == 100);
}

TEST_CASE("what one may leave waiting is bounded, and leaves others their places") {
  std::promise<void> gate;
  const auto open = gate.get_future().share();
  Workers workers(1);
  CHECK(workers.post([open] { open.wait(); }, "one"));
  std::size_t taken = 0;
  while (workers.post([] {}, "one"))
    ++taken;
  CHECK(taken == Workers::kMostWaitingOfOne);
  CHECK(workers.post([] {}, "other"));
  gate.set_value();
}
