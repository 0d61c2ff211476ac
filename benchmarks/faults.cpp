// What becomes of a job whose actor is killed or frozen, again and again: how long until the
// controller has noticed, until the job was told to go on, and until it is a step further than
// before; and whether its latents are those of an undisturbed run, to the bit.
//
//     build/bin/faults [--times 20] [--steps 12] [--json]
#include <signal.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "benchmarks/demo_jobs.h"
#include "controller/cluster/cluster.h"

namespace {

using namespace std::chrono_literals;
using namespace troupe::bench;
using Clock = std::chrono::steady_clock;

constexpr auto kDeadline = 120s;

struct Options {
  std::string model = kDemoModel;
  std::string actor_program;
  int times = 20;
  int steps = 12;
  bool json = false;
};

struct Fault {
  std::string name;
  int signal = SIGKILL;
  bool while_loading = false;
  troupe::Parallelism degrees;
};

/// Of one blow; seconds since then.
struct Outcome {
  double noticed = 0;
  double told = 0;
  double further = 0;
  bool same = false;
};

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void wait_for(const char* what, const std::function<bool()>& holds) {
  const auto start = Clock::now();
  while (!holds()) {
    if (Clock::now() - start > kDeadline) throw std::runtime_error(std::string("no ") + what);
    std::this_thread::sleep_for(200us);
  }
}

void wait_until_whole(troupe::Client& client) {
  wait_for("whole cluster", [&] {
    const auto actors = take(client.status()).actors;
    return std::all_of(actors.begin(), actors.end(),
                       [](const auto& actor) { return actor.state == "ready"; });
  });
}

troupe::Submission job_of(const Options& options, const troupe::Parallelism& degrees) {
  auto job = picture_job(128, options.steps, 4.5, 1, 11, degrees);
  job.request.want_latents = true;
  return job;
}

Outcome blow(troupe::Client& client, const Options& options, const Fault& fault,
             const std::vector<float>& undisturbed, std::mt19937& random) {
  wait_until_whole(client);
  const auto victim = take(client.status()).actors.at(random() % 4);
  const int from = 1 + static_cast<int>(random() % static_cast<unsigned>(options.steps / 2));
  std::atomic<int> step = 0;
  std::atomic<bool> loading = false;
  const auto job =
      take(client.submit(job_of(options, fault.degrees), [&](const troupe::Progress& progress) {
        if (progress.phase == "denoising") step = progress.step;
        if (progress.phase == "loading") loading = true;
      }));
  wait_for("job under way", [&] { return fault.while_loading ? loading.load() : step >= from; });
  const int before = step;
  const auto start = Clock::now();
  kill(static_cast<pid_t>(victim.pid), fault.signal);
  Outcome outcome;
  wait_for("notice of the loss", [&] {
    const auto now = take(client.status()).actors;
    const auto it = std::find_if(now.begin(), now.end(),
                                 [&](const auto& actor) { return actor.id == victim.id; });
    return it == now.end() || it->incarnation != victim.incarnation ||
           (it->state != "ready" && it->state != "busy");
  });
  outcome.noticed = since(start);
  wait_for("further step", [&] { return step > before; });
  outcome.further = since(start);
  const auto result = take(client.wait(job, kDeadline));
  const auto recoveries = nlohmann::json::parse(result.report).at("recoveries");
  outcome.told = outcome.noticed;
  for (const auto& recovery : recoveries)
    outcome.told += recovery.at("seconds").get<double>();
  outcome.same = result.latents && result.latents->data == undisturbed;
  return outcome;
}

nlohmann::json summary(std::vector<double> seconds) {
  const double middle = median(seconds);
  return {{"median", middle}, {"worst", seconds.back()}};
}

nlohmann::json measure(troupe::Client& client, const Options& options, const Fault& fault) {
  const auto job = take(client.submit(job_of(options, fault.degrees)));
  const auto undisturbed = take(client.wait(job, kDeadline)).latents->data;
  std::mt19937 random(7);
  std::vector<double> noticed, told, further;
  int same = 0;
  for (int time = 0; time < options.times; ++time) {
    if (fault.while_loading) {
      // Another layout in between: the weights must be read again.
      take(client.wait(take(client.submit(job_of(options, {.dp = 1, .cfg = 2, .pp = 1, .tp = 2}))),
                       kDeadline));
    }
    const Outcome outcome = blow(client, options, fault, undisturbed, random);
    noticed.push_back(outcome.noticed);
    told.push_back(outcome.told);
    further.push_back(outcome.further);
    same += outcome.same;
  }
  return {{"fault", fault.name},
          {"times", options.times},
          {"same_latents", same},
          {"noticed", summary(noticed)},
          {"told_to_go_on", summary(told)},
          {"a_step_further", summary(further)}};
}

std::string cell(const nlohmann::json& seconds) {
  char text[48];
  std::snprintf(text, sizeof text, "%.3f / %.3f", seconds.at("median").get<double>(),
                seconds.at("worst").get<double>());
  return text;
}

int run(const Options& options) {
  troupe::cluster::ClusterOptions wanted;
  wanted.actors = 4;
  wanted.model = options.model;
  wanted.actor_program = options.actor_program;
  troupe::cluster::Cluster cluster(wanted);
  cluster.wait_ready(2min);
  auto client = take(troupe::Client::connect(cluster.endpoint()));
  const troupe::Parallelism pipeline{.dp = 1, .cfg = 2, .pp = 2};
  const troupe::Parallelism shards{.dp = 1, .cfg = 1, .pp = 1, .ulysses = 2, .tp = 2};
  auto rows = nlohmann::json::array();
  if (!options.json) {
    std::printf(
        "seconds since the blow, median / worst of %d; 4 actors of one thread\n\n"
        "| fault | noticed | told to go on | a step further | same latents |\n"
        "|---|---|---|---|---|\n",
        options.times);
  }
  for (const Fault& fault : {Fault{"kill -9 of one of cfg 2 × pp 2", SIGKILL, false, pipeline},
                             Fault{"kill -9 of one of ulysses 2 × tp 2", SIGKILL, false, shards},
                             Fault{"kill -9 while it loads", SIGKILL, true, pipeline},
                             Fault{"frozen (SIGSTOP), cfg 2 × pp 2", SIGSTOP, false, pipeline}}) {
    rows.push_back(measure(client, options, fault));
    if (options.json) continue;
    const auto& row = rows.back();
    std::printf("| %s | %s | %s | %s | %d of %d |\n", fault.name.c_str(),
                cell(row["noticed"]).c_str(), cell(row["told_to_go_on"]).c_str(),
                cell(row["a_step_further"]).c_str(), row["same_latents"].get<int>(), options.times);
    std::fflush(stdout);
  }
  if (options.json) std::cout << rows.dump(1) << std::endl;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"Time to notice and to recover from each fault"};
  app.add_option("--model", options.model, "Model folder in diffusers layout");
  app.add_option("--actor-program", options.actor_program, "troupe-actor; default: beside this");
  app.add_option("--times", options.times)->check(CLI::Range(1, 10000));
  app.add_option("--steps", options.steps)->check(CLI::Range(4, 1000));
  app.add_flag("--json", options.json);
  CLI11_PARSE(app, argc, argv);
  try {
    return run(options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "faults: %s\n", error.what());
    return 1;
  }
}
