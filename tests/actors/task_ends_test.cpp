// When ends of tasks are told, on a device whose progress the test makes.
#include "actors/stage/task_ends.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <mutex>
#include <stdexcept>

#include "tests/support/doctest.h"
#include "tests/support/patience.h"

using namespace troupe;
using namespace troupe::actors;
using troupe::testing::eventually;
using namespace std::chrono_literals;

namespace {

/// A device that has done what was issued up to a mark, and knows when: nanoseconds of its own.
class Device {
 public:
  struct Mark final : DeviceMark {
    Mark(Device& device, std::int64_t at) : device(device), at(at) {}
    bool passed() const override {
      if (device.fails) throw std::runtime_error("the device is gone");
      return device.now >= at;
    }
    double seconds_since(const DeviceMark& earlier) const override {
      return static_cast<double>(at - static_cast<const Mark&>(earlier).at) / 1e9;
    }
    Device& device;
    std::int64_t at;
  };
  std::unique_ptr<DeviceMark> at(std::int64_t ns) { return std::make_unique<Mark>(*this, ns); }
  DeviceSpan span(std::int64_t begin, std::int64_t end) { return {at(begin), at(end)}; }

  std::atomic<std::int64_t> now = 0;
  std::atomic<bool> fails = false;
};

struct Told {
  int task;
  RanAt at;
};

struct Room {
  Device device;
  std::atomic<std::int64_t> clock = 0;  // the process's; it is read a little late
  std::atomic<bool> epoch_ended = false;
  std::atomic<int> ticks = 0;  // of progress, while the device waits for a peer
  std::atomic<int> looks = 0;  // at the clock, each before one at the device
  std::mutex mutex;
  std::vector<Told> told;
  std::vector<std::string> troubles;
  bool begun = false;
  TaskEnds ends{{.begin = [this] { begun = true; },
                 .ended = [this](std::uint64_t epoch) { return epoch == 1 && epoch_ended; },
                 .now_ns =
                     [this] {
                       ++looks;
                       return clock.load();
                     },
                 .waits = [this] { ++ticks; },
                 .patience = 1s}};

  TaskEnds::Task task(int number, DeviceSpan ran, std::vector<DeviceSpan> waits = {},
                      std::uint64_t epoch = 1) {
    return {.epoch = epoch,
            .ran = std::move(ran),
            .waits = std::move(waits),
            .tell =
                [this, number](const RanAt& at) {
                  std::lock_guard lock(mutex);
                  told.push_back({number, at});
                },
            .fail =
                [this](const std::exception& error) {
                  std::lock_guard lock(mutex);
                  troubles.emplace_back(error.what());
                }};
  }
  std::size_t count() {
    std::lock_guard lock(mutex);
    return told.size() + troubles.size();
  }
  /// Waits until so many ends were told.
  bool reaches(std::size_t want) {
    eventually([&] { return count() >= want; });
    return count() == want;
  }
  /// Waits until a look that was under way is over, and another one, too.
  bool looks_again() {
    return eventually([this, before = looks.load()] { return looks >= before + 3; });
  }
};

}  // namespace

TEST_CASE("ends are told when the device has come to them, in order, with the device's times") {
  Room room;
  room.ends.add(room.task(0, room.device.span(100, 500)));
  std::vector<DeviceSpan> waits;
  waits.push_back(room.device.span(600, 700));
  room.ends.add(room.task(1, room.device.span(500, 900), std::move(waits)));
  std::this_thread::sleep_for(20ms);
  CHECK(room.count() == 0);  // issued, not done
  room.device.now = 499;
  std::this_thread::sleep_for(20ms);
  CHECK(room.count() == 0);
  room.clock = 10'000'550;
  room.device.now = 500;
  REQUIRE(room.reaches(1));
  CHECK(room.told[0].at.ran == wire::ClockSpan{10'000'150, 10'000'550});
  CHECK(room.told[0].at.waits.empty());
  // A look that comes much later changes nothing about when it was.
  room.clock = 20'000'000;
  room.device.now = 900;
  REQUIRE(room.reaches(2));
  CHECK(room.told[1].task == 1);
  CHECK(room.told[1].at.ran == wire::ClockSpan{10'000'550, 10'000'950});
  REQUIRE(room.told[1].at.waits.size() == 1);
  CHECK(room.told[1].at.waits[0] == wire::ClockSpan{10'000'650, 10'000'750});
  // One that comes sooner is nearer to the truth.
  room.clock = 10'001'960;
  room.ends.add(room.task(2, room.device.span(1000, 2000)));
  room.device.now = 5000;
  REQUIRE(room.reaches(3));
  CHECK(room.told[2].at.ran == wire::ClockSpan{10'000'960, 10'001'960});
  CHECK(room.begun);
}

TEST_CASE("a device that waits for a peer shows progress, until the deadline of a transfer") {
  Room room;
  std::vector<DeviceSpan> waits;
  waits.push_back(room.device.span(100, 200));
  waits.push_back(room.device.span(300, 400));
  room.ends.add(room.task(0, room.device.span(0, 500), std::move(waits)));
  const auto go_to = [&](std::int64_t device, std::int64_t clock) {
    room.clock = clock;
    REQUIRE(room.looks_again());  // no look finds a wait that has begun sooner
    room.device.now = device;
    REQUIRE(room.looks_again());
  };
  const auto ticks_at = [&](std::int64_t device, std::int64_t clock) {
    go_to(device, clock);
    const int before = room.ticks;
    return eventually([&] { return room.ticks > before; });
  };
  const auto stands_at = [&](std::int64_t device, std::int64_t clock) {
    go_to(device, clock);
    const int before = room.ticks;
    return room.looks_again() && room.ticks == before;
  };
  constexpr std::int64_t kSecond = 1'000'000'000;
  CHECK(stands_at(50, 0));  // it computes
  CHECK(ticks_at(150, kSecond));
  CHECK(ticks_at(150, 2 * kSecond));
  CHECK(stands_at(150, 2 * kSecond + 1));  // the peer is past its deadline
  CHECK(stands_at(250, 2 * kSecond + 1));
  CHECK(ticks_at(350, 9 * kSecond));  // each wait has its own
  CHECK(stands_at(450, 9 * kSecond));
  room.device.now = 500;
  CHECK(room.reaches(1));
}

TEST_CASE("a device that hangs tells of no end, and the end of its epoch drops what waits") {
  Room room;
  for (int task = 0; task < 3; ++task)
    room.ends.add(room.task(task, room.device.span(0, 1000)));
  room.ends.add(room.task(3, room.device.span(0, 0), {}, /*epoch=*/2));
  std::this_thread::sleep_for(30ms);
  CHECK(room.count() == 0);  // in order: behind the first
  room.epoch_ended = true;
  REQUIRE(room.reaches(1));
  CHECK(room.told[0].task == 3);
}

TEST_CASE("what the device runs into is told for each task, and leaving waits for nobody") {
  Room room;
  room.ends.add(room.task(0, room.device.span(0, 1000)));
  room.device.fails = true;
  REQUIRE(room.reaches(1));
  CHECK(room.troubles == std::vector<std::string>{"the device is gone"});
  room.device.fails = false;
  room.ends.add(room.task(1, room.device.span(0, 1000)));
  // The device never comes to that end.
  Room leaving;
  leaving.ends.add(leaving.task(0, leaving.device.span(0, 1000)));
}
