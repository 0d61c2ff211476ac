#include "tests/tensor/conformance.h"

#include <ATen/ATen.h>

#include <atomic>
#include <cstring>
#include <limits>
#include <thread>

#include "tests/tensor/ranks.h"

namespace troupe::tensor::testing {

using namespace std::chrono_literals;

std::unique_ptr<Group> Rank::among(const std::string& suffix, const std::vector<int>& members) {
  std::vector<std::string> doors;
  int own = -1;
  for (const int member : members) {
    if (member == rank) own = static_cast<int>(doors.size());
    doors.push_back(addresses[member]);
  }
  return own < 0 ? nullptr : door.connect(name + " " + suffix, own, doors, within(60s));
}

at::Tensor pattern(const Rank& me, std::int64_t count, int seed) {
  return at::arange(count, at::TensorOptions().dtype(at::kFloat).device(me.where))
      .mul_(0.5f)
      .add_(static_cast<float>(seed) * 1000.0f);
}

at::Tensor room(const Rank& me, std::int64_t count, at::ScalarType type) {
  return at::empty({count}, at::TensorOptions().dtype(type).device(me.where));
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.cpu().contiguous(), y = b.cpu().contiguous();
  return x.sizes() == y.sizes() && x.scalar_type() == y.scalar_type() &&
         (x.nbytes() == 0 || std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0);
}

namespace {

bool is_refused(const std::function<void()>& action) {
  try {
    action();
  } catch (const std::invalid_argument&) {
    return true;
  }
  return false;
}

void sizes_and_types(Rank& me) {
  int message = 0;
  for (const std::int64_t count : {0, 1, 3, 1023, 4095, 4097, 100'001, 3'000'003}) {
    const at::Tensor sent = pattern(me, count, ++message);
    if (me.rank == 0) me.group.send(sent, 1).wait(within(60s));
    if (me.rank != 1) continue;
    const at::Tensor got = room(me, count);
    me.group.receive(got, 0).wait(within(60s));
    require(same_bits(got, sent), "message of " + std::to_string(count));
  }
  for (const at::ScalarType type : {at::kByte, at::kBFloat16, at::kHalf, at::kLong, at::kBool}) {
    const at::Tensor sent = at::arange(777).to(type).to(me.where), got = room(me, 777, type);
    if (me.rank == 0) me.group.send(sent, 1).wait(within(60s));
    if (me.rank != 1) continue;
    me.group.receive(got, 0).wait(within(60s));
    require(same_bits(got, sent), "every type");
  }
}

void strides(Rank& me) {
  const at::Tensor base = pattern(me, 60, 1).reshape({6, 10});
  if (me.rank == 0) {
    const Work work = me.group.send(base.t(), 1);
    work.wait(within(60s));
    require(work.done(), "done after wait");
  } else if (me.rank == 1) {
    require(is_refused([&] {
              me.group.receive(at::empty({6, 10}, base.options()).t(), 0);
            }),
            "a strided output is refused");
    const at::Tensor got = at::empty({10, 6}, base.options());
    me.group.receive(got, 0).wait(within(60s));
    require(at::equal(got, base.t()), "the transposed values arrive");
  }
}

void many_in_flight(Rank& me) {
  constexpr int kMessages = 400;
  std::vector<Work> works;
  std::vector<at::Tensor> outs;
  for (int i = 0; i < kMessages; ++i) {
    const std::int64_t count = (i * 37) % 3001;
    if (me.rank == 0) {
      works.push_back(me.group.send(pattern(me, count, i), 1));
    } else {
      outs.push_back(room(me, count));
      works.push_back(me.group.receive(outs.back(), 0));
    }
  }
  for (int i = kMessages - 1; i >= 0; --i)
    works[i].wait(within(60s));
  for (int i = 0; i < static_cast<int>(outs.size()); ++i)
    require(same_bits(outs[i], pattern(me, outs[i].numel(), i)), "message " + std::to_string(i));
}

void both_directions(Rank& me) {
  constexpr std::int64_t kCount = 300'000;
  std::vector<Work> sends;
  for (int peer = 0; peer < me.size; ++peer)
    if (peer != me.rank) sends.push_back(me.group.send(pattern(me, kCount, me.rank), peer));
  for (int peer = 0; peer < me.size; ++peer) {
    if (peer == me.rank) continue;
    const at::Tensor got = room(me, kCount);
    me.group.receive(got, peer).wait(within(60s));
    require(same_bits(got, pattern(me, kCount, peer)), "from " + std::to_string(peer));
  }
  for (const Work& work : sends)
    work.wait(within(60s));
}

void sends_let_go_of(Rank& me) {
  constexpr std::int64_t kCount = 200'000;
  if (me.rank == 0) {
    for (int i = 0; i < 5; ++i)
      me.group.send(pattern(me, kCount, i), 1);
    me.group.receive(room(me, 1), 1).wait(within(60s));
    return;
  }
  const at::Tensor got = room(me, kCount);
  for (int i = 0; i < 5; ++i) {
    me.group.receive(got, 0).wait(within(60s));
    require(same_bits(got, pattern(me, kCount, i)), "message " + std::to_string(i));
  }
  me.group.send(pattern(me, 1, 0), 0).wait(within(60s));
}

void collectives(Rank& me) {
  const auto share = [](int rank) { return static_cast<std::int64_t>(rank) * 5000; };
  std::vector<at::Tensor> outs, ins;
  for (int r = 0; r < me.size; ++r)
    outs.push_back(room(me, share(r)));
  me.group.all_gather(outs, pattern(me, share(me.rank), me.rank)).wait(within(60s));
  for (int r = 0; r < me.size; ++r)
    require(same_bits(outs[r], pattern(me, share(r), r)), "all_gather of " + std::to_string(r));

  const auto part = [](int from, int to) { return (from * 7 + to * 3) % 11 * 700LL; };
  for (int r = 0; r < me.size; ++r) {
    ins.push_back(pattern(me, part(me.rank, r), me.rank * 10 + r));
    outs[r] = room(me, part(r, me.rank));
  }
  me.group.all_to_all(outs, ins).wait(within(60s));
  for (int r = 0; r < me.size; ++r)
    require(same_bits(outs[r], pattern(me, part(r, me.rank), r * 10 + me.rank)), "all_to_all");

  for (int root = 0; root < me.size; ++root) {
    const at::Tensor value = me.rank == root ? pattern(me, 9001, root) : room(me, 9001);
    me.group.broadcast(value, root).wait(within(60s));
    require(same_bits(value, pattern(me, 9001, root)), "broadcast of " + std::to_string(root));
    me.group.broadcast(room(me, 0), root).wait(within(60s));
  }

  std::vector<PeerTensor> sends, receives;
  const int next = (me.rank + 1) % me.size, previous = (me.rank + me.size - 1) % me.size;
  if (me.size > 1) {
    sends.push_back({pattern(me, 500'000, me.rank), next});
    receives.push_back({room(me, 500'000), previous});
  }
  me.group.grouped(sends, receives).wait(within(60s));
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
      const at::Tensor summed = inputs[me.rank].clone().to(me.where), largest = summed.clone();
      const Work first = me.group.all_reduce(summed, ReduceOp::sum);
      const Work second = me.group.all_reduce(largest, ReduceOp::max);
      second.wait(within(60s));
      first.wait(within(60s));
      require(same_bits(summed, sum.to(type)), "sum over " + std::to_string(me.size));
      require(same_bits(largest, max), "max over " + std::to_string(me.size));
    }
  }
}

void nan_and_refusals(Rank& me) {
  const at::Tensor value = room(me, 4).zero_();
  if (me.rank == me.size - 1) value[2] = std::numeric_limits<float>::quiet_NaN();
  me.group.all_reduce(value, ReduceOp::max).wait(within(60s));
  require(value[2].isnan().item<bool>() && value[1].item<float>() == 0, "NaN comes through");
  require(is_refused([&] { me.group.all_reduce(room(me, 2, at::kBool), ReduceOp::sum); }),
          "a sum of booleans is refused");
}

void two_groups(Rank& me) {
  std::vector<int> backwards;
  for (int rank = me.size - 1; rank >= 0; --rank)
    backwards.push_back(rank);
  const auto other = me.among("reversed", backwards);
  for (int round = 0; round < 20; ++round) {
    const at::Tensor a = room(me, 30'000).fill_(me.rank + round);
    const at::Tensor b = room(me, 20'000).fill_(me.rank * 2);
    const Work first = me.group.all_reduce(a, ReduceOp::sum);
    const Work second = other->all_reduce(b, ReduceOp::sum);
    second.wait(within(60s));
    first.wait(within(60s));
    require(a[29'999].item<float>() == 3 + 3 * round, "first group");
    require(b[19'999].item<float>() == 6, "second group");
  }
}

void waiting_threads(Rank& me) {
  constexpr int kThreads = 4;
  std::vector<at::Tensor> values;
  std::vector<Work> works;
  for (int i = 0; i < kThreads; ++i) {
    values.push_back(me.rank == 0 ? pattern(me, 70'000, i) : room(me, 70'000));
    works.push_back(me.rank == 0 ? me.group.send(values[i], 1) : me.group.receive(values[i], 0));
  }
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int i = kThreads - 1; i >= 0; --i)
    threads.emplace_back([&, i] {
      works[i].wait(within(60s));
      good += same_bits(values[i], pattern(me, 70'000, i));
    });
  for (std::thread& thread : threads)
    thread.join();
  require(good == kThreads, "all of them got theirs");
}

void progress_by_itself(Rank& me) {
  const at::Tensor value = me.rank == 0 ? pattern(me, 500'000, 1) : room(me, 500'000);
  const Work work = me.rank == 0 ? me.group.send(value, 1) : me.group.receive(value, 0);
  const Deadline end = within(60s);
  while (!work.done() && std::chrono::steady_clock::now() < end)
    std::this_thread::sleep_for(1ms);
  require(work.done(), "done without wait");
  require(same_bits(value, pattern(me, 500'000, 1)), "whole");
  me.group.all_reduce(room(me, 1).zero_(), ReduceOp::sum).wait(within(60s));
}

void counting(Rank& me) {
  const at::Tensor value = room(me, 1000).zero_();
  if (me.rank == 0)
    me.group.send(value, 1).wait(within(60s));
  else
    me.group.receive(value, 0).wait(within(60s));
  const Counters counters = me.group.counters();
  require(counters.bytes_sent == (me.rank == 0 ? 4000 : 0),
          "4000 bytes, whatever goes around them");
  require(counters.bytes_received == (me.rank == 0 ? 0 : 4000), "4000 bytes received");
  require(counters.messages_sent + counters.messages_received == 1, "one message");
}

}  // namespace

const std::vector<ConformanceCase>& conformance_cases() {
  static const std::vector<ConformanceCase> cases{
      {"send and receive: every size and type", {2}, sizes_and_types},
      {"a strided tensor is sent as it looks, and refused as an output", {2}, strides},
      {"many transfers in flight keep their order", {2}, many_in_flight},
      {"full rings in both directions at once do not lock up",
       {2, 3},
       both_directions,
       "a communicator's operations follow one another on its stream, so that what needs each "
       "other is one `grouped`"},
      {"nobody has to wait for a send, and its tensor may go out of scope", {2}, sends_let_go_of},
      {"collectives of uneven sizes", {1, 2, 3, 4, 5}, collectives},
      {"all-reduce: in rank order, the same bits everywhere", {1, 2, 3, 4, 5}, reductions},
      {"all-reduce passes NaN on, and refuses what it cannot reduce", {2, 3}, nan_and_refusals},
      {"two groups on the same devices at once, with their ranks reversed", {3}, two_groups},
      {"several threads of one process wait at once", {2}, waiting_threads},
      {"operations progress while nobody waits", {2}, progress_by_itself},
      {"counters tell what was moved", {2}, counting},
  };
  return cases;
}

}  // namespace troupe::tensor::testing
