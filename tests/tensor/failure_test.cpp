#include <ATen/ATen.h>
#include <unistd.h>

#include <chrono>
#include <optional>
#include <thread>

#include "tests/tensor/ranks.h"
#include "transport/tensor/fd.h"

#include "tests/support/doctest.h"

using namespace troupe::tensor;
using namespace troupe::tensor::testing;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace {

void on_all_backends(int size, const std::function<void(Member&)>& body) {
  for (const Backend backend : cpu_backends()) {
    CAPTURE(to_string(backend));
    REQUIRE_NOTHROW(on_ranks(backend, size, body));
  }
}

bool contains(const TransferError& error, const std::string& text) {
  return std::string(error.what()).find(text) != std::string::npos;
}

}  // namespace

TEST_CASE("a deadline fires, names the operation, and the operation can still succeed") {
  on_all_backends(2, [](Member& me) {
    const at::Tensor value = pattern(5000, 1);
    const at::Tensor got = at::empty({5000});
    if (me.rank == 0) {
      const Work work = me.group.receive(got, 1);
      const auto start = Clock::now();
      const TransferError error = failure_of([&] { work.wait(within(50ms)); });
      const auto took = Clock::now() - start;
      require(took >= 50ms && took < 30s, "it fires, and not before its time");
      require(error.failure() == Failure::timeout && error.peer() == 1, "timeout, rank 1");
      require(contains(error, "[tensor."), "names the backend");
      require(contains(error, "group \"test "), "names the group");
      require(contains(error, "rank 0: receive of 20000 bytes from rank 1"), "names the operation");
      require(!work.done(), "still pending");
      me.group.send(at::zeros({1}), 1);
      work.wait(within(60s));
      require(at::equal(got, value), "and it came after all");
    } else {
      me.group.receive(at::empty({1}), 0).wait(within(60s));
      me.group.send(value, 0).wait(within(60s));
    }
  });
}

TEST_CASE("abort ends waits here and at the other members, and everything after") {
  on_all_backends(3, [](Member& me) {
    me.group.all_reduce(at::zeros({1}), ReduceOp::sum).wait(within(60s));
    if (me.rank == 1) {
      const Work pending = me.group.receive(at::empty({10}), 2);
      std::thread aborter([&] {
        std::this_thread::sleep_for(30ms);
        me.group.abort("epoch 7 is over");
      });
      const TransferError error = failure_of([&] { pending.wait(within(60s)); });
      aborter.join();
      require(error.failure() == Failure::aborted && error.peer() == 1, "aborted here");
      require(contains(error, "epoch 7 is over"), "with its reason");
    } else {
      const auto start = Clock::now();
      const TransferError error = failure_of(
          [&] { me.group.receive(at::empty({10}), me.rank == 0 ? 2 : 0).wait(within(60s)); });
      require(Clock::now() - start < 30s, "far from the deadline");
      require(error.failure() == Failure::aborted && error.peer() == 1, "aborted by rank 1");
      require(contains(error, "epoch 7 is over"), "with its reason");
    }
    const TransferError later =
        failure_of([&] { me.group.send(at::zeros({1}), (me.rank + 1) % 3).wait(within(60s)); });
    require(later.failure() == Failure::aborted, "future operations fail alike");
  });
}

TEST_CASE("a member that leaves in good order: what it sent arrives, what it did not is an error") {
  for (const Backend backend : cpu_backends()) {
    CAPTURE(to_string(backend));
    DeviceOptions options = small_options();
    const auto a = make_device(backend, options), b = make_device(backend, options);
    const std::vector addresses{a->address(), b->address()};
    std::thread leaver([&] {
      const auto group = b->connect("leaving", 1, addresses, within(60s));
      group->send(pattern(1000, 3), 0).wait(within(60s));
    });
    const auto group = a->connect("leaving", 0, addresses, within(60s));
    leaver.join();
    std::this_thread::sleep_for(20ms);
    const at::Tensor got = at::empty({1000});
    REQUIRE_NOTHROW(group->receive(got, 1).wait(within(60s)));
    CHECK(at::equal(got, pattern(1000, 3)));
    const auto start = Clock::now();
    const TransferError error = failure_of([&] { group->receive(got, 1).wait(within(60s)); });
    CHECK(error.failure() == Failure::peer_left);
    CHECK(error.peer() == 1);
    CHECK(Clock::now() - start < 30s);
  }
}

TEST_CASE("a disagreement about a size is noticed and ends the group") {
  on_all_backends(2, [](Member& me) {
    const TransferError error = failure_of([&] {
      if (me.rank == 0) me.group.send(at::zeros({10}), 1);
      const std::int64_t count = me.rank == 0 ? 1 : 11;
      me.group.receive(at::empty({count}), 1 - me.rank).wait(within(60s));
    });
    require(error.failure() == Failure::mismatch, "mismatch on both sides");
    require(contains(error, "40 bytes where 44 were awaited"), "with both sizes");
  });
}

TEST_CASE("bad arguments are refused at once and harm nothing") {
  on_all_backends(2, [](Member& me) {
    const auto refused = [](const std::function<void()>& action) {
      try {
        action();
      } catch (const std::invalid_argument&) {
        return true;
      }
      return false;
    };
    require(refused([&] { me.group.send(at::zeros({1}), me.rank); }), "send to itself");
    require(refused([&] { me.group.send(at::zeros({1}), 2); }), "no such rank");
    require(refused([&] { me.group.receive(at::Tensor(), 1 - me.rank); }), "undefined tensor");
    require(refused([&] { me.group.all_gather({at::zeros({1})}, at::zeros({1})); }), "too few");
    require(refused([&] { me.group.broadcast(at::zeros({1}), -1); }), "no such root");
    me.group.all_reduce(at::zeros({1}), ReduceOp::sum).wait(within(60s));
  });
}

TEST_CASE("a wrong token, another size and an absent peer do not get in") {
  for (const Backend backend : cpu_backends()) {
    CAPTURE(to_string(backend));
    DeviceOptions options = small_options();
    const auto host = make_device(backend, options);
    options.token = "another token at all";
    const auto stranger = make_device(backend, options);
    const std::vector addresses{host->address(), stranger->address()};
    const TransferError refused =
        failure_of([&] { stranger->connect("g", 1, addresses, within(60s)); });
    CHECK(refused.failure() == Failure::refused);
    CHECK(refused.peer() == 0);
    CHECK(contains(refused, "does not know the cluster's secret"));

    const auto start = Clock::now();
    const TransferError absent =
        failure_of([&] { host->connect("g", 0, addresses, within(100ms)); });
    CHECK(absent.failure() == Failure::timeout);
    CHECK(absent.peer() == 1);
    CHECK(Clock::now() - start < 30s);

    options.token = kToken;
    const auto other = make_device(backend, options);
    // The other waits in vain for the third, and is to be there when the host looks: for longer,
    // where a busy machine keeps them from meeting.
    std::optional<TransferError> size;
    for (const auto patience : {500ms, 5000ms, 30000ms}) {
      const std::string name = "s " + std::to_string(patience.count());
      std::thread joining([&] {
        const std::vector three{host->address(), other->address(), stranger->address()};
        CHECK(failure_of([&] { other->connect(name, 1, three, within(patience)); }).peer() >= 0);
      });
      size = failure_of([&] {
        host->connect(name, 0, {host->address(), other->address()}, within(patience));
      });
      joining.join();
      if (size->failure() != Failure::timeout) break;
    }
    CHECK(size->failure() == Failure::refused);
    CHECK(contains(*size, "3 ranks"));

    options.token = "";
    CHECK_THROWS_AS(make_device(backend, options), std::invalid_argument);
  }
}

TEST_CASE("bytes from a stranger do not disturb a listening device") {
  for (const Backend backend : cpu_backends()) {
    CAPTURE(to_string(backend));
    REQUIRE_NOTHROW(on_ranks(backend, 2, [&](Member& me) {
      DeviceOptions options = small_options();
      const auto noisy = make_device(backend, options);
      // A group name that nobody claims, then the connection is dropped.
      failure_of([&] {
        noisy->connect("nobody " + std::to_string(me.rank), 2,
                       {me.addresses[0], me.addresses[1], noisy->address()}, within(20ms));
      });
      me.group.all_reduce(at::zeros({1000}), ReduceOp::sum).wait(within(60s));
    }));
  }
}

TEST_CASE("groups and devices leave no descriptors and no mappings behind") {
  for (const Backend backend : cpu_backends()) {
    CAPTURE(to_string(backend));
    const int before = open_descriptors();
    for (int round = 0; round < 3; ++round)
      on_ranks(backend, 4, [](Member& me) {
        me.group.all_reduce(at::zeros({5000}), ReduceOp::sum).wait(within(60s));
      });
    CHECK(open_descriptors() == before);
    const std::string command =
        "! grep -q troupe-ring /proc/" + std::to_string(::getpid()) + "/maps";
    CHECK(std::system(command.c_str()) == 0);
  }
}

TEST_CASE("a mapping that could shrink later is not accepted") {
  const UniqueFd good = make_memfd("test", 8192);
  CHECK_NOTHROW(Mapping::of(good.get(), 8192));
  CHECK_THROWS(Mapping::of(good.get(), 4096));
  CHECK(::ftruncate(good.get(), 4096) != 0);
}

TEST_CASE("backends by name") {
  CHECK(backend_from("shm") == Backend::shm);
  CHECK_THROWS_WITH_AS(backend_from("gloo"), doctest::Contains("tcp takes its place"),
                       std::invalid_argument);
  CHECK_THROWS_AS(backend_from("rdma"), std::invalid_argument);
  if (const std::string why = why_unavailable(Backend::nccl); !why.empty())
    CHECK_THROWS_WITH(make_device(Backend::nccl, small_options()), doctest::Contains(why.c_str()));
}
