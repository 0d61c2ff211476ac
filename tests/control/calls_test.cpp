#include "transport/control/core.h"

#include <rapidcheck.h>

#include <map>

#include "tests/support/doctest.h"

namespace troupe::control {

TEST_CASE("a call is over once, by answer, deadline or loss of its peer") {
  const bool held = rc::check("calls against a plain model", [] {
    Calls calls;
    std::map<std::uint64_t, std::pair<PeerId, Clock::time_point>> open;
    Clock::time_point now{};
    const int steps = *rc::gen::inRange(0, 3000);
    for (int i = 0; i < steps; ++i) {
      const PeerId peer = *rc::gen::inRange<PeerId>(1, 4);
      switch (*rc::gen::inRange(0, 12)) {
        case 10: {
          now += Milliseconds(*rc::gen::inRange(0, 30));
          const std::size_t due =
              std::erase_if(open, [&](const auto& e) { return e.second.second <= now; });
          RC_ASSERT(calls.take_expired(now).size() == due);
          break;
        }
        case 11: {
          const std::size_t due =
              std::erase_if(open, [&](const auto& e) { return e.second.first == peer; });
          RC_ASSERT(calls.take_peer(peer).size() == due);
          break;
        }
        case 5:
        case 6:
        case 7:
        case 8:
        case 9: {
          const std::uint64_t id = *rc::gen::inRange<std::uint64_t>(0, 1500);
          const auto known = open.find(id);
          const bool mine = known != open.end() && known->second.first == peer;
          RC_ASSERT(calls.take(id, peer).has_value() == mine);
          if (mine) open.erase(known);
          break;
        }
        default: {
          const auto deadline = now + Milliseconds(*rc::gen::inRange(0, 100));
          const std::uint64_t id = calls.add({peer, wire::Kind::ping, {}, deadline, {}});
          RC_ASSERT(id != 0u);
          RC_ASSERT(open.emplace(id, std::pair(peer, deadline)).second);
        }
      }
      RC_ASSERT(calls.size() == open.size());
      for (const auto& [id, call] : open)
        RC_ASSERT(*calls.next_deadline() <= call.second);
    }
  });
  CHECK(held);
}

TEST_CASE("answered calls do not pile up until their deadlines") {
  Calls calls;
  const auto deadline = Clock::time_point{} + std::chrono::hours(1);
  for (int i = 0; i < 100'000; ++i)
    calls.take(calls.add({1, wire::Kind::ping, {}, deadline, {}}), 1);
  CHECK(calls.size() == 0);
  // Nothing is open, so what is left of the heap expires without a call.
  CHECK(calls.take_expired(deadline).empty());
}

}  // namespace troupe::control
