#include "tests/gpu/nccl_support.h"

#include <ATen/ATen.h>

#include <limits>

namespace troupe::testing {

using namespace tensor;
using namespace std::chrono_literals;

namespace {

void collectives(Rank& me) {
  const auto share = [](int rank) { return static_cast<std::int64_t>(rank) * 5000; };
  std::vector<at::Tensor> outs, ins;
  for (int r = 0; r < me.size; ++r)
    outs.push_back(room(me, share(r)));
  me.group.all_gather(outs, pattern(me, share(me.rank), me.rank)).wait(within(20s));
  for (int r = 0; r < me.size; ++r)
    require(same_bits(outs[r], pattern(me, share(r), r)), "all_gather of " + std::to_string(r));

  const auto part = [](int from, int to) { return (from * 7 + to * 3) % 11 * 700LL; };
  for (int r = 0; r < me.size; ++r) {
    ins.push_back(pattern(me, part(me.rank, r), me.rank * 10 + r));
    outs[r] = room(me, part(r, me.rank));
  }
  me.group.all_to_all(outs, ins).wait(within(20s));
  for (int r = 0; r < me.size; ++r)
    require(same_bits(outs[r], pattern(me, part(r, me.rank), r * 10 + me.rank)), "all_to_all");

  for (int root = 0; root < me.size; ++root) {
    const at::Tensor value = me.rank == root ? pattern(me, 9001, root) : room(me, 9001);
    me.group.broadcast(value, root).wait(within(20s));
    require(same_bits(value, pattern(me, 9001, root)), "broadcast of " + std::to_string(root));
    me.group.broadcast(room(me, 0), root).wait(within(20s));
  }

  const int next = (me.rank + 1) % me.size, previous = (me.rank + me.size - 1) % me.size;
  std::vector<PeerTensor> sends, receives;
  if (me.size > 1) {
    sends.push_back({pattern(me, 500'000, me.rank), next});
    receives.push_back({room(me, 500'000), previous});
  }
  me.group.grouped(sends, receives).wait(within(20s));
  if (me.size > 1)
    require(same_bits(receives[0].tensor, pattern(me, 500'000, previous)), "grouped ring");
}

void reductions(Rank& me) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong}) {
    for (const std::int64_t count : {0, 1, 2, 17, 40'001}) {
      std::vector<at::Tensor> inputs;
      for (int r = 0; r < me.size; ++r) {
        at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(100 + r);
        inputs.push_back((at::randn({count}, generator) * (r + 1) * 50).to(type));
      }
      const bool half = type == at::kBFloat16 || type == at::kHalf;
      at::Tensor sum = inputs[0].to(half ? at::kFloat : type), max = inputs[0];
      for (int r = 1; r < me.size; ++r) {
        sum = sum + inputs[r].to(sum.scalar_type());
        max = at::maximum(max, inputs[r]);
      }
      const at::Tensor summed = inputs[me.rank].to(me.gpu), largest = summed.clone();
      const Work first = me.group.all_reduce(summed, ReduceOp::sum);
      const Work second = me.group.all_reduce(largest, ReduceOp::max);
      second.wait(within(20s));
      first.wait(within(20s));
      require(same_bits(summed, sum.to(type)), "sum in the order of ranks, as on a CPU");
      require(same_bits(largest, max), "max");
    }
  }
  const at::Tensor value = at::zeros({4}, at::TensorOptions().device(me.gpu));
  if (me.rank == me.size - 1) value[2] = std::numeric_limits<float>::quiet_NaN();
  me.group.all_reduce(value, ReduceOp::max).wait(within(10s));
  require(value[2].isnan().item<bool>() && value[1].item<float>() == 0, "NaN comes through");
  bool refused = false;
  try {
    me.group.all_reduce(room(me, 2, at::kBool), ReduceOp::sum);
  } catch (const std::invalid_argument&) {
    refused = true;
  }
  require(refused, "a sum of booleans is refused");
}

void counting(Rank& me) {
  if (me.rank == 0) me.group.send(pattern(me, 1000, 1), 1).wait(within(10s));
  if (me.rank == 1) me.group.receive(room(me, 1000), 0).wait(within(10s));
  const Counters counters = me.group.counters();
  require(counters.bytes_sent == (me.rank == 0 ? 4000 : 0), "4000 bytes sent");
  require(counters.bytes_received == (me.rank == 1 ? 4000 : 0), "4000 bytes received");
  me.group.all_reduce(pattern(me, 300 * me.size, 1), ReduceOp::sum).wait(within(10s));
  const std::uint64_t share = 1200, peers = me.size - 1;
  require(me.group.counters().bytes_sent - counters.bytes_sent == 2 * peers * share,
          "an all-reduce sends 2 (N - 1) / N of its bytes");
}

}  // namespace

Scenarios collective_scenarios() {
  return {
      {"collectives", collectives},
      {"reductions", reductions},
      {"counting", counting},
  };
}

}  // namespace troupe::testing
