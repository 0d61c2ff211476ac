#include <ATen/ATen.h>

#include <random>
#include <thread>

#include "tests/tensor/ranks.h"

#include "tests/support/doctest.h"

using namespace troupe::tensor;
using namespace troupe::tensor::testing;
using namespace std::chrono_literals;

namespace {

/// One step of a schedule that all ranks know.
struct Step {
  int kind;  // 0 transfer, 1 all-reduce, 2 all-gather, 3 broadcast
  int from;
  int to;
  std::int64_t count;
};

std::vector<Step> make_schedule(std::mt19937& random, int size) {
  std::vector<Step> steps(60);
  for (Step& step : steps) {
    step.kind = random() % 10 < 7 ? 0 : 1 + static_cast<int>(random() % 3);
    step.from = static_cast<int>(random() % size);
    step.to = (step.from + 1 + static_cast<int>(random() % (size - 1))) % size;
    step.count = random() % 5 == 0 ? random() % 60'000 : random() % 400;
  }
  return steps;
}

struct Pending {
  Work work;
  at::Tensor got;
  at::Tensor expected;
};

void play(Member& me, int size, const std::vector<Step>& steps, unsigned seed) {
  std::mt19937 random(seed * 31 + me.rank);
  std::vector<Pending> pending;
  const auto settle = [&](std::size_t index) {
    pending[index].work.wait(within(60s));
    if (pending[index].got.defined())
      require(at::equal(pending[index].got, pending[index].expected), "the values are right");
    pending.erase(pending.begin() + static_cast<std::ptrdiff_t>(index));
  };
  for (int i = 0; i < static_cast<int>(steps.size()); ++i) {
    const Step& step = steps[i];
    const at::Tensor value = pattern(step.count, i);
    if (step.kind == 0 && me.rank == step.from) {
      const Work work = me.group.send(value, step.to);
      if (random() % 2) pending.push_back({work, {}, {}});
    } else if (step.kind == 0 && me.rank == step.to) {
      const at::Tensor out = at::empty({step.count});
      pending.push_back({me.group.receive(out, step.from), out, value});
    } else if (step.kind == 1) {
      const at::Tensor out = value.clone();
      at::Tensor sum = value.clone();
      for (int r = 1; r < size; ++r)
        sum += value;
      pending.push_back({me.group.all_reduce(out, ReduceOp::sum), out, sum});
    } else if (step.kind == 2) {
      std::vector<at::Tensor> outs;
      for (int r = 0; r < size; ++r)
        outs.push_back(at::empty({step.count}));
      pending.push_back({me.group.all_gather(outs, value), outs[step.to], value});
    } else if (step.kind == 3) {
      const at::Tensor out = me.rank == step.from ? value : at::empty({step.count});
      pending.push_back({me.group.broadcast(out, step.from), out, value});
    }
    while (!pending.empty() && random() % 3 == 0)
      settle(random() % pending.size());
    if (random() % 40 == 0) std::this_thread::sleep_for(1ms);
  }
  while (!pending.empty())
    settle(random() % pending.size());
  me.group.all_reduce(at::zeros({1}), ReduceOp::sum).wait(within(60s));
}

}  // namespace

TEST_CASE("any schedule that all ranks issue in one order ends, with the right values") {
  for (const Backend backend : cpu_backends()) {
    for (unsigned seed = 1; seed <= 12; ++seed) {
      CAPTURE(to_string(backend));
      CAPTURE(seed);
      std::mt19937 random(seed);
      const int size = 2 + static_cast<int>(random() % 4);
      const std::vector<Step> steps = make_schedule(random, size);
      DeviceOptions options = small_options();
      options.ring_bytes = std::size_t{4096} << (random() % 4);
      REQUIRE_NOTHROW(on_ranks(
          backend, size, [&](Member& me) { play(me, size, steps, seed); }, options));
    }
  }
}
