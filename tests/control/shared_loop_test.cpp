#include "transport/control/shared_loop.h"

#include <boost/asio/steady_timer.hpp>
#include <future>
#include <stdexcept>
#include <utility>
#include <vector>

#include "tests/support/doctest.h"

using namespace std::chrono_literals;
using troupe::control::SharedLoop;

namespace {

constexpr auto kLong = 60s;

SharedLoop::Clock::time_point soon() {
  return SharedLoop::Clock::now() + kLong;
}

/// A loop on a thread of its own.
struct Running {
  explicit Running(std::function<void(const std::exception&)> on_error = {})
      : held(std::make_shared<SharedLoop>(std::move(on_error))), loop(*held), owner([this] {
          try {
            loop.run();
          } catch (const std::exception& error) {
            thrown = error.what();
          }
        }) {}
  ~Running() { end(); }
  void end() {
    if (!owner.joinable()) return;
    loop.stop();
    owner.join();
  }

  /// Returns the thread that runs handlers now, as long as no guest does.
  std::thread::id runner() {
    std::promise<std::thread::id> told;
    auto answer = told.get_future();
    loop.post([&] { told.set_value(std::this_thread::get_id()); });
    REQUIRE(answer.wait_for(kLong) == std::future_status::ready);
    return answer.get();
  }

  std::shared_ptr<SharedLoop> held;
  SharedLoop& loop;
  std::string thrown;
  std::thread owner;
};

}  // namespace

TEST_CASE("shared loop: a guest runs the handlers that it waits for, and the owner goes on") {
  Running running;
  const auto owner = running.runner();
  CHECK(owner == running.owner.get_id());
  for (int round = 0; round < 50; ++round) {
    std::thread::id ran{};
    boost::asio::steady_timer timer(running.loop.io());
    bool armed = false;
    bool done = false;
    // Armed by the guest itself, and only who runs the loop can see it expire.
    const auto ended = [&] {
      if (!std::exchange(armed, true)) {
        timer.expires_after(1ms);
        timer.async_wait([&](const boost::system::error_code&) {
          CHECK(running.loop.running_here());
          ran = std::this_thread::get_id();
          done = true;
        });
      }
      return done;
    };
    REQUIRE(running.loop.run_until(ended, soon()));
    REQUIRE(done);
    CHECK(ran == std::this_thread::get_id());
    CHECK_FALSE(running.loop.running_here());
    if (round % 10 == 0) CHECK(running.runner() == owner);
  }
}

TEST_CASE("shared loop: what follows on a wait is done at once, on the same thread") {
  Running running;
  // The owner may be quicker than this thread, on a busy machine again and again.
  bool here = false;
  for (int round = 0; round < 1000 && !here; ++round) {
    REQUIRE(running.loop.run_until([] { return true; }, soon()));
    std::promise<std::thread::id> first;
    auto ran = first.get_future();
    running.loop.dispatch([&] { first.set_value(std::this_thread::get_id()); });
    REQUIRE(ran.wait_for(kLong) == std::future_status::ready);
    here = ran.get() == std::this_thread::get_id();
  }
  CHECK(here);
  // Once, since a second thing without a wait between belongs to a row that is better sent
  // together.
  std::promise<std::thread::id> second;
  auto ran = second.get_future();
  running.loop.dispatch([&] { second.set_value(std::this_thread::get_id()); });
  REQUIRE(ran.wait_for(kLong) == std::future_status::ready);
  CHECK(ran.get() == running.owner.get_id());
}

TEST_CASE("shared loop: another thread's word does not follow on this one's wait") {
  Running running;
  for (int round = 0; round < 20; ++round) {
    REQUIRE(running.loop.run_until([] { return true; }, soon()));
    std::thread other([&] {
      std::promise<std::thread::id> told;
      auto ran = told.get_future();
      running.loop.dispatch([&] { told.set_value(std::this_thread::get_id()); });
      REQUIRE(ran.wait_for(kLong) == std::future_status::ready);
      CHECK(ran.get() == running.owner.get_id());
    });
    other.join();
  }
}

TEST_CASE("shared loop: one guest at a time; others are told to wait in another way") {
  Running running;
  std::promise<void> inside;
  std::atomic<bool> leave{false};
  std::thread guest([&] {
    running.loop.post([&] { inside.set_value(); });
    while (!running.loop.run_until([&] { return leave.load(); }, soon())) {
    }
  });
  REQUIRE(inside.get_future().wait_for(kLong) == std::future_status::ready);
  // The handler may have run on the owner; a moment later the guest is inside.
  bool refused = false;
  for (int i = 0; i < 6000 && !refused; ++i) {
    refused = !running.loop.run_until([] { return true; }, soon());
    std::this_thread::sleep_for(1ms);
  }
  CHECK(refused);
  running.loop.post([&] { leave = true; });
  guest.join();
  CHECK(running.runner() == running.owner.get_id());
}

TEST_CASE("shared loop: beside a pin the owner runs the handlers") {
  Running running;
  {
    const SharedLoop::LoopPin pin(running.held);
    CHECK_FALSE(running.loop.run_until([] { return true; }, soon()));
    CHECK(running.runner() == running.owner.get_id());
  }
  CHECK(running.loop.run_until([] { return true; }, soon()));
}

TEST_CASE("shared loop: a guest gives up at its deadline") {
  Running running;
  for (int round = 0;; ++round) {
    REQUIRE(round < 600);
    const auto until = SharedLoop::Clock::now() + 100ms;
    // False where this thread stood still for so long that it came too late to get in.
    const bool inside = running.loop.run_until([] { return false; }, until);
    CHECK(SharedLoop::Clock::now() >= until);
    if (inside) break;
  }
  CHECK(running.runner() == running.owner.get_id());
}

TEST_CASE("shared loop: a guest leaves to a pin") {
  Running running;
  std::unique_ptr<SharedLoop::LoopPin> pin;
  running.loop.post([&] { pin = std::make_unique<SharedLoop::LoopPin>(running.held); });
  while (running.loop.run_until([] { return false; }, soon())) {
  }
  CHECK(running.runner() == running.owner.get_id());
  REQUIRE(pin);
}

TEST_CASE("shared loop: stopping ends a guest's wait, and the owner waits for it to leave") {
  Running running;
  std::promise<void> inside;
  std::atomic<bool> left{false};
  std::thread guest([&] {
    running.loop.post([&] { inside.set_value(); });
    running.loop.run_until([] { return false; }, soon());
    left = true;
  });
  REQUIRE(inside.get_future().wait_for(kLong) == std::future_status::ready);
  running.end();
  guest.join();
  CHECK(left);
  CHECK_FALSE(running.loop.run_until([] { return true; }, soon()));
}

TEST_CASE("shared loop: what a handler throws ends the loop, or is told") {
  SUBCASE("ends it, also when a guest ran it") {
    Running running;
    CHECK(running.loop.run_until([] { return true; }, soon()));
    running.loop.post([] { throw std::runtime_error("no more"); });
    running.loop.run_until([] { return false; }, soon());
    running.end();
    CHECK(running.thrown == "no more");
  }
  SUBCASE("is told") {
    std::atomic<int> told{0};
    Running running([&](const std::exception& error) {
      told += std::string(error.what()) == "go on" ? 1 : 100;
    });
    running.loop.post([] { throw std::runtime_error("go on"); });
    CHECK(running.runner() == running.owner.get_id());
    CHECK(told == 1);
    running.loop.post([] { throw 1; });
    CHECK(running.runner() == running.owner.get_id());
    CHECK(told == 101);
    running.end();
    CHECK(running.thrown.empty());
  }
  SUBCASE("ends it, if telling throws") {
    Running running([](const std::exception&) { throw std::runtime_error("nor this"); });
    running.loop.post([] { throw std::runtime_error("no more"); });
    running.loop.run_until([] { return false; }, soon());
    running.owner.join();
    CHECK(running.thrown == "nor this");
  }
}

TEST_CASE("shared loop: guests, posts and dispatches of several threads lose nothing") {
  Running running;
  int handled = 0;  // by handlers only: one at a time, whoever runs them
  constexpr int kThreads = 4;
  constexpr int kEach = 2000;
  // Each round takes several turns of several threads; where others have the processor these are
  // milliseconds, and as many rounds are enough as fit into this time.
  const auto end = SharedLoop::Clock::now() + 5s;
  std::atomic<int> asked{0};
  std::atomic<bool> lost{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < kEach && !lost && (i < 20 || SharedLoop::Clock::now() < end); ++i) {
        // Not on this thread's stack: it is given up where it is lost.
        const auto done_here = std::make_shared<std::atomic<bool>>(false);
        auto& done = *done_here;
        const auto action = [&handled, done_here] {
          ++handled;
          *done_here = true;
        };
        ++asked;
        const auto lost_at = soon();
        if (i % 2 == 0) {
          running.loop.dispatch(action);
        } else {
          running.loop.post(action);
        }
        while (!done && !lost) {
          if (SharedLoop::Clock::now() > lost_at) lost = true;
          if (running.loop.run_until([&] { return done.load(); }, SharedLoop::Clock::now() + 100ms))
            continue;
          const SharedLoop::LoopPin pin(running.held);
          for (int look = 0; look < 100 && !done; ++look)
            std::this_thread::yield();
        }
      }
    });
  }
  for (auto& thread : threads)
    thread.join();
  running.end();
  CHECK_FALSE(lost);
  CHECK(handled == asked);
}
