#include "benchmarks/dispatch/whole_cluster.h"

#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "controller/app/cluster.h"
#include "transport/control/connection.h"
#include "transport/wire/client_messages.h"

extern char** environ;

namespace troupe::bench {
namespace {

using control::Clock;
constexpr int kActorsOfHost = 8;

double seconds_since(Clock::time_point from) {
  return std::chrono::duration<double>(Clock::now() - from).count();
}

std::string own_program() {
  return std::filesystem::read_symlink("/proc/self/exe").string();
}

/// Links of 1,024 actors and their hosts.
void allow_descriptors() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

double processor_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// Processes that play hosts; they end with the cluster, or are killed.
class Hosts {
 public:
  Hosts(int count, const std::string& endpoint, double task_seconds) {
    const auto program = own_program();
    const auto task_ms = std::to_string(task_seconds * 1e3);
    for (int i = 0; i < count; ++i) {
      std::vector<std::string> arguments{program,      "--play-host", "host-" + std::to_string(i),
                                         "--endpoint", endpoint,      "--task-ms",
                                         task_ms};
      std::vector<char*> pointers;
      for (auto& argument : arguments)
        pointers.push_back(argument.data());
      pointers.push_back(nullptr);
      pid_t pid = 0;
      if (posix_spawn(&pid, program.c_str(), nullptr, nullptr, pointers.data(), environ) != 0)
        throw std::runtime_error("no process can be started for host " + std::to_string(i));
      pids_.push_back(pid);
    }
  }
  ~Hosts() {
    for (const auto pid : pids_)
      kill(pid, SIGKILL);
    for (const auto pid : pids_)
      waitpid(pid, nullptr, 0);
  }
  Hosts(const Hosts&) = delete;
  Hosts& operator=(const Hosts&) = delete;

 private:
  std::vector<pid_t> pids_;
};

class Client {
 public:
  explicit Client(const std::string& endpoint) : timer_(io_) {
    control::ConnectionOptions link;
    link.endpoint = endpoint;
    link.hello.role = PeerRole::client;
    link.hello.name = "dispatch";
    link.socket.patience = std::chrono::microseconds(0);
    link_ = std::make_unique<control::Connection>(io_, link);
    link_->on_lost(
        [this](const control::Loss& loss) { fail("the controller is lost: " + loss.why); });
    link_->on_message([this](const wire::Header& header, std::span<const std::byte> payload) {
      if (header.kind == wire::Kind::job_finished)
        finished(wire::decode<wire::JobFinished>(payload));
    });
    link_->start([this](const wire::Welcome&) { io_.stop(); },
                 [this](const wire::Failure& failure) { fail(failure.what); });
    run();
  }

  /// Returns when so many actors are ready.
  void await_actors(std::size_t count) {
    const auto until = Clock::now() + std::chrono::seconds(60);
    std::size_t ready = 0;
    while (ready < count) {
      if (Clock::now() > until)
        throw std::runtime_error(std::to_string(ready) + " of " + std::to_string(count) +
                                 " actors are ready after 60 s");
      link_->request(wire::GetStatus{}, std::chrono::seconds(10), [&](const control::Reply& reply) {
        if (!reply.ok()) return fail(reply.failure().what);
        const auto status = reply.as<wire::ClusterStatus>();
        ready = 0;
        for (const auto& actor : status.actors)
          ready += actor.state == "ready" ? 1 : 0;
        timer_.expires_after(std::chrono::milliseconds(50));
        timer_.async_wait([this](auto) { io_.stop(); });
      });
      run();
    }
  }

  void play(const wire::JobSpec& spec, int jobs) {
    to_come_ = jobs;
    for (int i = 0; i < jobs; ++i) {
      link_->request(wire::SubmitJob{.job = spec, .detached = true, .key = 0},
                     std::chrono::seconds(60), [this](const control::Reply& reply) {
                       if (!reply.ok()) fail(reply.failure().what);
                     });
    }
    run();
  }

  double busy = 0;
  double waits = 0;

 private:
  void finished(const wire::JobFinished& end) {
    if (end.state != wire::JobState::succeeded)
      return fail("job " + std::to_string(end.job) + ": " + end.failure.what);
    const auto report = nlohmann::json::parse(end.report);
    for (const auto& actor : report.at("actors")) {
      busy += actor.at("busy_seconds").get<double>();
      waits += actor.at("controller_wait_seconds").get<double>();
    }
    if (--to_come_ == 0) io_.stop();
  }

  void fail(const std::string& why) {
    failure_ = why;
    io_.stop();
  }

  void run() {
    io_.restart();
    io_.run();
    if (!failure_.empty()) throw std::runtime_error(failure_);
  }

  boost::asio::io_context io_{1};
  boost::asio::steady_timer timer_;
  std::unique_ptr<control::Connection> link_;
  std::string failure_;
  int to_come_ = 0;
};

wire::JobSpec spec_of(const wire::Parallelism& degrees, int steps) {
  wire::JobSpec spec;
  spec.model = TROUPE_SOURCE_DIR "/examples/demo/model";
  spec.request = request_of(degrees);
  spec.request.steps = steps;
  spec.parallelism = degrees;
  return spec;
}

}  // namespace

ClusterFigures dispatch_cluster(const DispatchShape& shape, int hosts, double task_seconds,
                                int steps) {
  allow_descriptors();
  cluster::ClusterOptions options;
  options.actors = 1;
  options.actor_program = own_program();
  options.pin = "none";
  options.max_queued_jobs = shape.jobs + 1;
  options.max_jobs_together = 1;
  options.max_batch = 1;
  cluster::Cluster cluster(options);
  cluster.wait_ready(std::chrono::seconds(30));

  auto from = Clock::now();
  const Hosts played(hosts, cluster.endpoint(), task_seconds);
  Client client(cluster.endpoint());
  client.await_actors(static_cast<std::size_t>(hosts) * kActorsOfHost + 1);
  ClusterFigures figures{.jobs = shape.jobs, .join_seconds = seconds_since(from)};

  from = Clock::now();
  const double processor = processor_seconds();
  client.play(spec_of(shape.degrees, steps), shape.jobs);
  figures.seconds = seconds_since(from);
  figures.controller_processor = (processor_seconds() - processor) / figures.seconds;
  figures.actors = shape.jobs * actors_of(shape.degrees);
  figures.ends = client.busy / task_seconds;
  figures.controller_wait = client.waits / (client.busy + client.waits);
  cluster.stop();
  return figures;
}

}  // namespace troupe::bench
