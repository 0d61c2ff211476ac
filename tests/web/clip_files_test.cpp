#include "web/clip_files.h"

#include <chrono>
#include <thread>

#include "tests/support/doctest.h"
#include "tests/support/patience.h"

using namespace troupe;
using namespace troupe::web;

namespace {

constexpr auto kMp4 = models::ClipFormat::mp4;

/// Encodes by adding a format that is not mp4, and the quality to the bytes; `held` waits in it
/// until it is let go, or stopped.
struct Encoder {
  std::string operator()(std::string_view png, models::ClipFormat format, int quality,
                         std::stop_token stop) {
    ++*count;
    while (held->load() && !stop.stop_requested())
      std::this_thread::yield();
    if (stop.stop_requested()) ++*stopped;
    if (stop.stop_requested()) throw std::runtime_error("stopped");
    if (png == "bad") throw std::runtime_error("it is no clip");
    return std::string(png) + (format == models::ClipFormat::mp4 ? "" : to_string(format)) +
           std::to_string(quality);
  }
  std::shared_ptr<std::atomic<int>> count = std::make_shared<std::atomic<int>>(0);
  std::shared_ptr<std::atomic<int>> stopped = std::make_shared<std::atomic<int>>(0);
  std::shared_ptr<std::atomic<bool>> held = std::make_shared<std::atomic<bool>>(false);
};

std::shared_ptr<const JobResult> clips(std::vector<std::string> pngs) {
  auto result = std::make_shared<JobResult>();
  for (auto& png : pngs)
    result->pictures.push_back({std::move(png)});
  return result;
}

struct Fixture {
  explicit Fixture(ClipFiles::Limits limits = {}) : files(io, limits, encoder) {}

  /// Makes a file; the result becomes its bytes, or the error's code.
  std::shared_ptr<std::string> make(const ClipFiles::Key& key,
                                    std::shared_ptr<const JobResult> result,
                                    const std::string& owner = "me") {
    auto answer = std::make_shared<std::string>();
    last = files.make(key, owner, std::move(result), [answer](const Result<ClipFiles::File>& file) {
      *answer = file ? *file.value() : to_string(file.error().code);
    });
    return answer;
  }
  void wait_for(const std::string& answer) {
    const auto until = std::chrono::steady_clock::now() + testing::kPatience;
    while (answer.empty() && std::chrono::steady_clock::now() < until) {
      io.restart();
      io.run_for(std::chrono::milliseconds(5));
    }
    REQUIRE_FALSE(answer.empty());
  }

  boost::asio::io_context io;
  Encoder encoder;
  ClipFiles files;
  std::uint64_t last = 0;  // who has asked
};

}  // namespace

TEST_CASE("a clip is encoded once for all who ask, and is kept") {
  Fixture one;
  *one.encoder.held = true;
  const auto result = clips({"a", "bad"});
  const auto first = one.make({"1-aa", 0, kMp4, 90}, result);
  const auto second = one.make({"1-aa", 0, kMp4, 90}, result);
  const auto other = one.make({"1-aa", 0, kMp4, 10}, result);
  const auto webm = one.make({"1-aa", 0, models::ClipFormat::webm, 90}, result);
  const auto bad = one.make({"1-aa", 1, kMp4, 90}, result);
  CHECK_FALSE(one.files.find({"1-aa", 0, kMp4, 90}));
  *one.encoder.held = false;
  one.wait_for(*bad);
  CHECK(*first == "a90");
  CHECK(*second == "a90");
  CHECK(*other == "a10");
  CHECK(*webm == "awebm90");
  CHECK(*bad == "failed");
  CHECK(*one.encoder.count == 4);
  REQUIRE(one.files.find({"1-aa", 0, kMp4, 90}));
  CHECK(*one.files.find({"1-aa", 0, kMp4, 90}) == "a90");
  CHECK_FALSE(one.files.find({"1-aa", 1, kMp4, 90}));
  one.files.drop("1-aa");
  CHECK_FALSE(one.files.find({"1-aa", 0, kMp4, 90}));
}

TEST_CASE("what waits to be encoded is bounded, and what is kept in bytes") {
  Fixture one({.threads = 1, .waiting = 1, .bytes = 10});
  *one.encoder.held = true;
  const auto first = one.make({"1-aa", 0, kMp4, 90}, clips({"aaa"}));
  const auto second = one.make({"2-aa", 0, kMp4, 90}, clips({"bbb"}));
  CHECK(*one.make({"3-aa", 0, kMp4, 90}, clips({"c"})) == "overloaded");
  *one.encoder.held = false;
  one.wait_for(*second);
  CHECK(one.files.find({"1-aa", 0, kMp4, 90}));  // now the newest
  one.wait_for(*one.make({"3-aa", 0, kMp4, 90}, clips({"ccc"})));
  CHECK_FALSE(one.files.find({"2-aa", 0, kMp4, 90}));
  CHECK(one.files.find({"1-aa", 0, kMp4, 90}));
  const auto big = one.make({"4-aa", 0, kMp4, 90}, clips({"longer than all"}));
  one.wait_for(*big);
  CHECK(*big == "longer than all90");  // is sent, though it is not kept
  CHECK_FALSE(one.files.find({"4-aa", 0, kMp4, 90}));
}

TEST_CASE("what nobody waits for any more is not encoded to its end, or not at all") {
  Fixture one({.threads = 1, .waiting = 2});
  *one.encoder.held = true;
  const auto result = clips({"a", "b", "c"});
  const auto until = [](const std::atomic<int>& count, int wanted) {
    const auto end = std::chrono::steady_clock::now() + testing::kPatience;
    while (count < wanted && std::chrono::steady_clock::now() < end)
      std::this_thread::yield();
    return count == wanted;
  };
  const ClipFiles::Key running{"1-aa", 0, kMp4, 90}, waiting{"1-aa", 1, kMp4, 90};
  const auto first = one.make(running, result);
  const auto first_asked = one.last;
  REQUIRE(until(*one.encoder.count, 1));
  const auto second = one.make(running, result);
  const auto second_asked = one.last;
  const auto third = one.make(waiting, result);
  const auto third_asked = one.last;
  const auto fourth = one.make({"1-aa", 2, kMp4, 90}, result);
  CHECK(*one.make({"2-aa", 0, kMp4, 90}, result) == "overloaded");
  one.files.leave(third_asked);
  one.files.leave(third_asked);  // is gone already
  one.files.leave(first_asked);  // the second is still there
  const auto fifth = one.make({"2-aa", 0, kMp4, 90}, result);
  CHECK(fifth->empty());  // has the third's place
  CHECK(*one.encoder.stopped == 0);
  one.files.leave(second_asked);
  CHECK(until(*one.encoder.stopped, 1));
  *one.encoder.held = false;
  one.wait_for(*fifth);
  CHECK(*fourth == "c90");
  CHECK(*fifth == "a90");
  CHECK(*one.encoder.count == 3);
  CHECK(first->empty());
  CHECK(second->empty());
  CHECK(third->empty());
  CHECK_FALSE(one.files.find(running));
  CHECK_FALSE(one.files.find(waiting));
  const auto again = one.make(running, result);
  one.wait_for(*again);
  CHECK(*again == "a90");
}

TEST_CASE("who asks for what was just stopped gets an encoding of its own") {
  Fixture one;
  *one.encoder.held = true;
  const ClipFiles::Key key{"1-aa", 0, kMp4, 90};
  one.make(key, clips({"a"}));
  while (*one.encoder.count == 0)
    std::this_thread::yield();
  one.files.leave(one.last);
  const auto again = one.make(key, clips({"a"}));
  *one.encoder.held = false;
  one.wait_for(*again);
  CHECK(*again == "a90");
}

TEST_CASE("whose clips they are takes turns with others, and has one thread") {
  Fixture one({.threads = 2, .waiting = 8, .waiting_of_one = 3});
  *one.encoder.held = true;
  const auto result = clips({"a", "b", "c", "d", "e"});
  const auto mine = [&](std::size_t picture) {
    return one.make({"1-aa", picture, kMp4, 90}, result, "me");
  };
  const auto first = mine(0), second = mine(1), third = mine(2), fourth = mine(3);
  CHECK(*mine(4) == "overloaded");
  const auto others = one.make({"2-aa", 0, kMp4, 90}, result, "other");
  // Mine and the other's, though mine were asked for before.
  const auto until = std::chrono::steady_clock::now() + testing::kPatience;
  while (*one.encoder.count < 2 && std::chrono::steady_clock::now() < until)
    std::this_thread::yield();
  REQUIRE(*one.encoder.count == 2);
  *one.encoder.held = false;
  one.wait_for(*others);
  one.wait_for(*fourth);
  CHECK(*first == "a90");
  CHECK(*second == "b90");
  CHECK(*third == "c90");
}

TEST_CASE("the end does not wait for a clip to be encoded") {
  auto one = std::make_unique<Fixture>();
  *one->encoder.held = true;
  const auto answer = one->make({"1-aa", 0, kMp4, 90}, clips({"a"}));
  while (*one->encoder.count == 0)
    std::this_thread::yield();
  one.reset();
  CHECK(answer->empty());
}
