#include "tests/gpu/nccl_scenarios.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <limits>
#include <thread>

#include "transport/tensor/group.h"

namespace troupe::testing {

using namespace tensor;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

std::unique_ptr<Group> Rank::among(const std::string& suffix, const std::vector<int>& members) {
  std::vector<std::string> doors;
  int own = -1;
  for (const int member : members) {
    if (member == rank) own = static_cast<int>(doors.size());
    doors.push_back(addresses[member]);
  }
  return own < 0 ? nullptr : door.connect(name + " " + suffix, own, doors, within(60s));
}

void require(bool condition, const std::string& text) {
  if (!condition) throw std::runtime_error("not so: " + text);
}

namespace {

at::Tensor pattern(const Rank& me, std::int64_t count, int seed) {
  return at::arange(count, at::TensorOptions().dtype(at::kFloat).device(me.gpu))
      .mul_(0.5f)
      .add_(static_cast<float>(seed) * 1000.0f);
}

at::Tensor room(const Rank& me, std::int64_t count, at::ScalarType type = at::kFloat) {
  return at::empty({count}, at::TensorOptions().dtype(type).device(me.gpu));
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.cpu().contiguous(), y = b.cpu().contiguous();
  return x.sizes() == y.sizes() && x.scalar_type() == y.scalar_type() &&
         (x.nbytes() == 0 || std::memcmp(x.data_ptr(), y.data_ptr(), x.nbytes()) == 0);
}

TransferError failure_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const TransferError& error) {
    return error;
  }
  throw std::runtime_error("not so: it failed");
}

/// Keeps the GPU busy for a while with work that the host does not wait for.
at::Tensor long_work(const Rank& me, int rounds) {
  at::Tensor x = at::ones({4096, 4096}, at::TensorOptions().device(me.gpu)).mul_(1.0f / 4096);
  const at::Tensor y = x.clone();
  for (int i = 0; i < rounds; ++i)
    x = at::matmul(x, y);
  return x.sum();
}

void transfers(Rank& me) {
  int message = 0;
  for (const std::int64_t count : {0, 1, 3, 1023, 4097, 100'001, 3'000'003}) {
    ++message;
    if (me.rank == 0) me.group.send(pattern(me, count, message), 1).wait(within(20s));
    if (me.rank != 1) continue;
    const at::Tensor got = room(me, count);
    me.group.receive(got, 0).wait(within(20s));
    require(same_bits(got, pattern(me, count, message)), "message of " + std::to_string(count));
  }
  for (const at::ScalarType type : {at::kByte, at::kBFloat16, at::kHalf, at::kLong, at::kBool}) {
    const at::Tensor sent = at::arange(777, at::TensorOptions().device(me.gpu)).to(type);
    const at::Tensor got = room(me, 777, type);
    if (me.rank == 0) me.group.send(sent, 1).wait(within(20s));
    if (me.rank != 1) continue;
    me.group.receive(got, 0).wait(within(20s));
    require(same_bits(got, sent), "every type");
  }
  const at::Tensor base = pattern(me, 60, 1).reshape({6, 10});
  if (me.rank == 0) me.group.send(base.t(), 1).wait(within(20s));
  if (me.rank != 1) return;
  bool refused = false;
  try {
    me.group.receive(at::empty({6, 10}, base.options()).t(), 0);
  } catch (const std::invalid_argument&) {
    refused = true;
  }
  require(refused, "a strided output is refused");
  const at::Tensor got = at::empty({10, 6}, base.options());
  me.group.receive(got, 0).wait(within(20s));
  require(at::equal(got, base.t()), "a strided tensor is sent as it looks");
}

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

/// The transfer takes what the stream computes before it, and memory that is let go of at once is
/// not given to somebody else while it travels.
void stream_order(Rank& me) {
  constexpr std::int64_t kCount = 2'000'000;
  for (int round = 0; round < 10; ++round) {
    if (me.rank == 0) {
      {
        const at::Tensor value = pattern(me, kCount, round) + long_work(me, 8).mul(0);
        me.group.send(value, 1);
      }
      const at::Tensor other = at::full({kCount}, -1.0f, at::TensorOptions().device(me.gpu));
    } else if (me.rank == 1) {
      const at::Tensor got = at::full({kCount}, -2.0f, at::TensorOptions().device(me.gpu));
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
    if (me.rank != 0 || i > 0) {
      posted[me.rank == 0 ? i - 1 : i].join_stream(within(30s));
      value = slots[i] + 1;
    }
    if (i % 8 == 7) {
      const at::Tensor one = at::ones({1000}, value.options());
      me.group.all_reduce(one, ReduceOp::sum).join_stream(within(30s));
      value = value + one[0] - static_cast<double>(me.size);
    }
    // What comes in is one round behind: the last value of the last stage is nobody's.
    if (me.rank != me.size - 1 || i + 1 < kSteps) out->send(value, 1 - out->rank());
  }
  const double steps = static_cast<double>((kSteps - 1) * me.size + me.rank);
  require(same_bits(value, pattern(me, kCount, 1) + steps), "every stage added one in its turn");
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

void deadlines(Rank& me) {
  if (me.rank == 1) {
    const at::Tensor got = room(me, 100);
    const Work work = me.group.receive(got, 0);
    require(failure_of([&] { work.wait(within(300ms)); }).failure() == Failure::timeout, "timeout");
    work.wait(within(20s));
    require(same_bits(got, pattern(me, 100, 5)), "it went on all the same");
  } else if (me.rank == 0) {
    std::this_thread::sleep_for(1500ms);
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
    require(Clock::now() - start < 5s, "everybody knows at once");
    require(failure_of([&] { doomed->send(got, (me.rank + 1) % me.size); }).failure() ==
                Failure::aborted,
            "nothing more goes out");
    after.sum().item<float>();  // the stream is free again
  }
  const auto fresh = me.among("fresh", {0, 1});
  if (!fresh) return;
  const at::Tensor one = at::ones({5}, at::TensorOptions().device(me.gpu));
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

/// For the test that kills the last rank meanwhile.
void endless(Rank& me) {
  const TransferError error = failure_of([&] {
    for (;;)
      me.group.all_reduce(pattern(me, 100'000, me.rank), ReduceOp::sum).wait(within(30s));
  });
  require(error.failure() == Failure::peer_lost, std::string("peer_lost, not ") + error.what());
  require(error.peer() == me.size - 1, "the last rank is named");
}

}  // namespace

const std::map<std::string, std::function<void(Rank&)>>& scenarios() {
  static const std::map<std::string, std::function<void(Rank&)>> table = {
      {"transfers", transfers},       {"receives ahead", receives_ahead},
      {"stream order", stream_order}, {"no host wait", no_host_wait},
      {"collectives", collectives},   {"reductions", reductions},
      {"pipeline", pipeline},         {"counting", counting},
      {"deadlines", deadlines},       {"aborted", aborted},
      {"leaving", leaving},           {"endless", endless},
  };
  return table;
}

}  // namespace troupe::testing
