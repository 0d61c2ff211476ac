#include "transport/control/accept_limiter.h"

#include "tests/support/doctest.h"

namespace troupe::control {
namespace {

constexpr PendingConnections::Bounds kBounds{
    .most = 6, .most_of_one = 3, .patience = std::chrono::seconds(5)};

AcceptedLink link(int number) {
  return {number, static_cast<std::uint64_t>(number) + 1000};
}

}  // namespace

TEST_CASE("of too many pending connections of one address its oldest goes, and nobody else's") {
  PendingConnections pending;
  const Clock::time_point now{};
  CHECK(pending.came(link(1), "a", now, kBounds).empty());
  for (const int number : {2, 3, 4})
    CHECK(pending.came(link(number), "b", now, kBounds).empty());
  CHECK(pending.came(link(5), "b", now, kBounds) == std::vector{link(2)});
  CHECK(pending.came(link(6), "b", now, kBounds) == std::vector{link(3)});
  CHECK(pending.of("a") == 1);
  CHECK(pending.of("b") == 3);
}

TEST_CASE("of too many pending connections in all one of the address goes that has most") {
  PendingConnections pending;
  const Clock::time_point now{};
  for (const int number : {1, 2})
    pending.came(link(number), "a", now, kBounds);
  for (const int number : {3, 4, 5})
    pending.came(link(number), "b", now, kBounds);
  pending.came(link(6), "c", now, kBounds);
  CHECK(pending.came(link(7), "d", now, kBounds) == std::vector{link(3)});
  CHECK(pending.size() == 6);
}

TEST_CASE("who has said hello is no stranger, and a number that is given anew is another link") {
  PendingConnections pending;
  const Clock::time_point now{};
  pending.came(link(1), "a", now, kBounds);
  CHECK(pending.forget(1) == link(1));
  CHECK_FALSE(pending.forget(1).has_value());
  pending.came({1, 7}, "a", now, kBounds);
  pending.came({1, 8}, "b", now, kBounds);
  CHECK(pending.size() == 1);
  CHECK(pending.forget(1) == AcceptedLink{1, 8});
  CHECK(pending.size() == 0);
  CHECK_FALSE(pending.oldest_of_most().has_value());
}

TEST_CASE("pending connections have their time, and no more") {
  PendingConnections pending;
  const Clock::time_point now{};
  using namespace std::chrono_literals;
  pending.came(link(1), "a", now, kBounds);
  pending.came(link(2), "a", now + 3s, kBounds);
  CHECK(pending.overdue(now + 5s, kBounds).empty());
  CHECK(pending.overdue(now + 6s, kBounds) == std::vector{link(1)});
  CHECK(pending.overdue(now + 9s, kBounds) == std::vector{link(2)});
}

}  // namespace troupe::control
