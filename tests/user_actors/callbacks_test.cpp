#include <signal.h>

#include <atomic>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/support/doctest.h"
#include "tests/support/patience.h"
#include "tests/user_actors/classes.h"
#include "tests/user_actors/small_cluster.h"

// On which thread things happen: one that waits runs the loop itself, callbacks of users it does
// not.
namespace troupe::testing {

using namespace std::chrono_literals;

TEST_CASE("callbacks come on the client's own thread, also while another one waits") {
  SmallCluster cluster;
  auto client = cluster.connect();
  auto actors = client.actors();
  auto victim = take(actors.spawn<Probe>({}, "victim"));
  auto other = take(actors.spawn<Counter>({}, 0));
  // The waiting thread has been running the loop until here.
  for (int i = 1; i <= 50; ++i)
    REQUIRE(take(other.call<&Counter::add>(1).wait(kPatience)) == i);

  pid_t pid = 0;
  for (const auto& each : take(actors.list()))
    if (each.id == victim.id()) pid = static_cast<pid_t>(each.pid);
  REQUIRE(pid > 0);

  std::mutex held;
  std::promise<std::thread::id> told;
  auto ran = told.get_future();
  take(victim.monitor([&](const Death&) {
    std::lock_guard lock(held);
    told.set_value(std::this_thread::get_id());
  }));
  {
    // With the callback in its way the client's thread stands still until this one gives up.
    std::lock_guard lock(held);
    kill(pid, SIGKILL);
    (void)other.call<&Counter::add>(1).wait(300ms);
  }
  REQUIRE(ran.wait_for(kPatience) == std::future_status::ready);
  CHECK(ran.get() != std::this_thread::get_id());
  for (int i = 52; i <= 100; ++i)
    REQUIRE(take(other.call<&Counter::add>(1).wait(kPatience)) == i);
}

TEST_CASE("threads that wait beside each other all get their answers") {
  SmallCluster cluster;
  auto client = cluster.connect();
  auto actors = client.actors();
  auto counter = take(actors.spawn<Counter>({}, 0));
  constexpr int kThreads = 4;
  constexpr int kCalls = 200;
  std::atomic<int> answered{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kCalls; ++i) {
        if (counter.call<&Counter::add>(1).wait(kPatience)) ++answered;
      }
    });
  }
  for (auto& thread : threads)
    thread.join();
  CHECK(answered == kThreads * kCalls);
  CHECK(take(counter.call<&Counter::value>().wait(kPatience)) == kThreads * kCalls);
}

TEST_CASE("a client that goes ends the waits on it") {
  SmallCluster cluster;
  for (int round = 0; round < 10; ++round) {
    std::optional<Client> client(cluster.connect());
    auto probe = take(client->actors().spawn<Probe>({}, "p"));
    auto sleeping = probe.call<&Probe::sleep>(600'000);
    std::promise<Error> ended;
    auto error = ended.get_future();
    std::thread waiter([&] { ended.set_value(sleeping.wait(kPatience).error()); });
    std::this_thread::sleep_for(std::chrono::milliseconds(5 * round));
    client.reset();
    REQUIRE(error.wait_for(kPatience) == std::future_status::ready);
    CHECK(error.get().code == ErrorCode::lost);
    waiter.join();
  }
}

}  // namespace troupe::testing
