#include "benchmarks/dispatch/whole_cluster.h"

#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
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
constexpr int kSubmittedTogether = 32;  // requests without an answer; the controller takes 64

double seconds_since(Clock::time_point from) {
  return std::chrono::duration<double>(Clock::now() - from).count();
}

std::string own_program() {
  return std::filesystem::read_symlink("/proc/self/exe").string();
}

/// Raises the limit of descriptors to its maximum, for the links of 1,024 actors and their hosts.
void allow_descriptors() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
}

/// Processor time of all processes that have ended and were waited for.
double seconds_of_children() {
  rusage usage{};
  getrusage(RUSAGE_CHILDREN, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

/// Seconds of processor time that the threads of this process have had.
struct Processor {
  double io = 0;      // ZeroMQ's
  double others = 0;  // the rest
  double starved = 0;

  Processor operator-(const Processor& before) const {
    return {io - before.io, others - before.others, starved - before.starved};
  }
};

Processor processor_now() {
  Processor sum;
  for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
    std::string name;
    double ran = 0, waited = 0;  // nanoseconds
    std::ifstream(thread.path() / "comm") >> name;
    std::ifstream(thread.path() / "schedstat") >> ran >> waited;
    (name.starts_with("ZMQ") ? sum.io : sum.others) += 1e-9 * ran;
    sum.starved += 1e-9 * waited;
  }
  return sum;
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
  /// Kills the first `count` hosts, without a goodbye.
  void lose(int count) {
    for (int i = 0; i < count; ++i)
      kill(pids_.at(static_cast<std::size_t>(i)), SIGKILL);
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

/// The process that plays watchers; it ends when their jobs have ended.
class Following {
 public:
  Following(int count, int jobs, const std::string& endpoint)
      : output_(popen((own_program() + " --play-watchers " + std::to_string(count) + " --jobs " +
                       std::to_string(jobs) + " --endpoint '" + endpoint + "'")
                          .c_str(),
                      "re")) {
    if (!output_ || line() != "ready") throw std::runtime_error("the watchers have no links");
  }
  ~Following() {
    if (output_) pclose(output_);
  }
  Following(const Following&) = delete;
  Following& operator=(const Following&) = delete;
  /// Messages about jobs that they heard, once all have ended.
  std::uint64_t heard() { return std::stoull(line()); }

 private:
  std::string line() {
    char text[64] = "";
    if (!fgets(text, sizeof text, output_)) return "0";
    return std::string(text, strcspn(text, "\n"));
  }
  FILE* output_;
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
      if (header.kind == wire::Kind::job_progress)
        progress(wire::decode<wire::JobProgress>(payload));
    });
    link_->start([this](const wire::Welcome&) { io_.stop(); },
                 [this](const wire::Failure& failure) { fail(failure.what); });
    run();
  }

  /// Returns when so many actors are ready.
  void await_actors(std::size_t count) {
    const auto until = Clock::now() + std::chrono::seconds(60);
    std::size_t ready = 0;
    std::uint32_t seen = 0;
    while (ready < count) {
      if (Clock::now() > until)
        throw std::runtime_error(std::to_string(ready) + " of " + std::to_string(count) +
                                 " actors are ready after 60 s");
      link_->request(wire::GetStatus{seen}, std::chrono::seconds(10),
                     [&](const control::Reply& reply) {
                       if (!reply.ok()) return fail(reply.failure().what);
                       const auto status = reply.as<wire::ClusterStatus>();
                       if (seen == 0) ready = 0;
                       for (const auto& actor : status.actors)
                         ready += actor.state == ActorState::ready ? 1 : 0;
                       seen += static_cast<std::uint32_t>(status.actors.size());
                       if (!status.actors.empty() && seen < status.actors_all) return io_.stop();
                       seen = 0;
                       timer_.expires_after(std::chrono::milliseconds(50));
                       timer_.async_wait([this](auto) { io_.stop(); });
                     });
      run();
    }
  }

  /// Has so many jobs checked one after another, and meanwhile asks for the list of jobs again as
  /// soon as it is there. Returns the seconds of the longest answer: the loop was busy for as long.
  double longest_answer(const wire::JobSpec& spec, int checks) {
    double longest = 0;
    const std::function<void()> list = [&] {
      if (checks == 0) return io_.stop();
      const auto asked = Clock::now();
      link_->request(wire::ListJobs{}, std::chrono::seconds(60), [&, asked](const auto& reply) {
        if (!reply.ok()) return fail(reply.failure().what);
        longest = std::max(longest, seconds_since(asked));
        list();
      });
    };
    const std::function<void()> check = [&] {
      link_->request(wire::SubmitJob{.job = spec, .only_check = true}, std::chrono::seconds(60),
                     [&](const control::Reply& reply) {
                       if (!reply.ok()) return fail(reply.failure().what);
                       if (--checks > 0) check();
                     });
    };
    check();
    list();
    run();
    return longest;
  }

  /// `lose`, unless it is null: called once, a second after the last job began.
  void play(const wire::JobSpec& spec, int jobs, std::function<void()> lose) {
    to_come_ = jobs;
    to_begin_ = lose ? jobs : 0;
    lose_ = std::move(lose);
    to_submit_ = jobs;
    for (int i = 0; i < std::min(jobs, kSubmittedTogether); ++i)
      submit_next(spec);
    run();
  }

  double busy = 0;
  double waits = 0;
  std::set<std::uint64_t> lost;  // jobs that were told of a loss
  double noticed = 0;            // seconds from the loss until the last of them was
  double placed = 0;             // and until the last of them began again

 private:
  void submit_next(const wire::JobSpec& spec) {
    if (to_submit_ == 0) return;
    --to_submit_;
    link_->request(wire::SubmitJob{.job = spec, .detached = true, .key = 0},
                   std::chrono::seconds(60), [this, &spec](const control::Reply& reply) {
                     if (!reply.ok()) return fail(reply.failure().what);
                     submit_next(spec);
                   });
  }
  void progress(const wire::JobProgress& progress) {
    if (progress.phase == JobPhase::recovering) {
      if (lost.insert(progress.job).second) noticed = seconds_since(lost_at_);
      waiting_.insert(progress.job);
    } else if (progress.phase == JobPhase::text) {
      if (waiting_.erase(progress.job) > 0) placed = seconds_since(lost_at_);
      if (begun_.insert(progress.job).second && --to_begin_ == 0) {
        timer_.expires_after(std::chrono::seconds(1));
        timer_.async_wait([this](auto) {
          lost_at_ = Clock::now();
          lose_();
        });
      }
    }
  }
  void finished(const wire::JobFinished& end) {
    if (end.state != JobState::succeeded)
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
  int to_submit_ = 0;
  int to_begin_ = 0;
  std::function<void()> lose_;
  std::set<std::uint64_t> begun_;
  std::set<std::uint64_t> waiting_;  // for other actors
  Clock::time_point lost_at_{};
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

ClusterFigures dispatch_cluster(const ClusterPlay& play) {
  const auto& [shape, hosts, task_seconds, steps, lose, watchers, checks] = play;
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
  std::optional<Hosts> played(std::in_place, hosts, cluster.endpoint(), task_seconds);
  Client client(cluster.endpoint());
  client.await_actors(static_cast<std::size_t>(hosts) * kActorsOfHost + 1);
  ClusterFigures figures{.jobs = shape.jobs, .join_seconds = seconds_since(from)};

  if (checks > 0) {
    auto picked = spec_of({}, steps);
    picked.parallelism.automatic = true;
    figures.longest_answer = client.longest_answer(picked, checks);
  }

  std::optional<Following> following;
  if (watchers > 0) following.emplace(watchers, shape.jobs, cluster.endpoint());
  from = Clock::now();
  const auto processor = processor_now();
  std::function<void()> vanish;
  if (lose > 0) vanish = [&played, count = lose] { played->lose(count); };
  client.play(spec_of(shape.degrees, steps), shape.jobs, vanish);
  figures.seconds = seconds_since(from);
  const auto used = processor_now() - processor;
  figures.controller_seconds = used.others;
  figures.controller_io_seconds = used.io;
  figures.controller_starved_seconds = used.starved;
  if (following) figures.watchers_heard = following->heard();
  following.reset();
  figures.actors = shape.jobs * actors_of(shape.degrees);
  figures.ends = client.busy / task_seconds;
  figures.jobs_lost = static_cast<int>(client.lost.size());
  figures.noticed_seconds = client.noticed;
  figures.placed_seconds = client.placed;
  figures.controller_wait = client.waits / (client.busy + client.waits);
  cluster.stop();
  played.reset();
  figures.players_seconds = seconds_of_children();
  return figures;
}

}  // namespace troupe::bench
