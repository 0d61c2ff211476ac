#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <set>
#include <thread>

#include "tests/tensor/peer_process.h"
#include "tests/tensor/ranks.h"

#include "tests/support/doctest.h"

using namespace troupe::tensor;
using namespace troupe::tensor::testing;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace {

std::set<std::string> shared_memory_files() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    // Folders are those of tests that run beside this one.
    std::error_code gone;
    if (entry.is_regular_file(gone) &&
        entry.path().filename().string().find("troupe") != std::string::npos)
      names.insert(entry.path());
  }
  return names;
}

}  // namespace

TEST_CASE("kill -9 of a peer ends everybody's waits, naming it") {
  for (const Backend backend : cpu_backends()) {
    CAPTURE(to_string(backend));
    const auto files_before = shared_memory_files();
    const int descriptors_before = open_descriptors();
    {
      DeviceOptions options;
      options.token = kToken;
      const auto device = make_device(backend, options);
      std::vector<PeerProcess> peers;
      std::vector<std::string> addresses{device->address()};
      for (int rank = 1; rank < 3; ++rank)
        peers.emplace_back(
            std::vector<std::string>{to_string(backend), "doomed", std::to_string(rank), kToken});
      for (PeerProcess& peer : peers)
        addresses.push_back(peer.line());
      for (PeerProcess& peer : peers)
        for (const std::string& address : addresses)
          peer.say(address + "\n");
      for (PeerProcess& peer : peers)
        peer.say("\n");
      const auto group = device->connect("doomed", 0, addresses, within(60s));
      for (PeerProcess& peer : peers)
        REQUIRE(peer.line() == "ready");
      for (int round = 0; round < 5; ++round) {
        const at::Tensor value = at::ones({1'000'000});
        REQUIRE_NOTHROW(group->all_reduce(value, ReduceOp::sum).wait(within(60s)));
        REQUIRE(value[999'999].item<float>() == 3.0f);
      }

      // The kernel itself takes a while to end a large process on a busy machine: the sockets close
      // when it does, so the notice is measured against the kill or against that end.
      const auto killed = Clock::now();
      peers[1].signal(SIGKILL);
      Clock::time_point ended;
      std::thread watcher([&] {
        peers[1].await_end();
        ended = Clock::now();
      });
      const TransferError error = failure_of([&] {
        for (;;) {
          const at::Tensor value = at::ones({1'000'000});
          group->all_reduce(value, ReduceOp::sum).wait(within(60s));
        }
      });
      const auto noticed = Clock::now();
      watcher.join();
      const auto took = noticed - killed;
      MESSAGE(
          to_string(backend) << ": noticed after "
                             << std::chrono::duration<double, std::milli>(took).count()
                             << " ms, the process had ended after "
                             << std::chrono::duration<double, std::milli>(ended - killed).count()
                             << " ms");
      // Far from the deadline of the wait; how soon on a quiet machine is the message's affair.
      CHECK(noticed < std::max(killed, ended) + 30s);
      CHECK(error.failure() == Failure::peer_lost);
      CHECK(error.peer() == 2);
      CHECK(std::string(error.what()).find("rank 2 is gone") != std::string::npos);

      const std::string other = peers[0].line();
      CAPTURE(other);
      CHECK(other.starts_with("failed " + std::to_string(static_cast<int>(Failure::peer_lost)) +
                              " 2 "));
    }
    CHECK(shared_memory_files() == files_before);
    CHECK(open_descriptors() == descriptors_before);
  }
}

TEST_CASE("a stopped peer is not lost: the deadline fires, and it goes on afterwards") {
  for (const Backend backend : cpu_backends()) {
    CAPTURE(to_string(backend));
    DeviceOptions options;
    options.token = kToken;
    const auto device = make_device(backend, options);
    PeerProcess peer({to_string(backend), "stopped", "1", kToken});
    const std::vector addresses{device->address(), peer.line()};
    peer.say(addresses[0] + "\n" + addresses[1] + "\n\n");
    const auto group = device->connect("stopped", 0, addresses, within(60s));
    REQUIRE(peer.line() == "ready");
    peer.signal(SIGSTOP);
    bool timed_out = false;
    for (int round = 0; round < 3; ++round) {
      const at::Tensor value = at::ones({1'000'000});
      const Work work = group->all_reduce(value, ReduceOp::sum);
      try {
        work.wait(within(100ms));
      } catch (const TransferError& error) {
        REQUIRE(error.failure() == Failure::timeout);
        timed_out = true;
        peer.signal(SIGCONT);
        REQUIRE_NOTHROW(work.wait(within(60s)));
      }
      CHECK(value[0].item<float>() == 2.0f);
    }
    CHECK(timed_out);
  }
}
