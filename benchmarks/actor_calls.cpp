// Calls of users' actors, from a client to an actor's process and back: round trip of one call at a
// time, calls per second in a pipeline, time to spawn an actor, and a tensor there and back.
//   troupe start --actors 1 --plugin lib/libtroupe_example_actors.so --listen ipc://…
//   actor_calls ENDPOINT [--json] [--calls N] [--window N] [--spawns N]
#include <algorithm>
#include <chrono>
#include <deque>
#include <iostream>
#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks/command_line.h"
#include "examples/actors/counter.h"
#include "examples/actors/ring.h"
#include "troupe/client.h"

namespace {

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

template <class T>
T take(troupe::Result<T> result) {
  if (!result)
    throw std::runtime_error(to_string(result.error().code) + ": " + result.error().what);
  return std::move(result.value());
}

double micros(Clock::duration time) {
  return std::chrono::duration<double, std::micro>(time).count();
}

double at(std::vector<double>& values, double share) {
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1,
                         static_cast<std::size_t>(share * static_cast<double>(values.size())))];
}

struct Settings {
  std::string endpoint;
  bool json = false;
  std::size_t calls = 20'000;
  std::size_t window = 4096;
  std::size_t spawns = 30;
};

void run(const Settings& settings) {
  auto client = take(troupe::Client::connect(settings.endpoint));
  auto actors = client.actors();
  std::vector<double> spawns;
  for (std::size_t i = 0; i < settings.spawns; ++i) {
    const auto began = Clock::now();
    const auto actor = take(actors.spawn<Counter>({}, 0));
    spawns.push_back(micros(Clock::now() - began) / 1000);
    take(actor.kill());
  }
  const auto counter = take(actors.spawn<Counter>({}, 0));
  std::vector<double> trips;
  for (std::size_t i = 0; i < settings.calls + 500; ++i) {
    const auto began = Clock::now();
    take(counter.call<&Counter::add>(1).wait(10s));
    if (i >= 500) trips.push_back(micros(Clock::now() - began));
  }
  const std::size_t many = 20 * settings.calls;
  std::deque<troupe::Future<std::int64_t>> window;
  const auto began = Clock::now();
  for (std::size_t i = 0; i < many; ++i) {
    window.push_back(counter.call<&Counter::add>(1));
    if (window.size() < settings.window) continue;
    // Half of the window is taken in at once, so that calls stay together.
    while (window.size() > settings.window / 2) {
      take(window.front().wait(30s));
      window.pop_front();
    }
  }
  for (auto& each : window)
    take(each.wait(30s));
  const double per_second =
      static_cast<double>(many) / std::chrono::duration<double>(Clock::now() - began).count();

  const auto member = take(actors.spawn<RingMember>({}, 1.f));
  const auto tensor = troupe::Array::of(std::vector<float>(1 << 20, 1.f), {1 << 20});
  std::vector<double> tensors;
  for (int i = 0; i < 20; ++i) {
    const auto sent = Clock::now();
    take(member.call<&RingMember::scale>(tensor).wait(30s));
    tensors.push_back(micros(Clock::now() - sent) / 1000);
  }
  const double trip50 = at(trips, 0.5), trip99 = at(trips, 0.99);
  const double spawn50 = at(spawns, 0.5), spawn100 = at(spawns, 1), tensor50 = at(tensors, 0.5);
  if (settings.json) {
    std::cout << "{\"round_trip_p50_us\": " << trip50 << ", \"round_trip_p99_us\": " << trip99
              << ", \"calls_per_second\": " << per_second << ", \"spawn_p50_ms\": " << spawn50
              << ", \"spawn_max_ms\": " << spawn100 << ", \"tensor_4mib_p50_ms\": " << tensor50
              << "}\n";
    return;
  }
  std::cout << "round trip         p50 " << trip50 << " us, p99 " << trip99 << " us\n"
            << "pipelined          " << per_second << " calls/s\n"
            << "spawn              p50 " << spawn50 << " ms, most " << spawn100 << " ms\n"
            << "4 MiB there, back  p50 " << tensor50 << " ms\n";
}

}  // namespace

int main(int argc, char** argv) {
  using namespace troupe::bench;
  Settings settings;
  CLI::App app{"Calls of users' actors of a running cluster, one at a time and in a pipeline",
               "actor_calls"};
  app.add_option("ENDPOINT", settings.endpoint,
                 "Of a cluster started with --plugin libtroupe_example_actors.so")
      ->required();
  app.add_option("--calls", settings.calls, "Round trips; 20 times as many in the pipeline")
      ->check(whole(1, 10'000'000))
      ->capture_default_str();
  app.add_option("--window", settings.window, "Calls under way in the pipeline")
      ->check(whole(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--spawns", settings.spawns, "Actors to spawn")
      ->check(whole(1, 10'000))
      ->capture_default_str();
  app.add_flag("--json", settings.json, "Print one JSON document");
  return run_program(app, argc, argv, [&] {
    run(settings);
    return 0;
  });
}
