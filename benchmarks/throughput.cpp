// Several jobs at once on one cluster beside the same jobs one after another: seconds, their ratio,
// and how much of that time each actor computed. With --may-batch also those that wait together
// computed as one, with --dp the same pictures as one job split over replicas. The ways take turns,
// on the same actors.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "benchmarks/command_line.h"
#include "benchmarks/demo_jobs.h"
#include "controller/app/cluster.h"

namespace {

using namespace troupe::bench;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::minutes kDeadline{10};

struct Options {
  std::string model = kDemoModel;
  std::string actor_program;
  int jobs = 8;
  int pp = 2;
  int dp = 1;  // above 1: so many times pp actors
  int vae = 1;
  std::vector<int> stages;
  int steps = 20;
  int size = 256;
  int rounds = 3;
  int together = 0;  // 0 = as the cluster has it
  bool may_batch = false;
  bool json = false;
};

struct Kind {
  std::string name;
  double guidance;
  int patches;
};

enum class Way { in_turn, together, batched, replicas };

struct Timing {
  double seconds = 0;
  double processor =
      0;  // seconds of the actors' processes: what else runs here adds little to them
  std::map<int, double> busy;       // by rank, seconds
  std::set<std::uint64_t> batches;  // whose figures are in already
};

troupe::Submission submission(const Options& options, const Kind& kind, int seed) {
  auto submission = picture_job(options.size, options.steps, kind.guidance, kind.patches, seed,
                                {.dp = 1, .cfg = 1, .pp = options.pp});
  submission.parallelism.vae = options.vae;
  submission.parallelism.stages = options.stages;
  return submission;
}

void add_busy(Timing& timing, const troupe::JobResult& result) {
  const auto report = nlohmann::json::parse(result.report);
  if (report.contains("batch") &&
      !timing.batches.insert(report["batch"]["number"].get<std::uint64_t>()).second)
    return;
  int rank = 0;
  for (const auto& actor : report.at("actors"))
    timing.busy[rank++] += actor.at("busy_seconds").get<double>();
}

double processor_seconds(troupe::Client& client) {
  double ticks = 0;
  for (const auto& actor : take(client.status()).actors) {
    std::ifstream stat("/proc/" + std::to_string(actor.pid) + "/stat");
    std::string text;
    std::getline(stat, text);
    std::istringstream fields(text.substr(text.rfind(')') + 2));
    std::string skipped;
    for (int field = 0; field < 11; ++field)
      fields >> skipped;
    double user = 0;
    double system = 0;
    fields >> user >> system;
    ticks += user + system;
  }
  return ticks / static_cast<double>(sysconf(_SC_CLK_TCK));
}

Timing measure(troupe::Client& client, const Options& options, const Kind& kind, Way way) {
  const bool together = way != Way::in_turn;
  const bool replicas = way == Way::replicas;
  Timing timing;
  const double before = processor_seconds(client);
  const auto start = Clock::now();
  std::vector<std::uint64_t> jobs;
  for (int job = 0; job < (replicas ? 1 : options.jobs); ++job) {
    auto wanted = submission(options, kind, job);
    wanted.may_batch = way == Way::batched;
    if (replicas)
      wanted.request.images_per_prompt = options.jobs, wanted.parallelism.dp = options.dp;
    jobs.push_back(take(client.submit(wanted)));
    if (!together) add_busy(timing, take(client.wait(jobs.back(), kDeadline)));
  }
  if (together) {
    for (const auto job : jobs)
      add_busy(timing, take(client.wait(job, kDeadline)));
  }
  timing.seconds = std::chrono::duration<double>(Clock::now() - start).count();
  timing.processor = processor_seconds(client) - before;
  return timing;
}

double least_processor(const std::vector<Timing>& timings) {
  double least = timings.front().processor;
  for (const auto& timing : timings)
    least = std::min(least, timing.processor);
  return least;
}

const Timing& median(std::vector<Timing>& timings) {
  std::sort(timings.begin(), timings.end(),
            [](const Timing& a, const Timing& b) { return a.seconds < b.seconds; });
  return timings[timings.size() / 2];
}

nlohmann::json busy_shares(const Timing& timing) {
  auto shares = nlohmann::json::array();
  for (const auto& [rank, seconds] : timing.busy)
    shares.push_back(seconds / timing.seconds);
  return shares;
}

nlohmann::json compare(troupe::Client& client, const Options& options, const Kind& kind) {
  // Loads the model and warms up.
  measure(client, options, kind, Way::together);
  if (options.dp > 1) measure(client, options, kind, Way::replicas);
  std::vector<Timing> alone, together, batched, replicas;
  std::vector<double> ratios;
  for (int round = 0; round < options.rounds; ++round) {
    alone.push_back(measure(client, options, kind, Way::in_turn));
    together.push_back(measure(client, options, kind, Way::together));
    if (options.may_batch) batched.push_back(measure(client, options, kind, Way::batched));
    if (options.dp > 1) replicas.push_back(measure(client, options, kind, Way::replicas));
    ratios.push_back(alone.back().seconds / together.back().seconds);
  }
  std::sort(ratios.begin(), ratios.end());
  nlohmann::json processor = {{"one_after_another", least_processor(alone)},
                              {"together", least_processor(together)}};
  if (options.may_batch) processor["batched"] = least_processor(batched);
  const auto& one = median(alone);
  const auto& all = median(together);
  nlohmann::json row = {{"kind", kind.name},
                        {"jobs", options.jobs},
                        {"pp", options.pp},
                        {"one_after_another_seconds", one.seconds},
                        {"together_seconds", all.seconds},
                        {"ratio", ratios[ratios.size() / 2]},
                        {"ratio_worst", ratios.front()},
                        {"ratio_best", ratios.back()},
                        {"busy_one_after_another", busy_shares(one)},
                        {"busy_together", busy_shares(all)}};
  row["processor_seconds"] = processor;
  if (options.may_batch) {
    row["batched_seconds"] = median(batched).seconds;
    row["batches"] = median(batched).batches.size();
    row["busy_batched"] = busy_shares(median(batched));
  }
  if (options.dp > 1) {
    row["dp"] = options.dp;
    row["replicas_seconds"] = median(replicas).seconds;
    row["busy_replicas"] = busy_shares(median(replicas));
  }
  return row;
}

std::string percents(const nlohmann::json& shares) {
  std::string text;
  for (const double share : shares) {
    char cell[16];
    std::snprintf(cell, sizeof cell, "%s%.0f %%", text.empty() ? "" : ", ", 100 * share);
    text += cell;
  }
  return text;
}

int run(const Options& options) {
  troupe::cluster::ClusterOptions wanted;
  wanted.actors = options.dp * options.pp;
  wanted.model = options.model;
  wanted.actor_program = options.actor_program;
  if (options.together > 0) wanted.max_jobs_together = options.together;
  troupe::cluster::Cluster cluster(wanted);
  cluster.wait_ready(std::chrono::minutes(2));
  auto client = take(troupe::Client::connect(cluster.endpoint()));
  auto rows = nlohmann::json::array();
  for (const Kind& kind :
       {Kind{"exact", 1, 1}, Kind{"exact, guidance", 4.5, 1}, Kind{"pipefusion, 4 patches", 1, 4},
        Kind{"pipefusion, 4 patches, guidance", 4.5, 4}})
    rows.push_back(compare(client, options, kind));
  if (options.json) {
    std::cout << rows.dump(1) << std::endl;
    return 0;
  }
  std::printf("%d jobs of %d steps, pp %d, 1 thread an actor\n", options.jobs, options.steps,
              options.pp);
  std::printf("%-34s%14s%12s%22s   %s\n", "", "in turn s", "at once s", "ratio (worst, best)",
              "actors computing: in turn | at once");
  for (const auto& row : rows) {
    std::printf(
        "%-34s%14.2f%12.2f%9.2f (%.2f, %.2f)      %s | %s\n",
        row["kind"].get<std::string>().c_str(), row["one_after_another_seconds"].get<double>(),
        row["together_seconds"].get<double>(), row["ratio"].get<double>(),
        row["ratio_worst"].get<double>(), row["ratio_best"].get<double>(),
        percents(row["busy_one_after_another"]).c_str(), percents(row["busy_together"]).c_str());
    if (options.dp > 1) {
      const double seconds = row["replicas_seconds"];
      std::printf("%-34s%14s%12.2f%9.2f                   %s\n",
                  ("  one job of as many, dp " + std::to_string(options.dp)).c_str(), "", seconds,
                  row["one_after_another_seconds"].get<double>() / seconds,
                  percents(row["busy_replicas"]).c_str());
    }
    if (!options.may_batch) continue;
    const double seconds = row["batched_seconds"];
    std::printf("%-34s%14s%12.2f%9.2f\n", "  those that wait as one batch", "", seconds,
                row["one_after_another_seconds"].get<double>() / seconds);
    const auto& processor = row["processor_seconds"];
    std::printf("  processor seconds (least): %.2f in turn, %.2f at once, %.2f as batches\n",
                processor["one_after_another"].get<double>(), processor["together"].get<double>(),
                processor["batched"].get<double>());
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app{"Throughput of several jobs at once beside one after another", "throughput"};
  app.add_option("--model", options.model, "Model folder in diffusers layout")->check(not_empty());
  app.add_option("--actor-program", options.actor_program, "troupe-actor; default: beside this");
  const auto count = [&](const char* name, int& value, const char* what, int most) {
    app.add_option(name, value, what)->check(whole(1, most))->capture_default_str();
  };
  count("--jobs", options.jobs, "At once", 64);
  count("--pp", options.pp, "Actors of a job, a stage each", 64);
  count("--dp", options.dp, "Replicas; above 1 their pictures as one job are measured, too", 64);
  count("--vae-parallel", options.vae, "Actors that decode together", 64);
  app.add_option("--stages", options.stages, "Blocks of each stage, as 5,3")
      ->delimiter(',')
      ->check(whole(1, 1000));
  count("--steps", options.steps, "Of a job", 1000);
  app.add_option("--size", options.size, "Pixels of a side")
      ->check(whole(8, 8192))
      ->capture_default_str();
  count("--rounds", options.rounds, "Of which the middle one counts", 100);
  app.add_option("--together", options.together,
                 "Jobs that share the actors at a time; default: as a cluster has it")
      ->check(whole(1, 64));
  app.add_flag("--may-batch", options.may_batch, "Measure jobs that compute as one, too");
  app.add_flag("--json", options.json, "Print one JSON document");
  return run_program(app, argc, argv, [&] { return run(options); });
}
