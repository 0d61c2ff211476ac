// What becomes of jobs, users' actors and clients when what they need is killed, frozen or hangs,
// again and again: how long until that is noticed, until the job was told to go on, until it is a
// step further than before; whether its latents are those of an undisturbed run, to the bit.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <thread>

#include "benchmarks/command_line.h"
#include "benchmarks/demo_jobs.h"
#include "benchmarks/faults/rows.h"

namespace troupe::faults {

using namespace std::chrono_literals;
using bench::take;

double since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void wait_for(const char* what, const std::function<bool()>& holds) {
  const auto start = Clock::now();
  while (!holds()) {
    if (Clock::now() - start > 120s) throw std::runtime_error(std::string("no ") + what);
    std::this_thread::sleep_for(200us);
  }
}

void wait_until_whole(Client& client, std::size_t wanted) {
  wait_for("whole cluster", [&] {
    const auto actors = take(client.status()).actors;
    const auto ready = std::count_if(actors.begin(), actors.end(), [](const auto& actor) {
      return actor.state == ActorState::ready;
    });
    return ready == static_cast<std::ptrdiff_t>(wanted);
  });
}

cluster::ClusterOptions cluster_options(const Options& options, int actors) {
  cluster::ClusterOptions wanted;
  wanted.actors = actors;
  wanted.model = options.model;
  return wanted;
}

Submission job_of(const Options& options, const Parallelism& degrees, int steps) {
  auto job = bench::picture_job(128, steps > 0 ? steps : options.steps, 4.5, 1, 11, degrees);
  job.request.want_latents = true;
  return job;
}

}  // namespace troupe::faults

namespace {

using namespace troupe::faults;

nlohmann::json summary(const Row& row) {
  nlohmann::json out = {{"fault", row.fault}};
  for (const auto& [name, all] : row.seconds) {
    auto values = all;
    const double middle = troupe::bench::median(values);
    out["seconds"][name] = {{"median", middle}, {"worst", values.back()}};
    out["times"] = values.size();
  }
  if (row.same >= 0) out["same_latents"] = row.same;
  return out;
}

void print(const nlohmann::json& row) {
  std::printf("%s\n", row["fault"].get<std::string>().c_str());
  for (const auto& [name, figures] : row["seconds"].items())
    std::printf("    %-18s %.3f / %.3f\n", name.c_str(), figures["median"].get<double>(),
                figures["worst"].get<double>());
  if (row.contains("same_latents"))
    std::printf("    same latents       %d of %d\n", row["same_latents"].get<int>(),
                row["times"].get<int>());
  std::fflush(stdout);
}

int run(const Options& options, const std::string& only, bool json) {
  auto rows = nlohmann::json::array();
  if (!json)
    std::printf("seconds since the blow, median / worst of %d; actors of one thread\n",
                options.times);
  for (const auto& group : {job_rows(), end_rows(), user_rows()}) {
    for (const auto& row : group) {
      if (row.name.find(only) == std::string::npos) continue;
      rows.push_back(summary(row.measure(options)));
      if (!json) print(rows.back());
    }
  }
  if (json) std::cout << rows.dump(1) << std::endl;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  options.model = troupe::bench::kDemoModel;
  options.programs = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  options.plugin =
      std::filesystem::path(options.programs).parent_path() / "lib/libtroupe_test_plugin.so";
  std::string only;
  bool json = false;
  using namespace troupe::bench;
  CLI::App app{"Time to notice and to recover from each fault", "faults"};
  app.add_option("--model", options.model, "Model folder in diffusers layout")->check(not_empty());
  app.add_option("--times", options.times, "That each fault is dealt")
      ->check(whole(1, 60))
      ->capture_default_str();
  app.add_option("--steps", options.steps, "Of a job")
      ->check(whole(4, 1000))
      ->capture_default_str();
  app.add_option("--only", only, "Faults whose name has these words");
  app.add_flag("--json", json, "Print one JSON document");
  return run_program(app, argc, argv, [&] { return run(options, only, json); });
}
