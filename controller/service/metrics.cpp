#include "controller/service/metrics.h"

#include <unistd.h>

#include <array>
#include <fstream>
#include <initializer_list>
#include <map>

#include "base/format.h"
#include "base/metrics_text.h"

namespace troupe::service {
namespace {

enum class MetricKind { gauge, counter, histogram };

/// A family of metrics. docs/reference/metrics.md is made from these lines by scripts/reference.
struct Metric {
  const char* name;
  MetricKind kind;
  std::array<const char*, 2> labels;  // their names, in the order of a sample's values
  const char* help;
};

constexpr Metric kInfo = {
    "troupe_info", MetricKind::gauge, {"version"}, "1, labelled by the version."};
constexpr Metric kUptime = {
    "troupe_uptime_seconds", MetricKind::gauge, {}, "Seconds since the controller started."};
constexpr Metric kControllerMemory = {"troupe_controller_memory_bytes",
                                      MetricKind::gauge,
                                      {},
                                      "Resident memory of the controller's process."};
constexpr Metric kJobs = {"troupe_jobs",
                          MetricKind::gauge,
                          {"state"},
                          "Jobs that have not ended, by state: queued, loading, running."};
constexpr Metric kJobsEnded = {
    "troupe_jobs_ended_total",
    MetricKind::counter,
    {"state"},
    "Jobs that have ended since this controller started, by state: succeeded, failed, cancelled; "
    "those of its journal are in `troupe status` alone."};
constexpr Metric kQueue = {
    "troupe_queue_length",
    MetricKind::gauge,
    {},
    "Jobs in the queue, as troupe_jobs{state=\"queued\"} and `troupe status` have them."};
constexpr Metric kRecoveries = {"troupe_job_recoveries_total",
                                MetricKind::counter,
                                {},
                                "Times that a job began again after a loss."};
constexpr Metric kRequestSeconds = {"troupe_request_seconds",
                                    MetricKind::histogram,
                                    {},
                                    "Seconds of jobs that succeeded, from the request to the end."};
constexpr Metric kPhaseSeconds = {
    "troupe_phase_seconds",
    MetricKind::histogram,
    {"phase"},
    "Seconds of jobs that succeeded, by phase: queued, loading, text, denoising, decoding."};
constexpr Metric kTasks = {
    "troupe_tasks_total",
    MetricKind::counter,
    {"kind"},
    "Tasks done, each counted once per actor, by kind: text, micro_step, decode."};
constexpr Metric kTaskSeconds = {"troupe_task_seconds_total",
                                 MetricKind::counter,
                                 {"kind"},
                                 "Seconds that actors were inside tasks, by kind."};
constexpr Metric kTaskWait = {
    "troupe_task_wait_seconds_total",
    MetricKind::counter,
    {"kind"},
    "Seconds of these that actors waited for tensors of others, by kind."};
constexpr Metric kBytes = {"troupe_bytes_total",
                           MetricKind::counter,
                           {"plane", "direction"},
                           "Bytes sent and received, by plane: control and blob as the controller "
                           "sees them, tensor as actors counted them, added when a job ends."};
constexpr Metric kTensorBytes = {"troupe_tensor_bytes_total",
                                 MetricKind::counter,
                                 {"group"},
                                 "Tensor bytes that actors sent each other, by kind of group "
                                 "(edge, ring, ...), added when a job ends."};
constexpr Metric kPrompts = {
    "troupe_prompts_total",
    MetricKind::counter,
    {"from"},
    "Texts that jobs needed of text encoders, counted at each encoder, by where they came from: "
    "encoder (computed), cache (kept from before, at no cost); added when a job ends."};
constexpr Metric kTurnedAway = {"troupe_peers_turned_away_total",
                                MetricKind::counter,
                                {},
                                "Peers that were not let in: keys that are not on the list, tokens "
                                "and names that do not belong here."};
constexpr Metric kActors = {
    "troupe_actors",
    MetricKind::gauge,
    {"state"},
    "Actors, by state: starting, ready, draining, drained, leaving, dead (lost, and not drained)."};
constexpr Metric kActorsBusy = {
    "troupe_actors_busy", MetricKind::gauge, {}, "Actors that have tasks."};
constexpr Metric kRestarts = {"troupe_actor_restarts_total",
                              MetricKind::counter,
                              {},
                              "Processes that were started in place of lost ones."};
constexpr Metric kActorMemory = {
    "troupe_actor_memory_bytes",
    MetricKind::gauge,
    {"actor"},
    "Resident memory of each actor's process, of actors on the controller's host."};
constexpr Metric kMemoryLimit = {
    "troupe_actor_memory_limit_bytes",
    MetricKind::gauge,
    {"actor"},
    "Memory that each actor's models and jobs may take, where it is known."};

/// Writes families by their lines above.
class Families {
 public:
  void begin(const Metric& metric) {
    labels_ = metric.labels;
    switch (metric.kind) {
      case MetricKind::gauge:
        text_.gauge(metric.name, metric.help);
        break;
      case MetricKind::counter:
        text_.counter(metric.name, metric.help);
        break;
      case MetricKind::histogram:
        text_.histogram(metric.name, metric.help);
        break;
    }
  }
  /// Adds a sample of the family that was begun last, with the values of its labels.
  template <class Value>
  void sample(const Value& value, std::initializer_list<std::string> of = {}) {
    MetricsText::Labels labels;
    for (const auto& one : of)
      labels.emplace_back(labels_.at(labels.size()), one);
    text_.sample(value, labels);
  }
  /// Adds a family of one sample.
  void only(const Metric& metric, double value) {
    begin(metric);
    sample(value);
  }
  const std::string& text() const { return text_.text(); }

 private:
  MetricsText text_;
  std::array<const char*, 2> labels_ = {};
};

const char* kind_name(wire::TaskKind kind) {
  static constexpr const char* kNames[] = {"text", "micro_step", "decode"};
  return kNames[static_cast<int>(kind)];
}

constexpr std::array kTaskKinds = {wire::TaskKind::encode_text, wire::TaskKind::micro_step,
                                   wire::TaskKind::decode};

void add_jobs(Families& out, const MetricsFacts& facts) {
  out.begin(kJobs);
  for (const auto state : {JobState::queued, JobState::loading, JobState::running})
    out.sample(static_cast<double>(facts.table.count(state)), {to_string(state)});
  out.begin(kJobsEnded);
  for (const auto state : {JobState::succeeded, JobState::failed, JobState::cancelled}) {
    const auto found = facts.recorder.ended_totals().find(state);
    out.sample(
        found == facts.recorder.ended_totals().end() ? 0 : static_cast<double>(found->second),
        {to_string(state)});
  }
  out.only(kQueue, static_cast<double>(facts.table.count(JobState::queued)));
  out.only(kRecoveries, static_cast<double>(facts.recorder.recoveries()));
}

void add_tasks(Families& out, const MetricsFacts& facts) {
  const auto each = [&](auto value_of) {
    for (const auto kind : kTaskKinds) {
      const auto found = facts.recorder.totals().find(kind);
      const recorder::TaskTotals none;
      out.sample(value_of(found == facts.recorder.totals().end() ? none : found->second),
                 {kind_name(kind)});
    }
  };
  out.begin(kTasks);
  each([](const auto& totals) { return static_cast<double>(totals.tasks); });
  out.begin(kTaskSeconds);
  each([](const auto& totals) { return totals.seconds; });
  out.begin(kTaskWait);
  each([](const auto& totals) { return totals.wait_seconds; });
}

void add_bytes(Families& out, const MetricsFacts& facts) {
  out.begin(kBytes);
  const auto plane = [&](const char* name, double sent, double received) {
    out.sample(sent, {name, "sent"});
    out.sample(received, {name, "received"});
  };
  const auto& tensors = facts.recorder.byte_totals();
  plane("control", static_cast<double>(facts.control.bytes_sent),
        static_cast<double>(facts.control.bytes_received));
  plane("blob", static_cast<double>(facts.blobs.bytes_sent),
        static_cast<double>(facts.blobs.bytes_received));
  plane("tensor", static_cast<double>(tensors.tensors_sent),
        static_cast<double>(tensors.tensors_received));
  out.begin(kTensorBytes);
  for (const auto& [group, bytes] : tensors.sent_by_group)
    out.sample(static_cast<double>(bytes), {group});
}

void add_prompts(Families& out, const MetricsFacts& facts) {
  const auto& prompts = facts.recorder.prompt_totals();
  out.begin(kPrompts);
  out.sample(static_cast<double>(prompts.encoded), {"encoder"});
  out.sample(static_cast<double>(prompts.from_cache), {"cache"});
}

void add_seconds(Families& out, const MetricsFacts& facts) {
  out.begin(kRequestSeconds);
  out.sample(facts.recorder.job_seconds());
  out.begin(kPhaseSeconds);
  for (const auto& [phase, seconds] : facts.recorder.phase_seconds())
    out.sample(seconds, {to_string(phase)});
}

void add_actors(Families& out, const MetricsFacts& facts) {
  std::map<ActorState, int> by_state;
  for (const auto state : {ActorState::starting, ActorState::ready, ActorState::draining,
                           ActorState::drained, ActorState::leaving, ActorState::dead})
    by_state[state] = 0;
  std::uint64_t restarts = 0;
  int busy = 0;
  for (const auto& [id, actor] : facts.members.all()) {
    ++by_state[actor.shown_state()];
    restarts += actor.restarts;
    if (facts.runner.busy(id)) ++busy;
  }
  out.begin(kActors);
  for (const auto& [state, count] : by_state)
    out.sample(count, {to_string(state)});
  out.only(kActorsBusy, busy);
  out.only(kRestarts, static_cast<double>(restarts));
  out.begin(kActorMemory);
  for (const auto& [id, actor] : facts.members.all()) {
    if (actor.state == ActorState::ready && !actor.remote)
      out.sample(static_cast<double>(resident_bytes(actor.pid)), {std::to_string(id)});
  }
  out.begin(kMemoryLimit);
  for (const auto& [id, actor] : facts.members.all()) {
    if (actor.memory_limit)
      out.sample(static_cast<double>(*actor.memory_limit), {std::to_string(id)});
  }
}

}  // namespace

std::uint64_t resident_bytes(std::uint32_t pid) {
  std::ifstream statm(fmt::format("/proc/{}/statm", pid));
  std::uint64_t size = 0;
  std::uint64_t resident = 0;
  statm >> size >> resident;
  return statm ? resident * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE)) : 0;
}

std::string metrics_text(const MetricsFacts& facts) {
  Families out;
  out.begin(kInfo);
  out.sample(1, {facts.version});
  out.only(kUptime, facts.uptime_seconds);
  out.only(kControllerMemory,
           static_cast<double>(resident_bytes(static_cast<std::uint32_t>(getpid()))));
  add_jobs(out, facts);
  add_seconds(out, facts);
  add_tasks(out, facts);
  add_bytes(out, facts);
  add_prompts(out, facts);
  out.only(kTurnedAway, static_cast<double>(facts.turned_away));
  add_actors(out, facts);
  return out.text();
}

}  // namespace troupe::service
