// Control plane between two processes: round trip of one request at a time, and requests per second
// in a pipeline.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks/command_line.h"
#include "transport/control/connection.h"
#include "transport/control/endpoint.h"
#include "transport/control/server.h"

namespace {

using namespace troupe;
using control::Clock;

struct Settings {
  bool json = false;
  std::size_t calls = 20'000;
  std::size_t window = 256;  // requests under way in the pipeline
  std::size_t bytes = 64;    // of payload
  /// Value for SocketOptions::patience; none: its default.
  std::optional<std::chrono::microseconds> patience;
};

struct Figures {
  std::string transport;
  double p50_us = 0;
  double p99_us = 0;
  double calls_per_second = 0;
};

/// Answers pings until the server of the benchmark is gone.
[[noreturn]] void run_peer(int endpoint_pipe, const Settings& settings) {
  try {
    std::string endpoint(4096, '\0');
    const ssize_t got = read(endpoint_pipe, endpoint.data(), endpoint.size());
    if (got <= 0) _exit(1);
    endpoint.resize(static_cast<std::size_t>(got));
    boost::asio::io_context io(1);
    control::ConnectionOptions options;
    options.endpoint = endpoint;
    options.hello.role = PeerRole::actor;
    options.hello.name = "benchmark peer";
    if (settings.patience) options.socket.patience = *settings.patience;
    control::Connection connection(io, options);
    connection.on_lost([&](const control::Loss&) { io.stop(); });
    connection.start([](const wire::Welcome&) {}, [&](const wire::Failure&) { io.stop(); });
    io.run();
  } catch (const std::exception& error) {
    std::cerr << error.what() << "\n";
    _exit(1);
  }
  _exit(0);
}

class Bench {
 public:
  Bench(control::Server& server, control::PeerId peer, const Settings& settings,
        std::function<void()> done)
      : server_(server),
        peer_(peer),
        settings_(settings),
        done_(std::move(done)),
        ping_{std::string(settings.bytes, 'x')} {}

  void start() { ask_one(); }

  std::vector<double> round_trips_us;
  double calls_per_second = 0;

 private:
  static constexpr std::size_t kWarmUp = 2000;
  static constexpr std::chrono::milliseconds kDeadline{10'000};

  void check(const control::Reply& reply) const {
    if (!reply) throw std::runtime_error("[benchmark] " + reply.failure().what);
    if (reply.as<wire::Pong>().data != ping_.data)
      throw std::runtime_error("[benchmark] a wrong answer came back");
  }

  void ask_one() {
    const auto began = Clock::now();
    server_.request(peer_, ping_, kDeadline, [this, began](const control::Reply& reply) {
      const std::chrono::duration<double, std::micro> took = Clock::now() - began;
      check(reply);
      if (++answered_ > kWarmUp) round_trips_us.push_back(took.count());
      if (round_trips_us.size() < settings_.calls) return ask_one();
      answered_ = 0;
      pipeline_began_ = Clock::now();
      for (asked_ = 0; asked_ < settings_.window; ++asked_)
        ask_many();
    });
  }

  void ask_many() {
    server_.request(peer_, ping_, kDeadline, [this](const control::Reply& reply) {
      check(reply);
      if (asked_ < 10 * settings_.calls) {
        ++asked_;
        ask_many();
      }
      if (++answered_ < 10 * settings_.calls) return;
      const std::chrono::duration<double> took = Clock::now() - pipeline_began_;
      calls_per_second = static_cast<double>(answered_) / took.count();
      done_();
    });
  }

  control::Server& server_;
  control::PeerId peer_;
  const Settings& settings_;
  std::function<void()> done_;
  wire::Ping ping_;
  std::size_t asked_ = 0;
  std::size_t answered_ = 0;
  Clock::time_point pipeline_began_;
};

Figures measure(const std::string& transport, const std::string& endpoint,
                const Settings& settings) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("[benchmark] no pipe");
  const pid_t child = fork();
  if (child == 0) {
    close(ends[1]);
    run_peer(ends[0], settings);
  }
  close(ends[0]);
  boost::asio::io_context io(1);
  control::ServerOptions options;
  options.endpoint = endpoint;
  if (settings.patience) options.socket.patience = *settings.patience;
  control::Server server(io, options);
  const std::string bound = server.endpoint();
  if (write(ends[1], bound.data(), bound.size()) != static_cast<ssize_t>(bound.size())) {
    throw std::runtime_error("[benchmark] cannot tell the peer where to connect");
  }
  close(ends[1]);
  std::unique_ptr<Bench> bench;
  server.on_ready([&](control::PeerId peer) {
    bench = std::make_unique<Bench>(server, peer, settings, [&] {
      server.close();
      io.stop();
    });
    bench->start();
  });
  io.run_for(std::chrono::seconds(120));
  int status = 0;
  if (!bench || bench->calls_per_second == 0) {
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    throw std::runtime_error("[benchmark] not done within 120 s over " + transport);
  }
  waitpid(child, &status, 0);
  auto& times = bench->round_trips_us;
  std::sort(times.begin(), times.end());
  return {transport, times[times.size() / 2], times[times.size() * 99 / 100],
          bench->calls_per_second};
}

void print(const std::vector<Figures>& all, const Settings& settings) {
  if (settings.json) std::printf("[");
  for (std::size_t i = 0; i < all.size(); ++i) {
    const Figures& f = all[i];
    if (settings.json) {
      std::printf(
          "%s{\"transport\": \"%s\", \"round_trip_p50_us\": %.1f, \"round_trip_p99_us\": %.1f, "
          "\"pipelined_calls_per_second\": %.0f, \"payload_bytes\": %zu, \"window\": %zu}",
          i ? ", " : "", f.transport.c_str(), f.p50_us, f.p99_us, f.calls_per_second,
          settings.bytes, settings.window);
    } else {
      std::printf(
          "%s  round trip p50 %.1f us, p99 %.1f us; pipelined %.0f calls/s (%zu bytes, window "
          "%zu)\n",
          f.transport.c_str(), f.p50_us, f.p99_us, f.calls_per_second, settings.bytes,
          settings.window);
    }
  }
  if (settings.json) std::printf("]\n");
}

}  // namespace

int main(int argc, char** argv) {
  using namespace bench;
  Settings settings;
  CLI::App app{"Round trip and pipelined requests of the control plane between two processes",
               "control_plane"};
  app.add_option("--calls", settings.calls, "Round trips; ten times as many in the pipeline")
      ->check(whole(1, 10'000'000))
      ->capture_default_str();
  app.add_option("--window", settings.window, "Requests under way in the pipeline")
      ->check(whole(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--bytes", settings.bytes, "Payload of a request")
      ->check(whole(1, 1 << 20))
      ->capture_default_str();
  app.add_option_function<std::int64_t>(
         "--patience",
         [&](std::int64_t value) { settings.patience = std::chrono::microseconds(value); },
         "Microseconds for which sockets are looked at before their thread sleeps; default: as "
         "actors do")
      ->check(whole(0, 1'000'000));
  app.add_flag("--json", settings.json, "Print one JSON document");
  return run_program(app, argc, argv, [&] {
    settings.window = std::min(settings.window, 10 * settings.calls);
    std::vector<Figures> all;
    {
      const control::IpcFolder folder;
      all.push_back(measure("ipc", folder.endpoint("control"), settings));
    }
    all.push_back(measure("tcp", "tcp://127.0.0.1:0", settings));
    print(all, settings);
    return 0;
  });
}
