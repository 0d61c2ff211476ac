#include <signal.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <optional>
#include <random>

#include "benchmarks/demo_jobs.h"
#include "benchmarks/faults/rows.h"
#include "client/convert.h"
#include "controller/plan/plan.h"
#include "models/spec/model_spec.h"
#include "troupe/inspect.h"

namespace troupe::faults {
namespace {

using namespace std::chrono_literals;
using bench::take;

constexpr auto kJobDeadline = 120s;
constexpr int kTaskDeadline = 2;  // seconds of --task-deadline
const Parallelism kPipeline{.dp = 1, .cfg = 2, .pp = 2};
const Parallelism kWhole{.dp = 1, .cfg = 2, .pp = 1, .ulysses = 2};  // all blocks at every actor
const Parallelism kShards{.dp = 1, .cfg = 1, .pp = 1, .ulysses = 2, .tp = 2};

/// A cluster, the blow that strikes it, and the action that makes the cluster whole again.
struct Scene {
  cluster::Cluster& cluster;
  Client& client;
  std::size_t actors = 4;
  Parallelism degrees = kPipeline;
  bool while_loading = false;
  /// Chooses the actor that is struck, among the actors as they are while the job runs.
  std::function<ActorInfo(const std::vector<ActorInfo>&, std::mt19937&)> choose =
      [](const auto& actors, auto& random) { return actors.at(random() % actors.size()); };
  std::function<void(const ActorInfo&)> strike;
  std::function<void(const ActorInfo&)> mend = [](const ActorInfo&) {};
};

/// Bytes that such a job needs at its fullest actor.
std::uint64_t memory_of(const Options& options, const Parallelism& degrees) {
  auto job = job_of(options, degrees);
  job.model = options.model;
  const auto asked = client::to_wire(job).value();
  const auto plan =
      plan::make_plan(spec::read_model_spec(job.model), asked.request, asked.parallelism);
  std::uint64_t most = 0;
  for (const auto& own : plan.memory)
    most = std::max(most, static_cast<std::uint64_t>(own.peak()));
  return most;
}

/// Seconds since the blow.
struct Outcome {
  double noticed = 0, told = 0, further = 0;
  bool same = false;
};

/// Strikes the scene's job; returns nothing if the job had ended before the blow.
std::optional<Outcome> blow(const Scene& scene, const Options& options,
                            const std::vector<float>& undisturbed, std::mt19937& random) {
  Client& client = scene.client;
  wait_until_whole(client, scene.actors);
  const int from = 1 + static_cast<int>(random() % static_cast<unsigned>(options.steps / 2));
  std::atomic<int> step = 0;
  std::atomic<bool> loading = false;
  const auto job =
      take(client.submit(job_of(options, scene.degrees), [&](const Progress& progress) {
        if (progress.phase == JobPhase::denoising) step = progress.step;
        if (progress.phase == JobPhase::loading) loading = true;
        if (progress.phase == JobPhase::decoding) step = options.steps + 1;
      }));
  wait_for("job under way", [&] { return scene.while_loading ? loading.load() : step >= from; });
  const auto victim = scene.choose(take(client.status()).actors, random);
  const auto start = Clock::now();
  scene.strike(victim);
  Outcome outcome;
  wait_for("notice of the loss", [&] {
    const auto now = take(client.status()).actors;
    const auto it = std::find_if(now.begin(), now.end(),
                                 [&](const auto& actor) { return actor.id == victim.id; });
    return it == now.end() || it->incarnation != victim.incarnation || !can_compute(it->state);
  });
  outcome.noticed = since(start);
  const int before = step;
  if (before > options.steps) {
    take(client.wait(job, kJobDeadline));
    scene.mend(victim);
    return std::nullopt;
  }
  wait_for("further step", [&] { return step > before; });
  outcome.further = since(start);
  const auto result = take(client.wait(job, kJobDeadline));
  outcome.told = outcome.noticed;
  const auto recoveries = nlohmann::json::parse(result.report).at("recoveries");
  for (const auto& recovery : recoveries)
    outcome.told += recovery.at("seconds").get<double>();
  outcome.same = result.latents && result.latents->data == undisturbed;
  scene.mend(victim);
  return outcome;
}

Row measure(const std::string& name, const Scene& scene, const Options& options) {
  wait_until_whole(scene.client, scene.actors);
  const auto run = [&](const Parallelism& degrees) {
    return take(
        scene.client.wait(take(scene.client.submit(job_of(options, degrees))), kJobDeadline));
  };
  const auto undisturbed = run(scene.degrees).latents->data;
  std::mt19937 random(7);
  std::vector<double> noticed, told, further;
  int same = 0;
  while (static_cast<int>(noticed.size()) < options.times) {
    // Another layout in between, beside which there is no room: the weights must be read again.
    if (scene.while_loading) run(kWhole);
    const auto outcome = blow(scene, options, undisturbed, random);
    if (!outcome) continue;
    noticed.push_back(outcome->noticed);
    told.push_back(outcome->told);
    further.push_back(outcome->further);
    same += outcome->same;
  }
  return {name, {{"noticed", noticed}, {"told_to_go_on", told}, {"a_step_further", further}}, same};
}

/// Strikes one of four actors by a signal.
NamedRow signalled(const std::string& name, int number, const Parallelism& degrees, bool loading) {
  return {name, [=](const Options& options) {
            auto wanted = cluster_options(options, 4);
            if (loading) wanted.memory_limit = memory_of(options, kWhole);
            cluster::Cluster cluster(wanted);
            auto client = take(Client::connect(cluster.endpoint()));
            return measure(name,
                           {.cluster = cluster,
                            .client = client,
                            .degrees = degrees,
                            .while_loading = loading,
                            .strike =
                                [number](const ActorInfo& victim) {
                                  kill(static_cast<pid_t>(victim.pid), number);
                                }},
                           options);
          }};
}

/// Stops one of four work loops, while its process reports that it lives.
Row hung_loop(const std::string& name, const Options& options) {
  auto wanted = cluster_options(options, 4);
  wanted.task_deadline = std::chrono::seconds(kTaskDeadline);
  cluster::Cluster cluster(wanted);
  auto client = take(Client::connect(cluster.endpoint()));
  auto inspector = take(Inspector::connect(cluster.endpoint()));
  return measure(
      name,
      {.cluster = cluster,
       .client = client,
       .strike =
           [&](const ActorInfo& victim) { take(inspector.inject(victim.id, Fault::delay, 3600)); }},
      options);
}

/// The agent of a host that computes a part of the job; actors of another one take the places.
Row lost_host(const std::string& name, const Options& options) {
  auto wanted = cluster_options(options, 2);
  wanted.listen = "tcp://127.0.0.1:0";
  cluster::Cluster cluster(wanted);
  auto client = take(Client::connect(cluster.endpoint()));
  std::map<std::string, std::unique_ptr<soak::Child>> hosts;
  const auto join = [&](const std::string& host) {
    hosts[host] = std::make_unique<soak::Child>(
        std::vector<std::string>{options.programs + "/troupe", "join", "--connect",
                                 cluster.endpoint(), "--actors", "2", "--name", host},
        "/dev/null");
  };
  join("alpha");
  join("beta");
  return measure(
      name,
      {.cluster = cluster,
       .client = client,
       .actors = 6,
       .choose =
           [&](const std::vector<ActorInfo>& actors, std::mt19937&) {
             for (const auto& actor : actors)
               if (hosts.contains(actor.host) && !actor.groups.empty() && !actor.doing.empty())
                 return actor;
             throw std::runtime_error("no guest has a part of the job");
           },
       .strike = [&](const ActorInfo& victim) { hosts.at(victim.host)->signal(SIGKILL); },
       .mend =
           [&](const ActorInfo& victim) {
             hosts.erase(victim.host);
             join(victim.host);
           }},
      options);
}

}  // namespace

std::vector<NamedRow> job_rows() {
  const std::string hung =
      "work loop hangs (--task-deadline " + std::to_string(kTaskDeadline) + "), cfg 2 × pp 2";
  const std::string host = "kill -9 of a joined host's agent, cfg 2 × pp 2";
  return {signalled("kill -9 of one of cfg 2 × pp 2", SIGKILL, kPipeline, false),
          signalled("kill -9 of one of ulysses 2 × tp 2", SIGKILL, kShards, false),
          signalled("kill -9 while it loads", SIGKILL, kPipeline, true),
          signalled("frozen (SIGSTOP), cfg 2 × pp 2", SIGSTOP, kPipeline, false),
          {hung, [hung](const Options& options) { return hung_loop(hung, options); }},
          {host, [host](const Options& options) { return lost_host(host, options); }}};
}

}  // namespace troupe::faults
