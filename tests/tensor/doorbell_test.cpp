#include "transport/tensor/engine.h"

#include <poll.h>

#include <array>
#include <atomic>
#include <chrono>
#include <thread>

#include "tests/support/doctest.h"

using namespace troupe::tensor;
using namespace std::chrono_literals;

namespace {

bool readable(int fd, std::chrono::milliseconds within) {
  pollfd waiting{fd, POLLIN, 0};
  return ::poll(&waiting, 1, static_cast<int>(within.count())) == 1;
}

}  // namespace

TEST_CASE("a ring that nobody attends is always followed by a look, however many ring at once") {
  constexpr int kRings = 200'000;
  Doorbell bell;
  std::atomic<int> published{0};
  std::array<std::thread, 2> peers;
  for (std::thread& peer : peers)
    peer = std::thread([&] {
      for (int i = 0; i < kRings; ++i) {
        ++published;
        bell.ring();
      }
    });
  int seen = 0;
  while (seen < 2 * kRings && readable(bell.event_fd(), 60s)) {
    bell.clear_event();
    seen = published.load();
  }
  for (std::thread& peer : peers)
    peer.join();
  CHECK(seen == 2 * kRings);
}

TEST_CASE("a thread that attends is woken through the futex and leaves the descriptor alone") {
  Doorbell bell;
  bell.attend();
  const std::uint32_t seen = bell.rings();
  std::thread peer([&] {
    std::this_thread::sleep_for(20ms);
    bell.ring();
  });
  const auto start = std::chrono::steady_clock::now();
  while (bell.rings() == seen && std::chrono::steady_clock::now() < start + 60s)
    bell.sleep(seen, start + 60s);
  const auto slept = std::chrono::steady_clock::now() - start;
  bell.leave();
  peer.join();
  CHECK(bell.rings() != seen);
  CHECK(slept < 30s);
  CHECK_FALSE(readable(bell.event_fd(), 0ms));
  bell.ring();
  CHECK(readable(bell.event_fd(), 0ms));
}
