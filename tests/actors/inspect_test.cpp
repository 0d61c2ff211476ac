#include "actors/inspect.h"

#include <ATen/ATen.h>

#include <chrono>
#include <cmath>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "actors/device_error.h"
#include "tests/support/doctest.h"

namespace troupe::actors {
namespace {

constexpr wire::SliceRange kAll{};
constexpr wire::SliceRange at_index(std::int64_t index) {
  return {.begin = index, .end = 0, .whole = false, .single = true};
}
constexpr wire::SliceRange between(std::int64_t begin, std::int64_t end) {
  return {.begin = begin, .end = end, .whole = false, .single = false};
}

}  // namespace

TEST_CASE("a tensor's row has its finite values' figures") {
  const auto row = tensor_row("x", at::tensor({1.0F, 3.0F, NAN, -2.0F, INFINITY}));
  CHECK(row.shape == std::vector<std::int64_t>{5});
  CHECK(row.dtype == "float32");
  CHECK(row.mean == doctest::Approx(2.0 / 3));
  CHECK(row.min == -2);
  CHECK(row.max == 3);
  CHECK(row.not_finite == 2);
  CHECK(tensor_row("x", at::empty({0, 4}, at::kBFloat16)).dtype == "bfloat16");
  CHECK(tensor_row("x", at::full({2}, NAN)).not_finite == 2);
  CHECK(tensor_row("x", at::ones({2}, at::kLong)).dtype == "int64");
}

TEST_CASE("slices of a tensor") {
  const auto tensor = at::arange(24).view({2, 3, 4});
  CHECK(tensor_slice(tensor, {}).values.size() == 24);
  const auto slice = tensor_slice(tensor, {at_index(1), between(1, 0), between(-2, -1)});
  CHECK(slice.shape == std::vector<std::int64_t>{2, 1});
  CHECK(slice.values == std::vector<double>{18, 22});
  const auto one = tensor_slice(tensor, {at_index(-1), at_index(0), at_index(3)});
  CHECK(one.shape.empty());
  CHECK(one.values == std::vector<double>{15});
  CHECK(tensor_slice(tensor, {kAll, at_index(0)}).shape == std::vector<std::int64_t>{2, 4});
  CHECK(tensor_slice(tensor, {between(1, 1)}).values.empty());
  using Ranges = std::vector<wire::SliceRange>;
  for (const auto& wrong :
       {Ranges{at_index(2)}, Ranges{at_index(-3)}, Ranges{between(0, 3)}, Ranges{between(2, 1)},
        Ranges{kAll, kAll, kAll, kAll}, Ranges{between(-9, 1)}}) {
    CHECK_THROWS_AS(tensor_slice(tensor, wrong), std::invalid_argument);
  }
  CHECK_THROWS_AS(tensor_slice(at::zeros({wire::kMaxSliceValues + 1}), {}), std::invalid_argument);
}

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

TEST_CASE("what looks in between goes before every letter and is no part of the order") {
  Mailbox mailbox;
  mailbox.put({{}, TaskEntry{1, {.job = 3, .task = 1, .step = 5, .patch = 1}}});
  mailbox.put({{}, TaskEntry{1, {.job = 3, .task = 2, .receive = true}}});
  mailbox.put_inspection(std::make_shared<Inspection>());
  std::vector<std::string> seen;
  CHECK(mailbox.look(1, [&](const Letter& letter) { seen.push_back(describe(letter)); }) == 2);
  CHECK(seen == std::vector<std::string>{"job 3 step 5 patch 1"});
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
