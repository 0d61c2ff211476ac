#include <algorithm>
#include <cstddef>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "transport/tensor/shm.h"

#include "tests/support/doctest.h"

using namespace troupe::tensor;
using namespace troupe::tensor::shm;
using namespace std::chrono_literals;

namespace {

constexpr std::size_t kCapacity = 4096;

/// One view of a ring for both ends: the two ends of a pair map the same pages at different
/// addresses, where the thread sanitizer cannot see that they meet.
struct SharedRing {
  SharedRing() : memory(make_memfd("troupe-ring-test", Ring::bytes_for(kCapacity))) {
    mapping = Mapping::of(memory.get(), Ring::bytes_for(kCapacity));
  }
  Ring view() const { return Ring(mapping.data(), kCapacity); }

  UniqueFd memory;
  Mapping mapping;
};

Deadline soon() {
  return std::chrono::steady_clock::now() + 60s;
}

/// Calls `move` until `total` bytes have gone, asleep in `bell` where nothing can move. Returns
/// what is left at the deadline.
template <typename Move>
std::size_t move_all(std::size_t total, Doorbell& bell, Move&& move) {
  const Deadline deadline = soon();
  std::size_t done = 0;
  bell.attend();
  while (done < total && std::chrono::steady_clock::now() < deadline) {
    const std::uint32_t seen = bell.rings();
    const std::size_t moved = move(done);
    done += moved;
    if (moved == 0) bell.sleep(seen, deadline);
  }
  bell.leave();
  return total - done;
}

std::vector<std::byte> noise(std::size_t size) {
  std::mt19937 random(7);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes)
    byte = static_cast<std::byte>(random());
  return bytes;
}

}  // namespace

TEST_CASE("a ring carries every byte in order between two threads that sleep when it blocks") {
  SharedRing shared;
  Doorbell reader_bell;
  Doorbell writer_bell;
  constexpr std::size_t kTotal = 2u << 20;
  std::vector<std::byte> sent = noise(kTotal);
  std::vector<std::byte> got(kTotal);
  std::size_t unsent = kTotal;

  std::thread writer([&] {
    std::mt19937 random(1);
    Ring ring = shared.view();
    unsent = move_all(kTotal, writer_bell, [&](std::size_t done) {
      const std::size_t header = std::min<std::size_t>(random() % 32, kTotal - done);
      const std::size_t payload =
          std::min<std::size_t>(random() % 9000 + 1, kTotal - done - header);
      return ring.write({&sent[done], header}, {sent.data() + done + header, payload}, reader_bell);
    });
  });
  std::mt19937 random(2);
  Ring ring = shared.view();
  const std::size_t unread = move_all(kTotal, reader_bell, [&](std::size_t done) {
    const std::size_t part = std::min<std::size_t>(random() % 6000 + 1, kTotal - done);
    return ring.read({&got[done], part}, {nullptr, 0}, writer_bell);
  });
  writer.join();

  REQUIRE(unsent == 0);
  REQUIRE(unread == 0);
  CHECK(ring.empty());
  const bool identical = got == sent;
  CHECK(identical);
}

TEST_CASE("a doorbell wakes the thread that attends, and else signals its descriptor") {
  Doorbell bell;
  const std::uint32_t before = bell.rings();
  bell.ring();
  CHECK(bell.rings() == before + 1);
  bell.clear_event();

  int handed_over = 0;
  bell.attend();
  const std::uint32_t seen = bell.rings();
  std::thread ringer([&] {
    handed_over = 1;
    bell.ring();
  });
  const Deadline deadline = soon();
  while (bell.rings() == seen && std::chrono::steady_clock::now() < deadline)
    bell.sleep(seen, deadline);
  REQUIRE(bell.rings() == seen + 1);
  CHECK(handed_over == 1);
  bell.leave();
  ringer.join();
}
