#include "controller/schedule/dispatcher.h"

#include <algorithm>
#include <stdexcept>

namespace troupe::schedule {

void Dispatcher::add_job(JobId id, TaskGraph graph, std::vector<ActorId> actor_of_rank,
                         JobTerms terms) {
  if (jobs_.contains(id))
    throw std::logic_error("[dispatcher] job " + std::to_string(id) + " is already running");
  if (static_cast<int>(actor_of_rank.size()) != graph.world) {
    throw std::logic_error("[dispatcher] job " + std::to_string(id) + " needs " +
                           std::to_string(graph.world) + " actors, got " +
                           std::to_string(actor_of_rank.size()));
  }
  Job job;
  job.id = id;
  job.progress.resize(graph.tasks.size());
  job.successors.resize(graph.tasks.size());
  for (std::uint32_t task = 0; task < graph.tasks.size(); ++task) {
    const auto& predecessors = graph.tasks[task].predecessors;
    job.progress[task].unissued_predecessors = static_cast<std::uint32_t>(predecessors.size());
    job.progress[task].speed = speeds_.class_of(terms.machine, graph.tasks[task]);
    for (const auto before : predecessors)
      job.successors[before].push_back(task);
    if (predecessors.empty()) job.ready.push_back(task);
  }
  for (const auto actor : actor_of_rank) {
    auto& entry = actors_[actor];
    entry.id = actor;
    job.actor_of_rank.push_back(&entry);
  }
  job.unfinished_at_rank.resize(actor_of_rank.size());
  job.graph = std::move(graph);
  job.priority = terms.priority;
  job.share = shares_.try_emplace(std::move(terms.share)).first;
  if (job.share->second.jobs++ == 0) {
    // Who comes in has no claim on what others were given before.
    std::optional<double> least;
    for (const auto& [name, share] : shares_) {
      if (&share != &job.share->second)
        least = std::min(least.value_or(share.service), share.service);
    }
    job.share->second.service = least.value_or(0);
  }
  job.age = next_age_++;
  jobs_.emplace(id, std::move(job));
}

bool Dispatcher::finish(JobId id, std::uint32_t task_id, ActorId actor_id,
                        std::optional<double> seconds) {
  const auto found = jobs_.find(id);
  if (found == jobs_.end() || task_id >= found->second.progress.size()) return false;
  Job& job = found->second;
  auto& progress = job.progress[task_id];
  const auto member =
      std::find_if(progress.waiting_for.begin(), progress.waiting_for.end(),
                   [actor_id](const Actor* actor) { return actor->id == actor_id; });
  if (member == progress.waiting_for.end()) return false;
  forecast();
  Actor& actor = **member;
  progress.waiting_for.erase(member);
  actor.queue.erase(std::find(actor.queue.begin(), actor.queue.end(), std::pair{id, task_id}));
  for (const auto rank : job.graph.tasks[task_id].ranks) {
    if (job.actor_of_rank[rank] == &actor) --job.unfinished_at_rank[rank];
  }
  now_ = std::max(now_, progress.start + seconds.value_or(progress.cost));
  actor.clock = now_;
  progress.measured = std::max(progress.measured, seconds.value_or(0));
  stale_ = true;
  if (!progress.waiting_for.empty()) return false;
  progress.done = true;
  progress.finish = now_;
  speeds_.learn(progress.speed, job.graph.tasks[task_id].work, progress.measured);
  in_flight_.erase(std::find(in_flight_.begin(), in_flight_.end(), std::pair{&job, task_id}));
  --job.unfinished_issued;
  ++job.done;
  return true;
}

void Dispatcher::cancel(JobId id) {
  if (const auto job = jobs_.find(id); job != jobs_.end()) job->second.cancelled = true;
}

void Dispatcher::remove(JobId id) {
  const auto found = jobs_.find(id);
  if (found == jobs_.end()) return;
  Job& job = found->second;
  for (Actor* actor : job.actor_of_rank)
    std::erase_if(actor->queue, [id](const auto& entry) { return entry.first == id; });
  std::erase_if(in_flight_, [&job](const auto& entry) { return entry.first == &job; });
  if (--job.share->second.jobs == 0) shares_.erase(job.share);
  jobs_.erase(found);
  stale_ = true;
}

bool Dispatcher::pause(JobId id) {
  const auto job = jobs_.find(id);
  if (job == jobs_.end()) return false;
  if (!job->second.paused) job->second.steps_allowed = 0;
  job->second.paused = true;
  return true;
}

bool Dispatcher::step(JobId id) {
  const auto found = jobs_.find(id);
  if (found == jobs_.end()) return false;
  Job& job = found->second;
  const auto left = job.graph.tasks.size() - job.issued;
  if (!job.paused || job.cancelled || job.steps_allowed >= left) return false;
  ++job.steps_allowed;
  return true;
}

bool Dispatcher::resume(JobId id) {
  const auto job = jobs_.find(id);
  if (job == jobs_.end()) return false;
  job->second.paused = false;
  return true;
}

bool Dispatcher::paused(JobId id) const {
  const auto job = jobs_.find(id);
  return job != jobs_.end() && job->second.paused;
}

int Dispatcher::outstanding(ActorId actor) const {
  const auto found = actors_.find(actor);
  return found == actors_.end() ? 0 : static_cast<int>(found->second.queue.size());
}

std::optional<std::pair<JobId, std::uint32_t>> Dispatcher::current(ActorId actor) const {
  const auto found = actors_.find(actor);
  if (found == actors_.end() || found->second.queue.empty()) return std::nullopt;
  return found->second.queue.front();
}

std::vector<std::pair<JobId, std::uint32_t>> Dispatcher::queue(ActorId actor) const {
  const auto found = actors_.find(actor);
  if (found == actors_.end()) return {};
  return {found->second.queue.begin(), found->second.queue.end()};
}

bool Dispatcher::drained(JobId id) const {
  const Job& job = jobs_.at(id);
  return job.unfinished_issued == 0 && (job.cancelled || job.done == job.graph.tasks.size());
}

bool Dispatcher::complete(JobId id) const {
  const Job& job = jobs_.at(id);
  return job.done == job.graph.tasks.size();
}

}  // namespace troupe::schedule
