#include "tests/gpu/nccl_support.h"

#include <ATen/ATen.h>

#include <chrono>
#include <thread>

namespace troupe::testing {

using namespace tensor;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace {

void deadlines(Rank& me) {
  if (me.rank == 1) {
    const at::Tensor got = room(me, 100);
    const Work work = me.group.receive(got, 0);
    require(failure_of([&] { work.wait(within(300ms)); }).failure() == Failure::timeout, "timeout");
    work.wait(within(20s));
    require(same_bits(got, pattern(me, 100, 5)), "it went on all the same");
  } else if (me.rank == 0) {
    std::this_thread::sleep_for(4s);  // the other one may come late
    me.group.send(pattern(me, 100, 5), 1).wait(within(20s));
  }
}

void aborted(Rank& me) {
  {
    const auto doomed = me.among("doomed", [&] {
      std::vector<int> all(me.size);
      for (int r = 0; r < me.size; ++r)
        all[r] = r;
      return all;
    }());
    const at::Tensor got = room(me, 1'000'000);
    const Work work = doomed->receive(got, (me.rank + 1) % me.size);  // nobody sends
    work.join_stream(within(10s));
    const at::Tensor after = got + 1;  // stands behind it
    const auto start = Clock::now();
    if (me.rank == 0) {
      std::this_thread::sleep_for(200ms);
      doomed->abort("enough");
    }
    const TransferError error = failure_of([&] { work.wait(within(20s)); });
    require(error.failure() == Failure::aborted, std::string("aborted, not ") + error.what());
    require(Clock::now() - start < 15s, "everybody knows at once");
    require(failure_of([&] { doomed->send(got, (me.rank + 1) % me.size); }).failure() ==
                Failure::aborted,
            "nothing more goes out");
    after.sum().item<float>();  // the stream is free again
  }
  const auto fresh = me.among("fresh", {0, 1});
  if (!fresh) return;
  const at::Tensor one = at::ones({5}, at::TensorOptions().device(me.where));
  fresh->all_reduce(one, ReduceOp::sum).wait(within(20s));
  require(one[4].item<float>() == 2, "a new group works");
}

void leaving(Rank& me) {
  auto group = me.among("left", {0, 1});
  if (!group) return;
  const at::Tensor got = room(me, 700'000);
  if (me.rank == 0) {
    for (int i = 0; i < 3; ++i)
      group->send(pattern(me, 700'000, i), 1);
    group.reset();  // what was sent still arrives
    return;
  }
  for (int i = 0; i < 3; ++i) {
    std::this_thread::sleep_for(100ms);
    group->receive(got, 0).wait(within(20s));
    require(same_bits(got, pattern(me, 700'000, i)), "message " + std::to_string(i));
  }
  const Work never = group->receive(got, 0);
  require(failure_of([&] { never.wait(within(20s)); }).failure() == Failure::peer_left,
          "who leaves is missed");
}

/// Reduces until the last rank is lost; for the test that kills it meanwhile.
void endless(Rank& me) {
  const TransferError error = failure_of([&] {
    for (;;)
      me.group.all_reduce(pattern(me, 100'000, me.rank), ReduceOp::sum).wait(within(30s));
  });
  require(error.failure() == Failure::peer_lost, std::string("peer_lost, not ") + error.what());
  require(error.peer() == me.size - 1, "the last rank is named");
}

}  // namespace

Scenarios failure_scenarios() {
  return {
      {"deadlines", deadlines},
      {"aborted", aborted},
      {"leaving", leaving},
      {"endless", endless},
  };
}

}  // namespace troupe::testing
