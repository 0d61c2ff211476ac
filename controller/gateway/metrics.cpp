#include "controller/gateway/metrics.h"

#include <unistd.h>

#include <array>
#include <fstream>
#include <map>

#include "base/format.h"
#include "base/metrics_text.h"

namespace troupe::gateway {
namespace {

const char* kind_name(wire::TaskKind kind) {
  static constexpr const char* kNames[] = {"text", "micro_step", "decode"};
  return kNames[static_cast<int>(kind)];
}

constexpr std::array kTaskKinds = {wire::TaskKind::encode_text, wire::TaskKind::micro_step,
                                   wire::TaskKind::decode};

void add_jobs(MetricsText& out, const MetricsFacts& facts) {
  out.gauge("troupe_jobs", "Jobs that have not ended, by state.");
  for (const auto state : {JobState::queued, JobState::loading, JobState::running})
    out.sample(static_cast<double>(facts.table.count(state)), {{"state", to_string(state)}});
  out.counter("troupe_jobs_ended_total",
              "Jobs that have ended since the controller started, by state.");
  for (const auto state : {JobState::succeeded, JobState::failed, JobState::cancelled}) {
    const auto found = facts.recorder.ended_totals().find(state);
    out.sample(
        found == facts.recorder.ended_totals().end() ? 0 : static_cast<double>(found->second),
        {{"state", to_string(state)}});
  }
  out.gauge("troupe_queue_length", "Jobs in the queue: troupe_jobs{state=\"queued\"}.")
      .sample(static_cast<double>(facts.table.count(JobState::queued)));
  out.counter("troupe_job_recoveries_total", "Times that a job began again after a loss.")
      .sample(static_cast<double>(facts.recorder.recoveries()));
}

void add_tasks(MetricsText& out, const MetricsFacts& facts) {
  const auto each = [&](auto value_of) {
    for (const auto kind : kTaskKinds) {
      const auto found = facts.recorder.totals().find(kind);
      const recorder::TaskTotals none;
      out.sample(value_of(found == facts.recorder.totals().end() ? none : found->second),
                 {{"kind", kind_name(kind)}});
    }
  };
  out.counter("troupe_tasks_total", "Tasks done, each counted at each actor, by kind.");
  each([](const auto& totals) { return static_cast<double>(totals.tasks); });
  out.counter("troupe_task_seconds_total", "Seconds that actors were inside tasks, by kind.");
  each([](const auto& totals) { return totals.seconds; });
  out.counter("troupe_task_wait_seconds_total",
              "Seconds of these that actors waited for tensors of others, by kind.");
  each([](const auto& totals) { return totals.wait_seconds; });
}

void add_bytes(MetricsText& out, const MetricsFacts& facts) {
  out.counter("troupe_bytes_total",
              "Bytes moved, by plane: control and blob as the controller sees them, tensor as the "
              "actors of ended jobs counted them.");
  const auto plane = [&](const char* name, double sent, double received) {
    out.sample(sent, {{"plane", name}, {"direction", "sent"}});
    out.sample(received, {{"plane", name}, {"direction", "received"}});
  };
  const auto& tensors = facts.recorder.byte_totals();
  plane("control", static_cast<double>(facts.control.bytes_sent),
        static_cast<double>(facts.control.bytes_received));
  plane("blob", static_cast<double>(facts.blobs.bytes_sent),
        static_cast<double>(facts.blobs.bytes_received));
  plane("tensor", static_cast<double>(tensors.tensors_sent),
        static_cast<double>(tensors.tensors_received));
  out.counter("troupe_tensor_bytes_total",
              "Tensor bytes that actors sent each other, by kind of group, of ended jobs.");
  for (const auto& [group, bytes] : tensors.sent_by_group)
    out.sample(static_cast<double>(bytes), {{"group", group}});
}

void add_prompts(MetricsText& out, const MetricsFacts& facts) {
  const auto& prompts = facts.recorder.prompt_totals();
  out.counter("troupe_prompts_total",
              "Texts that jobs needed of text encoders, each counted at each encoder, by whether "
              "it was encoded or kept from before, of ended jobs.");
  out.sample(static_cast<double>(prompts.encoded), {{"from", "encoder"}});
  out.sample(static_cast<double>(prompts.from_cache), {{"from", "cache"}});
}

void add_seconds(MetricsText& out, const MetricsFacts& facts) {
  out.histogram("troupe_request_seconds",
                "Seconds of jobs that succeeded, from the request to the end.");
  out.sample(facts.recorder.job_seconds());
  out.histogram("troupe_phase_seconds", "Seconds of jobs that succeeded, by phase.");
  for (const auto& [phase, seconds] : facts.recorder.phase_seconds())
    out.sample(seconds, {{"phase", to_string(phase)}});
}

void add_actors(MetricsText& out, const MetricsFacts& facts) {
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
  out.gauge("troupe_actors", "Actors by state.");
  for (const auto& [state, count] : by_state)
    out.sample(count, {{"state", to_string(state)}});
  out.gauge("troupe_actors_busy", "Actors that have tasks.").sample(busy);
  out.counter("troupe_actor_restarts_total", "Processes that were started in place of lost ones.")
      .sample(static_cast<double>(restarts));
  out.gauge("troupe_actor_memory_bytes", "Resident memory of each actor's process on this host.");
  for (const auto& [id, actor] : facts.members.all()) {
    if (actor.state == ActorState::ready && !actor.remote)
      out.sample(static_cast<double>(resident_bytes(actor.pid)), {{"actor", std::to_string(id)}});
  }
  out.gauge("troupe_actor_memory_limit_bytes", "What its models and jobs may take, where known.");
  for (const auto& [id, actor] : facts.members.all()) {
    if (actor.memory_limit)
      out.sample(static_cast<double>(*actor.memory_limit), {{"actor", std::to_string(id)}});
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
  MetricsText out;
  out.gauge("troupe_info", "1, labelled by the version.").sample(1, {{"version", facts.version}});
  out.gauge("troupe_uptime_seconds", "Since the controller started.").sample(facts.uptime_seconds);
  out.gauge("troupe_controller_memory_bytes", "Resident memory of the controller's process.")
      .sample(static_cast<double>(resident_bytes(static_cast<std::uint32_t>(getpid()))));
  add_jobs(out, facts);
  add_seconds(out, facts);
  add_tasks(out, facts);
  add_bytes(out, facts);
  add_prompts(out, facts);
  out.counter("troupe_peers_turned_away_total",
              "Peers that were not let in: keys that are not on the list, tokens and names that "
              "do not belong here.")
      .sample(static_cast<double>(facts.turned_away));
  add_actors(out, facts);
  return out.text();
}

}  // namespace troupe::gateway
