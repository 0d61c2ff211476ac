#include "tests/gpu/nccl_support.h"

#include <ATen/ATen.h>

namespace troupe::testing {

using namespace tensor;
using namespace std::chrono_literals;

namespace {

void reduction_traffic(Rank& me) {
  me.group.all_reduce(pattern(me, 300 * me.size, 1), ReduceOp::sum).wait(within(10s));
  const std::uint64_t share = 1200, peers = me.size - 1;
  require(me.group.counters().bytes_sent == 2 * peers * share,
          "an all-reduce sends 2 (N - 1) / N of its bytes");
}

}  // namespace

Scenarios collective_scenarios() {
  return {
      {"reduction traffic", reduction_traffic},
  };
}

}  // namespace troupe::testing
