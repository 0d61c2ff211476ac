#include <signal.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <random>
#include <thread>

#include "benchmarks/demo_jobs.h"
#include "benchmarks/faults/rows.h"

namespace troupe::faults {
namespace {

using namespace std::chrono_literals;
using bench::take;

constexpr int kLong = 900;  // steps

/// Times a job that may not recover, and so ends by its first loss: its client is told the cause.
Row failed_job(const std::string& name, const Options& options) {
  auto wanted = cluster_options(options, 4);
  wanted.max_recoveries = 0;
  cluster::Cluster cluster(wanted);
  auto client = take(Client::connect(cluster.endpoint()));
  std::mt19937 random(7);
  std::vector<double> told;
  for (int time = 0; time < options.times; ++time) {
    wait_until_whole(client, 4);
    std::atomic<int> step = 0;
    const auto job = take(client.submit(job_of(options, {.dp = 1, .cfg = 2, .pp = 2}, kLong),
                                        [&](const Progress& progress) { step = progress.step; }));
    const int from = 1 + static_cast<int>(random() % 8);
    wait_for("job under way", [&] { return step >= from; });
    const auto victim = take(client.status()).actors.at(random() % 4);
    const auto start = Clock::now();
    kill(static_cast<pid_t>(victim.pid), SIGKILL);
    const auto result = client.wait(job, 120s);
    told.push_back(since(start));
    if (result || result.error().what.find("signal 9") == std::string::npos)
      throw std::runtime_error("a job did not fail by its loss");
  }
  return {name, {{"its_job_failed", told}}, -1};
}

/// Ends clients that are processes of their own, each with a job that runs or waits, without a
/// goodbye.
Row lost_clients(const std::string& name, int number, const Options& options) {
  cluster::Cluster cluster(cluster_options(options, 2));
  cluster.wait_ready(2min);
  auto client = take(Client::connect(cluster.endpoint()));
  std::map<std::uint64_t, std::unique_ptr<soak::Child>> clients;
  std::uint64_t last = 0;
  const auto newest = [&] {
    std::uint64_t id = 0;
    for (const auto& job : take(client.jobs()))
      id = std::max(id, job.id);
    return id;
  };
  for (int time = 0; time < options.times; ++time) {
    auto child = std::make_unique<soak::Child>(
        std::vector<std::string>{options.programs + "/troupe", "submit", "--connect",
                                 cluster.endpoint(), "--prompt", "a cat", "--steps",
                                 std::to_string(kLong), "--model", options.model, "--output",
                                 "/tmp/never-written.png"},
        "/dev/null");
    wait_for("submission", [&] { return newest() > last; });
    clients[last = newest()] = std::move(child);
  }
  wait_for("running job", [&] { return take(client.status()).jobs_running > 0; });
  std::this_thread::sleep_for(500ms);  // the last one waits for its job by now
  std::map<std::uint64_t, Clock::time_point> struck;
  for (const auto& [id, child] : clients) {
    struck[id] = Clock::now();
    child->signal(number);
    std::this_thread::sleep_for(20ms);
  }
  std::vector<double> cancelled;
  wait_for("cancelled jobs", [&] {
    for (const auto& job : take(client.jobs())) {
      const auto blow = struck.find(job.id);
      if (blow == struck.end() || job.state != JobState::cancelled) continue;
      cancelled.push_back(since(blow->second));
      struck.erase(blow);
    }
    return struck.empty();
  });
  return {name, {{"its_job_cancelled", cancelled}}, -1};
}

/// A client cancels its running job: until it is told, and until its actors have nothing to do.
Row cancelled_job(const std::string& name, int pixels, const Options& options) {
  cluster::Cluster cluster(cluster_options(options, 4));
  auto client = take(Client::connect(cluster.endpoint()));
  std::mt19937 random(7);
  std::vector<double> told, free, steps;
  for (int time = 0; time < options.times; ++time) {
    wait_until_whole(client, 4);
    std::atomic<int> step = 0;
    auto wanted = job_of(options, {.dp = 1, .cfg = 2, .pp = 2}, kLong);
    wanted.request.height = wanted.request.width = pixels;
    const auto job =
        take(client.submit(wanted, [&](const Progress& progress) { step = progress.step; }));
    const int from = 2 + static_cast<int>(random() % 8);
    wait_for("job under way", [&] { return step >= 1; });
    const auto first = Clock::now();
    wait_for("more steps", [&] { return step >= from; });
    steps.push_back(since(first) / (from - 1));
    // Anywhere in a step.
    std::this_thread::sleep_for(std::chrono::duration<double>(
        steps.back() * std::uniform_real_distribution<>(0, 1)(random)));
    const auto start = Clock::now();
    std::thread waiter([&] {
      const auto result = client.wait(job, 120s);
      if (!result && result.error().code == ErrorCode::cancelled) told.push_back(since(start));
    });
    const auto answer = client.cancel(job);
    wait_for("free actors", [&] {
      const auto actors = take(client.status()).actors;
      return std::ranges::all_of(actors, [](const auto& actor) {
        return actor.state == ActorState::ready && actor.doing.empty();
      });
    });
    free.push_back(since(start));
    waiter.join();
    take(answer);
  }
  if (told.size() != free.size()) throw std::runtime_error("a job was not cancelled");
  return {name, {{"told", told}, {"actors_free", free}, {"one_step", steps}}, -1};
}

}  // namespace

std::vector<NamedRow> end_rows() {
  const std::string failed = "kill -9 of an actor, --recoveries 0";
  const std::string killed = "kill -9 of a client", frozen = "client frozen (SIGSTOP)";
  const std::string small = "cancel, cfg 2 × pp 2", large = "cancel, cfg 2 × pp 2, 512 px";
  return {
      {small, [small](const Options& options) { return cancelled_job(small, 128, options); }},
      {large, [large](const Options& options) { return cancelled_job(large, 512, options); }},
      {failed, [failed](const Options& options) { return failed_job(failed, options); }},
      {killed, [killed](const Options& options) { return lost_clients(killed, SIGKILL, options); }},
      {frozen,
       [frozen](const Options& options) { return lost_clients(frozen, SIGSTOP, options); }}};
}

}  // namespace troupe::faults
