#include "tests/gpu/nccl_support.h"

#include <ATen/ATen.h>

#include <chrono>

namespace troupe::testing {

using namespace tensor;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace {

void receives_ahead(Rank& me) {
  constexpr int kMessages = 24;
  if (me.rank == 1) {
    std::vector<at::Tensor> outs;
    std::vector<Work> works;
    for (int i = 0; i < kMessages; ++i) {
      outs.push_back(room(me, 1000 * i));
      works.push_back(me.group.receive(outs.back(), 0));
    }
    for (int i = kMessages - 1; i >= 0; --i) {
      works[i].join_stream(within(20s));
      require(same_bits(outs[i] * 1, pattern(me, 1000 * i, i)), "message " + std::to_string(i));
    }
  }
  if (me.rank == 0) {
    for (int i = 0; i < kMessages; ++i) {
      long_work(me, 2);
      me.group.send(pattern(me, 1000 * i, i), 1);  // nobody waits, and the tensor goes
    }
    me.group.receive(room(me, 1), 1).wait(within(30s));
  } else if (me.rank == 1) {
    me.group.send(pattern(me, 1, 0), 0).wait(within(30s));
  }
}

/// Checks that the transfer takes what the stream computes before it, and that memory which is let
/// go of at once is not given to somebody else while it travels.
void stream_order(Rank& me) {
  constexpr std::int64_t kCount = 2'000'000;
  for (int round = 0; round < 10; ++round) {
    if (me.rank == 0) {
      {
        const at::Tensor value = pattern(me, kCount, round) + long_work(me, 8).mul(0);
        me.group.send(value, 1);
      }
      const at::Tensor other = at::full({kCount}, -1.0f, at::TensorOptions().device(me.where));
    } else if (me.rank == 1) {
      const at::Tensor got = at::full({kCount}, -2.0f, at::TensorOptions().device(me.where));
      me.group.receive(got, 0).join_stream(within(20s));
      require(same_bits(got + 1, pattern(me, kCount, round) + 1), "round " + std::to_string(round));
    }
  }
}

void no_host_wait(Rank& me) {
  if (me.size < 2 || me.rank > 1) return;
  const at::Tensor value = pattern(me, 10'000, 1), got = room(me, 10'000);
  long_work(me, 1).item<float>();
  const auto start = Clock::now();
  const at::Tensor end = long_work(me, 150);
  for (int i = 0; i < 10; ++i)
    me.rank == 0 ? me.group.send(value, 1) : me.group.receive(got, 0);
  const auto issued = Clock::now() - start;
  end.item<float>();
  const auto computed = Clock::now() - start;
  require(issued < computed / 2, "ten messages were issued in " + std::to_string(issued / 1us) +
                                     " us, while the GPU computed " +
                                     std::to_string(computed / 1us) + " us");
}

/// Transfers as ring attention does: every rank sends its block to each other, one cyclic shift per
/// distance, while blocks of later rounds are already under way. Rank 0 has nothing to send.
void shifts(Rank& me) {
  constexpr int kRounds = 12;
  const auto count = [](int rank) { return 70'001LL * rank; };
  const auto seed = [](int rank, int round) { return 10 * round + rank; };
  struct Incoming {
    int round;
    int source;
    at::Tensor tensor;
    Work work;
  };
  std::vector<Incoming> incoming;
  std::vector<Work> works;
  for (int round = 0; round < kRounds; ++round) {
    const at::Tensor own = pattern(me, count(me.rank), seed(me.rank, round));
    for (int distance = 1; distance < me.size; ++distance) {
      const int to = (me.rank + distance) % me.size;
      const int from = (me.rank + me.size - distance) % me.size;
      std::vector<PeerTensor> sends, receives;
      if (own.numel() > 0) sends.push_back({own, to});
      if (count(from) > 0) receives.push_back({room(me, count(from)), from});
      if (sends.empty() && receives.empty()) continue;
      works.push_back(me.group.grouped(sends, receives));
      if (!receives.empty()) incoming.push_back({round, from, receives[0].tensor, works.back()});
    }
  }
  for (const auto& [round, source, tensor, work] : incoming) {
    work.join_stream(within(20s));
    require(same_bits(tensor + 1, pattern(me, count(source), seed(source, round)) + 1),
            "round " + std::to_string(round) + " of rank " + std::to_string(source));
  }
  for (const Work& work : works)
    work.wait(within(20s));
}

/// Stages in a ring, as PipeFusion runs them: a communicator for every directed edge, receives
/// posted ahead, a collective among all now and then.
void pipeline(Rank& me) {
  constexpr int kSteps = 40;
  constexpr std::int64_t kCount = 200'000;
  std::unique_ptr<Group> in, out;
  for (int from = 0; from < me.size; ++from) {
    const int to = (from + 1) % me.size;
    auto edge = me.among("edge " + std::to_string(from), {from, to});
    if (me.rank == from) out = std::move(edge);
    if (me.rank == to && edge) in = std::move(edge);
  }
  std::vector<at::Tensor> slots;
  std::vector<Work> posted;
  for (int i = 0; i < kSteps; ++i) {
    slots.push_back(room(me, kCount));
    if (me.rank != 0 || i > 0) posted.push_back(in->receive(slots.back(), 1 - in->rank()));
  }
  at::Tensor value = pattern(me, kCount, 1);
  for (int i = 0; i < kSteps; ++i) {
    // Before this step's receive: the stage before sends that only after the same collective.
    at::Tensor one;
    if (i % 8 == 7) {
      one = at::ones({1000}, value.options());
      me.group.all_reduce(one, ReduceOp::sum).join_stream(within(30s));
    }
    if (me.rank != 0 || i > 0) {
      posted[me.rank == 0 ? i - 1 : i].join_stream(within(30s));
      value = slots[i] + 1;
    }
    if (one.defined()) value = value + one[0] - static_cast<double>(me.size);
    // What comes in is one round behind: the last value of the last stage is nobody's.
    if (me.rank != me.size - 1 || i + 1 < kSteps) out->send(value, 1 - out->rank());
  }
  const double steps = static_cast<double>((kSteps - 1) * me.size + me.rank);
  require(same_bits(value, pattern(me, kCount, 1) + steps), "every stage added one in its turn");
}

}  // namespace

Scenarios transfer_scenarios() {
  return {
      {"receives ahead", receives_ahead},
      {"stream order", stream_order},
      {"no host wait", no_host_wait},
      {"shifts", shifts},
      {"pipeline", pipeline},
  };
}

}  // namespace troupe::testing
