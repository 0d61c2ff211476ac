#include "transport/control/strangers.h"

#include "tests/support/doctest.h"

namespace troupe::control {
namespace {

constexpr Strangers::Bounds kBounds{
    .most = 6, .most_of_one = 3, .patience = std::chrono::seconds(5)};

AcceptedLink link(int number) {
  return {number, static_cast<std::uint64_t>(number) + 1000};
}

}  // namespace

TEST_CASE("of too many strangers of one address its oldest goes, and nobody else's") {
  Strangers strangers;
  const Clock::time_point now{};
  CHECK(strangers.came(link(1), "a", now, kBounds).empty());
  for (const int number : {2, 3, 4})
    CHECK(strangers.came(link(number), "b", now, kBounds).empty());
  CHECK(strangers.came(link(5), "b", now, kBounds) == std::vector{link(2)});
  CHECK(strangers.came(link(6), "b", now, kBounds) == std::vector{link(3)});
  CHECK(strangers.of("a") == 1);
  CHECK(strangers.of("b") == 3);
}

TEST_CASE("of too many strangers in all one of the address goes that has most") {
  Strangers strangers;
  const Clock::time_point now{};
  for (const int number : {1, 2})
    strangers.came(link(number), "a", now, kBounds);
  for (const int number : {3, 4, 5})
    strangers.came(link(number), "b", now, kBounds);
  strangers.came(link(6), "c", now, kBounds);
  CHECK(strangers.came(link(7), "d", now, kBounds) == std::vector{link(3)});
  CHECK(strangers.size() == 6);
}

TEST_CASE("who has said hello is no stranger, and a number that is given anew is another link") {
  Strangers strangers;
  const Clock::time_point now{};
  strangers.came(link(1), "a", now, kBounds);
  CHECK(strangers.forget(1) == link(1));
  CHECK_FALSE(strangers.forget(1).has_value());
  strangers.came({1, 7}, "a", now, kBounds);
  strangers.came({1, 8}, "b", now, kBounds);
  CHECK(strangers.size() == 1);
  CHECK(strangers.forget(1) == AcceptedLink{1, 8});
  CHECK(strangers.size() == 0);
  CHECK_FALSE(strangers.oldest_of_most().has_value());
}

TEST_CASE("strangers have their time, and no more") {
  Strangers strangers;
  const Clock::time_point now{};
  using namespace std::chrono_literals;
  strangers.came(link(1), "a", now, kBounds);
  strangers.came(link(2), "a", now + 3s, kBounds);
  CHECK(strangers.overdue(now + 5s, kBounds).empty());
  CHECK(strangers.overdue(now + 6s, kBounds) == std::vector{link(1)});
  CHECK(strangers.overdue(now + 9s, kBounds) == std::vector{link(2)});
}

}  // namespace troupe::control
