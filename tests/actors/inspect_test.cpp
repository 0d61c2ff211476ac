#include "actors/inspect.h"

#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "actors/device.h"
#include "tests/support/doctest.h"

namespace troupe::actors {

TEST_CASE("injected faults are met once") {
  WorkView view;
  int ticks = 0;
  const auto meet = [&](bool micro_step) { return view.meet_faults(micro_step, [&] { ++ticks; }); };
  CHECK_FALSE(meet(true));
  view.inject({.actor = 0, .fault = wire::FaultKind::exception});
  CHECK_THROWS_AS(meet(false), std::runtime_error);
  CHECK_FALSE(meet(false));
  view.inject({.actor = 0, .fault = wire::FaultKind::not_finite});
  CHECK_FALSE(meet(false));  // waits for a micro-step
  CHECK(meet(true));
  CHECK_FALSE(meet(true));
  view.inject({.actor = 0, .fault = wire::FaultKind::delay, .seconds = 0.12});
  const auto start = std::chrono::steady_clock::now();
  CHECK_FALSE(meet(true));
  CHECK(std::chrono::steady_clock::now() - start >= std::chrono::milliseconds(120));
  CHECK(ticks >= 2);
}

TEST_CASE("the error of a lost device is met by every task from then on") {
  WorkView view;
  view.inject({.actor = 0, .fault = wire::FaultKind::device_error});
  for (const bool micro_step : {false, true, true}) {
    try {
      view.meet_faults(micro_step, [] {});
      FAIL("nothing was thrown");
    } catch (const std::exception& error) {
      CHECK(lost_device(error, at::kCPU) ==
            "error 700, an illegal memory access that was injected");
    }
  }
}

TEST_CASE("what looks in between goes before every message and is no part of the order") {
  Mailbox mailbox;
  mailbox.put({{}, TaskEntry{1, {.job = 3, .task = 1, .step = 5, .patch = 1}}});
  mailbox.put({{}, TaskEntry{1, {.job = 3, .task = 2, .receive = true}}});
  mailbox.put_inspection(std::make_shared<Inspection>());
  std::vector<std::string> seen;
  const auto name_of = [](std::uint64_t) { return "batch 3 (jobs 1, 2)"; };
  CHECK(mailbox.look(
            1, [&](const Message& message) { seen.push_back(describe(message, name_of)); }) == 2);
  CHECK(seen == std::vector<std::string>{"batch 3 (jobs 1, 2) step 5 patch 1"});
  const auto first = mailbox.take();
  REQUIRE(first);
  REQUIRE(std::holds_alternative<std::shared_ptr<Inspection>>(first->content));
  const auto& inspection = std::get<std::shared_ptr<Inspection>>(first->content);
  CHECK(inspection->claim());
  CHECK_FALSE(inspection->claim());
  CHECK(std::holds_alternative<TaskEntry>(mailbox.take()->content));
  std::thread later([&] { mailbox.put_inspection(std::make_shared<Inspection>()); });
  mailbox.take();
  CHECK(mailbox.take());  // wakes an idle loop
  later.join();
  for (int i = 0; i < 16; ++i)
    CHECK(mailbox.put_inspection(std::make_shared<Inspection>()));
  CHECK_FALSE(mailbox.put_inspection(std::make_shared<Inspection>()));
}

TEST_CASE("the view says what the loop is doing and since when") {
  WorkView view;
  CHECK(view.doing().first.empty());
  view.begin("job 3 text");
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(view.doing().first == "job 3 text");
  CHECK(view.doing().second >= 0.02);
  CHECK(view.handled() == 0);
  view.end();
  CHECK(view.doing().first.empty());
  CHECK(view.handled() == 1);
}

}  // namespace troupe::actors
