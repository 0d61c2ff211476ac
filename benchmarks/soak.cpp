// A cluster under load and blows for minutes on end: clients hand in jobs of many layouts, some are
// cancelled, actors are killed and frozen at random. Every job must end; exact ones that succeed
// must have the latents of an undisturbed run, to the bit; and what the controller's process holds
// (memory, descriptors, processes) must not grow. Exits 1 where it is otherwise.
//
//     build/bin/soak [--minutes 5] [--actors 4] [--seed 1] [--json]
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "benchmarks/demo_jobs.h"
#include "controller/cluster/cluster.h"

namespace {

using namespace std::chrono_literals;
using namespace troupe::bench;
using Clock = std::chrono::steady_clock;

constexpr auto kJobDeadline = 180s;
constexpr int kSteps = 10;
// Finished jobs' pictures and latents are kept for a while; that is not growth.
constexpr int kSomeMib = 64;
constexpr int kSomeDescriptors = 4;

struct Options {
  std::string model = kDemoModel;
  std::string actor_program;
  double minutes = 5;
  int actors = 4;
  int clients = 3;
  unsigned seed = 1;
  bool json = false;
};

struct Kind {
  std::string method;
  int patches = 1;
  troupe::Parallelism degrees;
  std::vector<float> undisturbed = {};
};

struct Counts {
  std::atomic<int> succeeded = 0, cancelled = 0, failed = 0, different = 0, compared = 0;
  std::atomic<int> killed = 0, frozen = 0, recovered = 0;
};

struct Held {
  double resident_mib = 0;
  int descriptors = 0;
};

Held held() {
  std::ifstream pages("/proc/self/statm");
  double whole = 0, resident = 0;
  pages >> whole >> resident;
  const auto entries = std::filesystem::directory_iterator("/proc/self/fd");
  return {resident * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 20),
          static_cast<int>(std::distance(begin(entries), end(entries)))};
}

class Soak {
 public:
  Soak(const Options& options, const std::string& endpoint)
      : options_(options), endpoint_(endpoint) {}

  /// The kinds that fit on the actors, each with its latents when nobody disturbs it.
  void prepare() {
    auto client = take(troupe::Client::connect(endpoint_));
    for (Kind kind :
         {Kind{"exact", 1, {.dp = 1, .cfg = 2, .pp = 2}},
          Kind{"exact", 1, {.dp = 1, .cfg = 1, .pp = 1, .ulysses = 2, .tp = 2}},
          Kind{"exact", 1, {.dp = 2}}, Kind{"exact", 1, {.dp = 1, .cfg = 1, .pp = 3}},
          Kind{"exact", 1, {}}, Kind{"pipefusion", 4, {.dp = 1, .cfg = 2, .pp = 2}},
          Kind{"distrifusion", 4, {.dp = 1, .cfg = 1, .pp = 1, .ulysses = 1, .ring = 2}}}) {
      if (kind.degrees.world() > options_.actors) continue;
      const auto job = take(client.submit(submission(kind)));
      kind.undisturbed = take(client.wait(job, kJobDeadline)).latents->data;
      kinds_.push_back(std::move(kind));
    }
  }

  void run(Clock::time_point end) {
    std::vector<std::thread> threads;
    for (int i = 0; i < options_.clients; ++i)
      threads.emplace_back([this, end, i] { guarded([&] { submit_jobs(end, i); }); });
    threads.emplace_back([this, end] { guarded([&] { strike(end); }); });
    for (auto& thread : threads)
      thread.join();
  }

  nlohmann::json counts() const {
    return {{"succeeded", counts_.succeeded.load()},
            {"cancelled", counts_.cancelled.load()},
            {"failed", counts_.failed.load()},
            {"compared", counts_.compared.load()},
            {"different", counts_.different.load()},
            {"killed", counts_.killed.load()},
            {"frozen", counts_.frozen.load()},
            {"recoveries", counts_.recovered.load()},
            {"faults", faults_}};
  }

  void note(const std::string& fault) {
    const std::lock_guard lock(mutex_);
    faults_.push_back(fault);
  }

 private:
  static troupe::Submission submission(const Kind& kind) {
    auto job = picture_job(128, kSteps, 4.5, kind.patches, 11, kind.degrees);
    job.request.method = kind.method;
    job.request.want_latents = true;
    if (kind.degrees.dp == 2) job.request.images_per_prompt = 2;
    return job;
  }

  template <class Action>
  void guarded(const Action& action) {
    try {
      action();
    } catch (const std::exception& error) {
      note(error.what());
    }
  }

  void submit_jobs(Clock::time_point end, int number) {
    std::mt19937 random(options_.seed + static_cast<unsigned>(number));
    auto client = take(troupe::Client::connect(endpoint_));
    while (Clock::now() < end) {
      if (random() % 10 == 0) client = take(troupe::Client::connect(endpoint_));
      const Kind& kind = kinds_[random() % kinds_.size()];
      const auto job = take(client.submit(submission(kind)));
      if (random() % 8 == 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds(random() % 1500));
        (void)client.cancel(job);
      }
      judge(kind, client.wait(job, kJobDeadline));
    }
  }

  void judge(const Kind& kind, const troupe::Result<troupe::JobResult>& result) {
    if (!result) {
      if (result.error().code == "cancelled") {
        ++counts_.cancelled;
      } else {
        ++counts_.failed;
        note(result.error().what);
      }
      return;
    }
    ++counts_.succeeded;
    const auto report = nlohmann::json::parse(result.value().report);
    counts_.recovered += static_cast<int>(report.at("recoveries").size());
    // A stale job that filled a step anew is another picture by contract, and says so.
    if (!report.at("request").at("refill_steps").empty()) return;
    ++counts_.compared;
    if (result.value().latents->data != kind.undisturbed) {
      ++counts_.different;
      note("job " + std::to_string(result.value().job) + " (" + kind.method +
           ") has other latents");
    }
  }

  void strike(Clock::time_point end) {
    std::mt19937 random(options_.seed + 1000);
    auto client = take(troupe::Client::connect(endpoint_));
    while (Clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(500 + random() % 3500));
      const auto actors = take(client.status()).actors;
      const auto& victim = actors[random() % actors.size()];
      if (victim.pid == 0) continue;
      const bool freeze = random() % 10 == 0;
      kill(static_cast<pid_t>(victim.pid), freeze ? SIGSTOP : SIGKILL);
      ++(freeze ? counts_.frozen : counts_.killed);
    }
  }

  Options options_;
  std::string endpoint_;
  std::vector<Kind> kinds_;
  Counts counts_;
  std::mutex mutex_;
  std::vector<std::string> faults_;
};

bool whole_again(const std::string& endpoint, int actors) {
  auto client = take(troupe::Client::connect(endpoint));
  for (const auto end = Clock::now() + 60s; Clock::now() < end; std::this_thread::sleep_for(50ms)) {
    const auto status = take(client.status());
    const auto ready = std::count_if(status.actors.begin(), status.actors.end(),
                                     [](const auto& actor) { return actor.state == "ready"; });
    if (ready == actors && status.jobs_queued == 0 && status.jobs_running == 0) return true;
  }
  return false;
}

int run(const Options& options) {
  troupe::cluster::ClusterOptions wanted;
  wanted.actors = options.actors;
  wanted.model = options.model;
  wanted.actor_program = options.actor_program;
  wanted.max_recoveries = 20;
  troupe::cluster::Cluster cluster(wanted);
  cluster.wait_ready(2min);
  Soak soak(options, cluster.endpoint());
  soak.prepare();
  const Held before = held();
  const auto seconds = std::chrono::duration<double>(60 * options.minutes);
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(seconds);
  soak.run(end);
  const bool whole = whole_again(cluster.endpoint(), options.actors);
  const Held after = held();
  if (after.resident_mib > before.resident_mib + kSomeMib)
    soak.note("the controller has grown by more than " + std::to_string(kSomeMib) + " MiB");
  if (after.descriptors > before.descriptors + kSomeDescriptors)
    soak.note("descriptors are left open");
  auto row = soak.counts();
  row["minutes"] = options.minutes;
  row["whole_again"] = whole;
  row["resident_mib"] = {before.resident_mib, after.resident_mib};
  row["descriptors"] = {before.descriptors, after.descriptors};
  if (options.json) {
    std::cout << row.dump(1) << std::endl;
  } else {
    std::printf(
        "%.1f minutes: %d jobs succeeded (%d losses outlived; latents compared: %d, different: "
        "%d), "
        "%d cancelled, %d failed; %d actors killed, %d frozen\n"
        "controller: %.0f -> %.0f MiB resident, %d -> %d descriptors, %s\n",
        options.minutes, row["succeeded"].get<int>(), row["recoveries"].get<int>(),
        row["compared"].get<int>(), row["different"].get<int>(), row["cancelled"].get<int>(),
        row["failed"].get<int>(), row["killed"].get<int>(), row["frozen"].get<int>(),
        before.resident_mib, after.resident_mib, before.descriptors, after.descriptors,
        whole ? "every actor ready, no job left" : "NOT whole again");
    for (const auto& fault : row["faults"])
      std::printf("  %s\n", fault.get<std::string>().c_str());
  }
  return whole && row["faults"].empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"A cluster under load and blows"};
  app.add_option("--model", options.model, "Model folder in diffusers layout");
  app.add_option("--actor-program", options.actor_program, "troupe-actor; default: beside this");
  app.add_option("--minutes", options.minutes)->check(CLI::PositiveNumber);
  app.add_option("--actors", options.actors)->check(CLI::Range(1, 64));
  app.add_option("--clients", options.clients)->check(CLI::Range(1, 64));
  app.add_option("--seed", options.seed);
  app.add_flag("--json", options.json);
  CLI11_PARSE(app, argc, argv);
  try {
    return run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "soak: %s\n", error.what());
    return 1;
  }
}
