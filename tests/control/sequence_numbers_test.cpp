#include "transport/control/peer.h"

#include "tests/support/doctest.h"

namespace troupe::control {

TEST_CASE("a link drops what came before and goes on behind a gap") {
  SequenceNumbers link;
  std::uint64_t missing = 9;
  link.begin_incoming(1);
  CHECK(link.arrive(2, missing) == SequenceNumbers::Arrival::next);
  CHECK(missing == 0);
  CHECK(link.arrive(2, missing) == SequenceNumbers::Arrival::duplicate);
  CHECK(link.arrive(1, missing) == SequenceNumbers::Arrival::duplicate);
  CHECK(link.arrive(6, missing) == SequenceNumbers::Arrival::gap);
  CHECK(missing == 3);
  CHECK(link.arrive(4, missing) == SequenceNumbers::Arrival::duplicate);
  CHECK(link.arrive(7, missing) == SequenceNumbers::Arrival::next);
}

TEST_CASE("outgoing numbers count from 1") {
  SequenceNumbers link;
  CHECK(link.take_outgoing() == 1);
  CHECK(link.take_outgoing() == 2);
}

}  // namespace troupe::control
