// Latency and bandwidth of the tensor plane between two processes, per backend and message size.
#include <ATen/ATen.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "benchmarks/command_line.h"
#include "transport/tensor/backend.h"

namespace {

using namespace troupe::tensor;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

struct Options {
  bool json = false;
  int repeats = 3;
  std::size_t ring_bytes = DeviceOptions{}.ring_bytes;
  std::vector<Backend> backends{Backend::shm, Backend::tcp};
};

struct Result {
  std::string backend;
  std::int64_t bytes = 0;
  double p50_us = 0;
  double p99_us = 0;
  double gigabytes_per_second = 0;
};

/// Lets two processes hand each other one line.
struct Pipe {
  std::array<int, 2> ends{};
  Pipe() {
    if (::pipe(ends.data()) != 0) throw std::runtime_error("[bench] pipe failed");
  }
  void put(const std::string& line) const {
    if (::write(ends[1], line.data(), line.size()) != static_cast<ssize_t>(line.size()))
      throw std::runtime_error("[bench] write failed");
  }
  std::string get() const {
    std::array<char, 512> buffer{};
    const ssize_t got = ::read(ends[0], buffer.data(), buffer.size());
    if (got <= 0) throw std::runtime_error("[bench] the other process is gone");
    return {buffer.data(), static_cast<std::size_t>(got)};
  }
};

std::vector<std::int64_t> sizes() {
  std::vector<std::int64_t> all;
  for (std::int64_t bytes = 1 << 10; bytes <= 64 << 20; bytes *= 4)
    all.push_back(bytes);
  return all;
}

/// Half of each round trip, in microseconds, in rising order.
std::vector<double> ping_pong(Group& group, std::int64_t bytes, int rounds) {
  const at::Tensor out = at::zeros({bytes}, at::kByte);
  const at::Tensor in = at::zeros({bytes}, at::kByte);
  const int peer = 1 - group.rank();
  std::vector<double> halves;
  for (int i = -rounds / 10; i < rounds; ++i) {
    const auto start = Clock::now();
    if (group.rank() == 0) group.send(out, peer);
    group.receive(in, peer).wait(within(60s));
    if (group.rank() == 1) group.send(out, peer).wait(within(60s));
    const std::chrono::duration<double, std::micro> span = Clock::now() - start;
    if (i >= 0) halves.push_back(span.count() / 2);
  }
  std::sort(halves.begin(), halves.end());
  return halves;
}

/// Bytes per nanosecond of a one-way stream with a few messages in flight.
double stream(Group& group, std::int64_t bytes, int messages) {
  const int peer = 1 - group.rank();
  constexpr int kBuffers = 4;
  std::vector<at::Tensor> buffers;
  for (int i = 0; i < kBuffers; ++i)
    buffers.push_back(at::zeros({bytes}, at::kByte));
  std::vector<Work> works(kBuffers);
  const at::Tensor token = at::zeros({1});
  const auto pass = [&](int count) {
    for (int i = 0; i < count; ++i) {
      works[i % kBuffers].wait(within(60s));
      const at::Tensor& buffer = buffers[i % kBuffers];
      works[i % kBuffers] =
          group.rank() == 0 ? group.send(buffer, peer) : group.receive(buffer, peer);
    }
    for (Work& work : works)
      work.wait(within(60s));
    if (group.rank() == 0)
      group.receive(token, peer).wait(within(60s));
    else
      group.send(token, peer).wait(within(60s));
  };
  pass(2);
  const auto start = Clock::now();
  pass(messages);
  const std::chrono::duration<double, std::nano> span = Clock::now() - start;
  return static_cast<double>(bytes) * messages / span.count();
}

std::vector<Result> measure(Backend backend, int rank, const Options& options, const Pipe& send,
                            const Pipe& receive) {
  DeviceOptions device_options;
  device_options.token = "benchmark";
  device_options.ring_bytes = options.ring_bytes;
  const auto device = make_device(backend, device_options);
  send.put(device->address());
  const std::string other = receive.get();
  const auto addresses =
      rank == 0 ? std::vector{device->address(), other} : std::vector{other, device->address()};
  const auto group = device->connect("benchmark", rank, addresses, within(20s));
  std::vector<Result> results;
  for (const std::int64_t bytes : sizes()) {
    Result best{to_string(backend), bytes};
    for (int repeat = 0; repeat < options.repeats; ++repeat) {
      const int rounds = static_cast<int>(std::clamp<std::int64_t>((64 << 20) / bytes, 10, 4000));
      const auto halves = ping_pong(*group, bytes, rounds);
      const double p50 = halves[halves.size() / 2];
      if (repeat == 0 || p50 < best.p50_us) {
        best.p50_us = p50;
        best.p99_us = halves[halves.size() * 99 / 100];
      }
      const int messages = static_cast<int>(std::clamp<std::int64_t>((256 << 20) / bytes, 8, 4000));
      best.gigabytes_per_second =
          std::max(best.gigabytes_per_second, stream(*group, bytes, messages));
    }
    results.push_back(best);
  }
  return results;
}

void print(const std::vector<Result>& results, bool json) {
  if (json) {
    std::cout << "[";
    for (std::size_t i = 0; i < results.size(); ++i) {
      const Result& r = results[i];
      std::cout << (i ? ",\n " : "") << "{\"backend\": \"" << r.backend
                << "\", \"bytes\": " << r.bytes << ", \"one_way_p50_us\": " << r.p50_us
                << ", \"one_way_p99_us\": " << r.p99_us
                << ", \"gigabytes_per_second\": " << r.gigabytes_per_second << "}";
    }
    std::cout << "]\n";
    return;
  }
  std::printf("%-8s %12s %12s %12s %10s\n", "backend", "bytes", "p50 us", "p99 us", "GB/s");
  for (const Result& r : results)
    std::printf("%-8s %12lld %12.1f %12.1f %10.2f\n", r.backend.c_str(),
                static_cast<long long>(r.bytes), r.p50_us, r.p99_us, r.gigabytes_per_second);
}

int run(const Options& options) {
  const Pipe forth, back;
  const pid_t child = ::fork();
  const int rank = child == 0 ? 1 : 0;
  std::vector<Result> all;
  for (const Backend backend : options.backends) {
    const auto results =
        measure(backend, rank, options, rank == 0 ? forth : back, rank == 0 ? back : forth);
    all.insert(all.end(), results.begin(), results.end());
  }
  if (rank == 1) return 0;
  ::waitpid(child, nullptr, 0);
  print(all, options.json);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  using namespace troupe::bench;
  Options options;
  CLI::App app{"Latency and bandwidth of the tensor plane between two processes", "tensor_plane"};
  app.add_option("--repeats", options.repeats, "Of each size; the best counts")
      ->check(whole(1, 1000))
      ->capture_default_str();
  app.add_option("--ring-bytes", options.ring_bytes, "Of shared memory a direction (shm)")
      ->check(whole(1 << 12, 1 << 30))
      ->capture_default_str();
  std::string backend;
  app.add_option("--backend", backend, "shm or tcp; default: both")->check(one_of({"shm", "tcp"}));
  app.add_flag("--json", options.json, "Print one JSON document");
  return run_program(app, argc, argv, [&] {
    if (!backend.empty()) options.backends = {backend_from(backend)};
    return run(options);
  });
}
