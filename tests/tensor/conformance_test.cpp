#include <ATen/ATen.h>

#include <atomic>
#include <cstring>
#include <limits>
#include <thread>

#include "tests/tensor/ranks.h"

#include "tests/support/doctest.h"

using namespace troupe::tensor;
using namespace troupe::tensor::testing;
using namespace std::chrono_literals;

namespace {

void on_all_backends(int size, const std::function<void(Member&)>& body) {
  for (const Backend backend : cpu_backends()) {
    CAPTURE(to_string(backend));
    CAPTURE(size);
    REQUIRE_NOTHROW(on_ranks(backend, size, body));
  }
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.sizes() == b.sizes() && a.scalar_type() == b.scalar_type() &&
         (a.nbytes() == 0 || std::memcmp(a.data_ptr(), b.data_ptr(), a.nbytes()) == 0);
}

}  // namespace

TEST_CASE("send and receive: empty, tiny, odd, and larger than the ring") {
  on_all_backends(2, [](Member& me) {
    int message = 0;
    for (const std::int64_t count : {0, 1, 3, 1023, 4095, 4097, 100'001, 1'000'003}) {
      const at::Tensor sent = pattern(count, ++message);
      if (me.rank == 0) {
        me.group.send(sent, 1).wait(within(60s));
      } else {
        const at::Tensor got = at::empty({count});
        me.group.receive(got, 0).wait(within(60s));
        require(same_bits(got, sent), "message of " + std::to_string(count));
      }
    }
    for (const at::ScalarType type : {at::kByte, at::kBFloat16, at::kHalf, at::kLong, at::kBool}) {
      const at::Tensor sent = at::arange(777).to(type);
      const at::Tensor got = at::empty({777}, type);
      if (me.rank == 0)
        me.group.send(sent, 1).wait(within(60s));
      else
        me.group.receive(got, 0).wait(within(60s));
      if (me.rank == 1) require(same_bits(got, sent), "every type");
    }
  });
}

TEST_CASE("a strided tensor is sent as it looks, and refused as an output") {
  on_all_backends(2, [](Member& me) {
    const at::Tensor base = pattern(60, 1).reshape({6, 10});
    if (me.rank == 0) {
      Work work = me.group.send(base.t(), 1);
      work.wait(within(60s));
      require(work.done(), "done after wait");
    } else {
      bool refused = false;
      try {
        me.group.receive(at::empty({6, 10}).t(), 0);
      } catch (const std::invalid_argument&) {
        refused = true;
      }
      require(refused, "a strided output is refused");
      const at::Tensor got = at::empty({10, 6});
      me.group.receive(got, 0).wait(within(60s));
      require(at::equal(got, base.t()), "the transposed values arrive");
    }
  });
}

TEST_CASE("many transfers in flight keep their order") {
  on_all_backends(2, [](Member& me) {
    constexpr int kMessages = 400;
    std::vector<Work> works;
    std::vector<at::Tensor> outs;
    for (int i = 0; i < kMessages; ++i) {
      const std::int64_t count = (i * 37) % 3001;
      if (me.rank == 0) {
        works.push_back(me.group.send(pattern(count, i), 1));
      } else {
        outs.push_back(at::empty({count}));
        works.push_back(me.group.receive(outs.back(), 0));
      }
    }
    for (int i = kMessages - 1; i >= 0; --i)
      works[i].wait(within(60s));
    for (int i = 0; i < static_cast<int>(outs.size()); ++i)
      require(same_bits(outs[i], pattern(outs[i].numel(), i)), "message " + std::to_string(i));
  });
}

TEST_CASE("full rings in both directions at once do not lock up") {
  on_all_backends(3, [](Member& me) {
    constexpr std::int64_t kCount = 300'000;
    std::vector<Work> sends;
    for (int peer = 0; peer < 3; ++peer)
      if (peer != me.rank) sends.push_back(me.group.send(pattern(kCount, me.rank), peer));
    for (int peer = 0; peer < 3; ++peer) {
      if (peer == me.rank) continue;
      const at::Tensor got = at::empty({kCount});
      me.group.receive(got, peer).wait(within(60s));
      require(same_bits(got, pattern(kCount, peer)), "from " + std::to_string(peer));
    }
    for (const Work& work : sends)
      work.wait(within(60s));
  });
}

TEST_CASE("nobody has to wait for a send, and its tensor may go out of scope") {
  on_all_backends(2, [](Member& me) {
    constexpr std::int64_t kCount = 200'000;
    if (me.rank == 0) {
      for (int i = 0; i < 5; ++i)
        me.group.send(pattern(kCount, i), 1);
      me.group.receive(at::empty({1}), 1).wait(within(60s));
    } else {
      const at::Tensor got = at::empty({kCount});
      for (int i = 0; i < 5; ++i) {
        me.group.receive(got, 0).wait(within(60s));
        require(same_bits(got, pattern(kCount, i)), "message " + std::to_string(i));
      }
      me.group.send(at::zeros({1}), 0).wait(within(60s));
    }
  });
}

TEST_CASE("collectives on groups of 1 to 5") {
  for (int size = 1; size <= 5; ++size) {
    on_all_backends(size, [size](Member& me) {
      const auto share = [](int rank) { return static_cast<std::int64_t>(rank) * 5000; };

      std::vector<at::Tensor> outs;
      for (int r = 0; r < size; ++r)
        outs.push_back(at::empty({share(r)}));
      me.group.all_gather(outs, pattern(share(me.rank), me.rank)).wait(within(60s));
      for (int r = 0; r < size; ++r)
        require(same_bits(outs[r], pattern(share(r), r)), "all_gather of " + std::to_string(r));

      std::vector<at::Tensor> ins;
      const auto part = [](int from, int to) { return (from * 7 + to * 3) % 11 * 700LL; };
      for (int r = 0; r < size; ++r) {
        ins.push_back(pattern(part(me.rank, r), me.rank * 10 + r));
        outs[r] = at::empty({part(r, me.rank)});
      }
      me.group.all_to_all(outs, ins).wait(within(60s));
      for (int r = 0; r < size; ++r)
        require(same_bits(outs[r], pattern(part(r, me.rank), r * 10 + me.rank)), "all_to_all");

      for (int root = 0; root < size; ++root) {
        const at::Tensor value = me.rank == root ? pattern(9001, root) : at::empty({9001});
        me.group.broadcast(value, root).wait(within(60s));
        require(same_bits(value, pattern(9001, root)), "broadcast of " + std::to_string(root));
      }

      std::vector<PeerTensor> sends, receives;
      const int next = (me.rank + 1) % size, previous = (me.rank + size - 1) % size;
      if (size > 1) {
        sends.push_back({pattern(50'000, me.rank), next});
        receives.push_back({at::empty({50'000}), previous});
      }
      me.group.grouped(sends, receives).wait(within(60s));
      if (size > 1)
        require(same_bits(receives[0].tensor, pattern(50'000, previous)), "grouped ring");
    });
  }
}

TEST_CASE("all-reduce: right, in rank order, and the same bits everywhere") {
  for (int size = 1; size <= 5; ++size) {
    for (const at::ScalarType type :
         {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf, at::kLong}) {
      for (const std::int64_t count : {0, 1, 2, 17, 40'001}) {
        std::vector<at::Tensor> inputs;
        for (int r = 0; r < size; ++r) {
          at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(100 + r);
          inputs.push_back((at::randn({count}, generator) * (r + 1) * 50).to(type));
        }
        const bool half = type == at::kBFloat16 || type == at::kHalf;
        at::Tensor sum = inputs[0].to(half ? at::kFloat : type);
        at::Tensor max = inputs[0];
        for (int r = 1; r < size; ++r) {
          sum = sum + inputs[r].to(sum.scalar_type());
          max = at::maximum(max, inputs[r]);
        }
        sum = sum.to(type);
        on_all_backends(size, [&](Member& me) {
          const at::Tensor summed = inputs[me.rank].clone();
          const at::Tensor largest = inputs[me.rank].clone();
          const Work first = me.group.all_reduce(summed, ReduceOp::sum);
          const Work second = me.group.all_reduce(largest, ReduceOp::max);
          second.wait(within(60s));
          first.wait(within(60s));
          require(same_bits(summed, sum), "sum over " + std::to_string(size));
          require(same_bits(largest, max), "max over " + std::to_string(size));
        });
      }
    }
  }
}

TEST_CASE("all-reduce passes NaN on, and refuses what it cannot reduce") {
  on_all_backends(3, [](Member& me) {
    const at::Tensor value = at::zeros({4});
    if (me.rank == 1) value[2] = std::numeric_limits<float>::quiet_NaN();
    me.group.all_reduce(value, ReduceOp::max).wait(within(60s));
    require(value[2].isnan().item<bool>() && value[1].item<float>() == 0, "NaN comes through");
    bool refused = false;
    try {
      me.group.all_reduce(at::zeros({2}, at::kBool), ReduceOp::sum);
    } catch (const std::invalid_argument&) {
      refused = true;
    }
    require(refused, "a sum of booleans is refused");
  });
}

TEST_CASE("two groups on the same devices at once, with their ranks reversed") {
  on_all_backends(3, [](Member& me) {
    std::vector<std::string> reversed(me.addresses.rbegin(), me.addresses.rend());
    const auto other =
        me.device.connect(me.group.name() + " reversed", 2 - me.rank, reversed, within(60s));
    for (int round = 0; round < 20; ++round) {
      const at::Tensor a = at::full({30'000}, me.rank + round);
      const at::Tensor b = at::full({20'000}, me.rank * 2);
      const Work first = me.group.all_reduce(a, ReduceOp::sum);
      const Work second = other->all_reduce(b, ReduceOp::sum);
      second.wait(within(60s));
      first.wait(within(60s));
      require(a[29'999].item<float>() == 3 + 3 * round, "first group");
      require(b[19'999].item<float>() == 6, "second group");
    }
  });
}

TEST_CASE("several threads of one process wait at once") {
  on_all_backends(2, [](Member& me) {
    constexpr int kThreads = 4;
    std::vector<at::Tensor> values;
    std::vector<Work> works;
    for (int i = 0; i < kThreads; ++i) {
      values.push_back(me.rank == 0 ? pattern(70'000, i) : at::empty({70'000}));
      works.push_back(me.rank == 0 ? me.group.send(values[i], 1) : me.group.receive(values[i], 0));
    }
    std::vector<std::thread> threads;
    std::atomic<int> good{0};
    for (int i = kThreads - 1; i >= 0; --i)
      threads.emplace_back([&, i] {
        works[i].wait(within(60s));
        good += same_bits(values[i], pattern(70'000, i));
      });
    for (std::thread& thread : threads)
      thread.join();
    require(good == kThreads, "all of them got theirs");
  });
}

TEST_CASE("operations progress while nobody waits") {
  on_all_backends(2, [](Member& me) {
    const at::Tensor value = me.rank == 0 ? pattern(500'000, 1) : at::empty({500'000});
    const Work work = me.rank == 0 ? me.group.send(value, 1) : me.group.receive(value, 0);
    const Deadline end = within(60s);
    while (!work.done() && std::chrono::steady_clock::now() < end)
      std::this_thread::sleep_for(1ms);
    require(work.done(), "done without wait");
    require(same_bits(value, pattern(500'000, 1)), "whole");
    me.group.all_reduce(at::zeros({1}), ReduceOp::sum).wait(within(60s));
  });
}

TEST_CASE("counters tell what was moved") {
  on_all_backends(2, [](Member& me) {
    const at::Tensor value = at::zeros({1000});
    if (me.rank == 0)
      me.group.send(value, 1).wait(within(60s));
    else
      me.group.receive(value, 0).wait(within(60s));
    const Counters counters = me.group.counters();
    const auto moved = me.rank == 0 ? counters.bytes_sent : counters.bytes_received;
    require(moved == 4000, "4000 bytes, whatever goes around them");
    require(counters.messages_sent + counters.messages_received == 1, "one message");
  });
}
