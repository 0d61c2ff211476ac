#include "controller/recorder/graph_text.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace troupe::recorder {
namespace {

using nlohmann::json;

/// Progress of one task, from its actors' notes.
struct Progress {
  std::vector<ActorId> at;  // not done there
  std::size_t notes = 0;
  double seconds = 0;  // of the slowest actor
};

json task_row(const schedule::Task& task, std::uint32_t id, const Attempt& attempt,
              const Progress& progress) {
  static constexpr const char* kKinds[] = {"text", "micro_step", "decode"};
  // Without a note it is not issued, unless its notes were forgotten.
  const bool forgotten = progress.notes == 0 && attempt.dropped > 0 && !attempt.notes.empty() &&
                         id < attempt.notes.front().task;
  std::string state = "waiting";
  if (progress.notes > 0) state = progress.at.empty() ? "done" : "issued";
  if (forgotten) state = "done";
  std::vector<ActorId> actors;
  for (const auto rank : task.ranks)
    actors.push_back(attempt.actor_of_rank.at(rank));
  return {{"id", id},
          {"name", schedule::describe(task)},
          {"kind", kKinds[static_cast<int>(task.kind)]},
          {"stage", task.stage},
          {"replica", task.dp},
          {"step", task.step},
          {"patch", task.patch},
          {"part", task.part},
          {"state", state},
          {"actors", actors},
          {"at", progress.at},
          {"after", task.predecessors},
          {"seconds", progress.seconds}};
}

}  // namespace

std::string graph_text(const JobNotes& job, bool paused, const std::string& met, int kept_steps) {
  json document = {
      {"job", job.job},           {"name", name_of(job)},
      {"paused", paused},         {"not_finite", met.empty() ? json(nullptr) : json(met)},
      {"kept_steps", kept_steps}, {"attempts", job.attempts.size()},
      {"tasks", json::array()}};
  if (!job.attempts.empty()) {
    const Attempt& attempt = job.attempts.back();
    document["epoch"] = attempt.epoch;
    document["world"] = attempt.graph.world;
    document["steps"] = attempt.graph.steps;
    document["actors"] = attempt.actor_of_rank;
    std::vector<Progress> progress(attempt.graph.tasks.size());
    for (const TaskNote& note : attempt.notes) {
      Progress& of = progress[note.task];
      ++of.notes;
      if (!note.ran) {
        of.at.push_back(note.actor);
        continue;
      }
      const auto took = static_cast<double>(note.ran->end_ns - note.ran->begin_ns) * 1e-9;
      of.seconds = std::max(of.seconds, took);
    }
    for (std::uint32_t id = 0; id < attempt.graph.tasks.size(); ++id)
      document["tasks"].push_back(task_row(attempt.graph.tasks[id], id, attempt, progress[id]));
  }
  return document.dump();
}

}  // namespace troupe::recorder
