// The thread that ends an NCCL communicator, without NCCL: a lock that a thread holds across a call
// that does not return stands for the stuck device.
#include "transport/tensor/nccl/aborter.h"

#include <atomic>
#include <chrono>
#include <mutex>
#include <stdexcept>
#include <thread>

#include "tests/support/doctest.h"

using namespace std::chrono_literals;
using namespace troupe::tensor;
using nccl::Aborter;
using nccl::Verdict;
using Clock = std::chrono::steady_clock;

namespace {

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

}  // namespace

TEST_CASE("the thread has its device before anybody asks, and ends on it, once") {
  std::thread::id began, ended;
  std::atomic<int> ends = 0;
  Aborter aborter({.begin = [&] { began = std::this_thread::get_id(); },
                   .end =
                       [&] {
                         ended = std::this_thread::get_id();
                         ++ends;
                       }},
                  within(10s));
  CHECK(began != std::thread::id());
  CHECK(began != std::this_thread::get_id());
  aborter.await_end(10s);  // nobody has asked
  CHECK(ends == 0);
  aborter.ask();
  aborter.ask();
  aborter.ask_by(within(0s));
  aborter.await_end(10s);
  CHECK(ends == 1);
  CHECK(ended == began);
}

TEST_CASE("asking waits for nobody, and what is asked for is waited for within its bound") {
  std::timed_mutex issuing;
  issuing.lock();  // somebody is inside a call that waits for the device
  std::atomic<bool> got_it = false, over = false;
  Aborter aborter({.begin = [] {},
                   .end =
                       [&] {
                         got_it = issuing.try_lock_for(1s);
                         over = true;
                       }},
                  within(10s));
  aborter.ask();
  aborter.await_end(60s);
  CHECK(over);
  CHECK_FALSE(got_it);
  issuing.unlock();

  std::promise<void> let_go;
  // Whoever waited for that end would wait for ever.
  Aborter stuck({.begin = [] {}, .end = [&] { let_go.get_future().wait(); }}, within(10s));
  const auto asked = Clock::now();
  stuck.ask();
  stuck.await_end(100ms);
  CHECK(seconds_since(asked) > 0.09);
  let_go.set_value();
  stuck.await_end(10s);
}

TEST_CASE("what was to end by itself is ended at its deadline, or sooner where it is asked for") {
  std::atomic<int> ends = 0;
  const Aborter::Calls calls{.begin = [] {}, .end = [&] { ++ends; }};
  Aborter later(calls, within(10s));
  later.ask_by(within(1h));
  later.ask_by(within(100ms));
  later.ask_by(within(1h));
  later.await_end(10s);
  CHECK(ends == 1);
  Aborter sooner(calls, within(10s));
  sooner.ask_by(within(1h));
  sooner.ask();
  sooner.await_end(10s);
  CHECK(ends == 2);
  Aborter{calls, within(10s)};  // goes without having been asked
  CHECK(ends == 2);
}

TEST_CASE("a thread that does not get its device is no aborter") {
  const auto end = [] {};
  CHECK_THROWS_WITH_AS(
      Aborter({.begin = [] { throw std::runtime_error("no device"); }, .end = end}, within(10s)),
      "no device", std::runtime_error);
  auto waits = std::make_shared<std::promise<void>>();
  CHECK_THROWS_WITH_AS(
      Aborter({.begin = [waits] { waits->get_future().wait(); }, .end = end}, within(50ms)),
      "[tensor.nccl] the thread that aborts did not get its device in time", std::runtime_error);
  waits->set_value();
}

TEST_CASE("the first cause stays") {
  Verdict verdict;
  CHECK_FALSE(verdict.given());
  CHECK_FALSE(verdict.cause());
  CHECK(verdict.give({Failure::peer_lost, 2, "rank 2 is gone"}));
  CHECK_FALSE(verdict.give({Failure::aborted, -1, "later"}));
  REQUIRE(verdict.cause());
  CHECK(verdict.cause()->kind == Failure::peer_lost);
  CHECK(verdict.cause()->culprit == 2);
  CHECK(verdict.cause()->text == "rank 2 is gone");
  Verdict silent;
  silent.give({Failure::aborted, 0, ""});
  CHECK(silent.cause()->text == "aborted");
}
