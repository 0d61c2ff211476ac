// A cluster under load and blows for minutes on end. Clients hand in jobs of many layouts and
// cancel some, others vanish; a users' actor is called all the time. A hostile client sends noise,
// nonsense and floods, and starves the controller of descriptors. Actors, users' actors, a joined
// host and, in the first half, the controller itself are killed, frozen or stopped for a second, at
// random, and of every other controller a bit of its journal is flipped before the next one starts.
// Every job must end, no number may be given twice, what a flipped bit has cost must be named;
// exact ones that succeed must have the latents of an undisturbed run, to the bit; traces must be
// well formed; and what the controller, actor 0 (spared in the second half) and /dev/shm hold must
// not grow. Exits 1 where it is otherwise.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <iostream>
#include <nlohmann/json.hpp>
#include <thread>

#include "benchmarks/command_line.h"
#include "benchmarks/demo_jobs.h"
#include "benchmarks/soak/hostile.h"
#include "benchmarks/soak/load.h"
#include "benchmarks/soak/soak_cluster.h"

namespace {

using namespace troupe::soak;

// Finished jobs' pictures and latents are kept for a while; that is not growth.
constexpr int kSomeMib = 64;
// Groups of deployments that an actor keeps, and clients that come and go.
constexpr int kSomeDescriptors = 16;

struct Options {
  SoakClusterOptions cluster;
  double minutes = 5;
  int clients = 3;
  unsigned seed = 1;
  bool json = false;
};

/// Resources held when nothing runs and each kind of job has run once.
struct Holdings {
  pid_t controller = 0, actor = 0;
  Held of_controller, of_actor;
  int shared_memory = 0;
};

Holdings holdings(const SoakCluster& cluster, Load& load, Faults& faults, const std::string& when) {
  if (!cluster.whole()) faults.note("the cluster is not whole again " + when);
  load.every_kind();
  if (!cluster.whole()) faults.note("jobs are left " + when);
  auto client = cluster.connect();
  const auto actor = static_cast<pid_t>(troupe::bench::take(client.status()).actors.at(0).pid);
  return {cluster.controller(), actor, held(cluster.controller()), held(actor),
          shared_memory_names()};
}

void compare(Faults& faults, const std::string& what, const Held& before, const Held& after) {
  if (after.resident_mib > before.resident_mib + kSomeMib)
    faults.note(what + " has grown by more than " + std::to_string(kSomeMib) + " MiB");
  if (after.descriptors > before.descriptors + kSomeDescriptors)
    faults.note(what + " leaves descriptors open");
}

void struggle(SoakCluster& cluster, Load& load, Counts& counts, Faults& faults,
              const Options& options, unsigned seed, bool controllers) {
  const auto half = std::chrono::duration<double>(30 * options.minutes);
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(half);
  std::vector<std::thread> threads;
  const auto begin = [&](std::function<void()> action) {
    threads.emplace_back([&faults, action = std::move(action)] { faults.guarded(action); });
  };
  for (unsigned i = 0; i < static_cast<unsigned>(options.clients); ++i)
    begin([&, i] { load.hand_in(end, seed + i); });
  begin([&] { load.call_users(end); });
  begin([&] { harass(cluster, counts, faults, end, seed + 2000); });
  begin([&] { strike(cluster, counts, faults, end, seed + 1000, controllers); });
  for (auto& thread : threads)
    thread.join();
}

nlohmann::json row_of(const Counts& counts, const Options& options, const Holdings& before,
                      const Holdings& after, const Faults& faults) {
  const auto pair = [](const Held& a, const Held& b) {
    return nlohmann::json{{"resident_mib", {a.resident_mib, b.resident_mib}},
                          {"descriptors", {a.descriptors, b.descriptors}}};
  };
  return {{"minutes", options.minutes},
          {"jobs",
           {{"succeeded", counts.succeeded.load()},
            {"cancelled", counts.cancelled.load()},
            {"failed", counts.failed.load()},
            {"failed_with_their_host", counts.host_gone.load()},
            {"lost_by_a_flipped_bit_and_named", counts.lost_and_named.load()},
            {"losses_outlived", counts.recoveries.load()},
            {"latents_compared", counts.compared.load()},
            {"latents_different", counts.different.load()},
            {"traces_checked", counts.traces.load()}}},
          {"user_calls", counts.user_calls.load()},
          {"blows",
           {{"actors_killed", counts.actors_killed.load()},
            {"actors_frozen", counts.actors_frozen.load()},
            {"actors_stopped_for_1_s", counts.actors_stopped.load()},
            {"user_actors_killed", counts.users_killed.load()},
            {"clients_killed", counts.clients_vanished.load()},
            {"hosts_killed", counts.guests_killed.load()},
            {"hosts_drained", counts.guests_left.load()},
            {"controllers_killed", counts.controllers_killed.load()},
            {"bits_flipped_in_its_journal", counts.bits_flipped.load()},
            {"journals_salvaged", counts.salvages.load()},
            {"hostile_acts", counts.hostile_acts.load()},
            {"nonsense_refused", counts.refused.load()},
            {"starvations", counts.starvations.load()}}},
          {"controller", pair(before.of_controller, after.of_controller)},
          {"actor", pair(before.of_actor, after.of_actor)},
          {"shared_memory_names", {before.shared_memory, after.shared_memory}},
          {"faults", faults.list()}};
}

void print(const nlohmann::json& row) {
  const auto list = [](const nlohmann::json& counts) {
    std::string text;
    for (const auto& [name, count] : counts.items())
      text += (text.empty() ? "" : ", ") + name + " " + count.dump();
    return text;
  };
  std::printf("%g minutes\njobs: %s\nuser_calls %s\nblows: %s\n", row["minutes"].get<double>(),
              list(row["jobs"]).c_str(), row["user_calls"].dump().c_str(),
              list(row["blows"]).c_str());
  for (const char* whose : {"controller", "actor"}) {
    const auto& held = row[whose];
    std::printf("%s: %.0f -> %.0f MiB resident, %d -> %d descriptors\n", whose,
                held["resident_mib"][0].get<double>(), held["resident_mib"][1].get<double>(),
                held["descriptors"][0].get<int>(), held["descriptors"][1].get<int>());
  }
  std::printf("/dev/shm: %s names\n", row["shared_memory_names"].dump().c_str());
  for (const auto& fault : row["faults"])
    std::printf("  %s\n", fault.get<std::string>().c_str());
}

int run(const Options& options) {
  const int names = shared_memory_names();
  SoakCluster cluster(options.cluster);
  Counts counts;
  Faults faults;
  Load load(cluster, counts, faults);
  const auto first = holdings(cluster, load, faults, "at the beginning");
  struggle(cluster, load, counts, faults, options, options.seed, true);
  auto before = holdings(cluster, load, faults, "after the first half");
  struggle(cluster, load, counts, faults, options, options.seed + 100, false);
  auto after = holdings(cluster, load, faults, "at the end");
  if (after.controller != before.controller || after.actor != before.actor)
    faults.note("the controller or actor 0 was replaced, though nobody struck it");
  compare(faults, "the controller", before.of_controller, after.of_controller);
  // An actor keeps the groups of every kind of job that it had a part in; in a cluster that is new
  // actor 0 has a part in all.
  before.of_actor.descriptors = std::max(first.of_actor.descriptors, before.of_actor.descriptors);
  before.of_actor.resident_mib =
      std::max(first.of_actor.resident_mib, before.of_actor.resident_mib);
  compare(faults, "actor 0", before.of_actor, after.of_actor);
  if (after.shared_memory > names) faults.note("names are left in /dev/shm");
  const auto row = row_of(counts, options, before, after, faults);
  if (options.json) {
    std::cout << row.dump(1) << std::endl;
  } else {
    print(row);
  }
  return row["faults"].empty() ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  options.cluster.model = troupe::bench::kDemoModel;
  options.cluster.descriptors = 1024;
  options.cluster.programs = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  options.cluster.plugin = std::filesystem::path(options.cluster.programs).parent_path() /
                           "lib/libtroupe_example_actors.so";
  using namespace troupe::bench;
  CLI::App app{"A cluster under load and blows", "soak"};
  app.add_option("--model", options.cluster.model, "Model folder in diffusers layout")
      ->check(not_empty());
  app.add_option("--minutes", options.minutes, "How long")
      ->check(number_above(0, 100'000))
      ->capture_default_str();
  app.add_option("--actors", options.cluster.actors, "Of the cluster")
      ->check(whole(1, 64))
      ->capture_default_str();
  app.add_option("--descriptors", options.cluster.descriptors, "That the controller may have")
      ->check(whole(128, 1'000'000))
      ->capture_default_str();
  app.add_option("--clients", options.clients, "That hand jobs in")
      ->check(whole(1, 64))
      ->capture_default_str();
  app.add_option("--seed", options.seed, "What happens when")
      ->check(whole(0, 4'294'967'295))
      ->capture_default_str();
  app.add_flag("--json", options.json, "Print one JSON document");
  return run_program(app, argc, argv, [&] { return run(options); });
}
