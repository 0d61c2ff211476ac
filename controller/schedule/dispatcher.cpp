#include "controller/schedule/dispatcher.h"

#include <algorithm>
#include <stdexcept>

namespace troupe::schedule {

void Dispatcher::add_job(JobId id, TaskGraph graph, std::vector<ActorId> actor_of_rank,
                         int priority) {
  if (jobs_.contains(id))
    throw std::logic_error("[dispatcher] job " + std::to_string(id) + " is already running");
  if (static_cast<int>(actor_of_rank.size()) != graph.world) {
    throw std::logic_error("[dispatcher] job " + std::to_string(id) + " needs " +
                           std::to_string(graph.world) + " actors, got " +
                           std::to_string(actor_of_rank.size()));
  }
  Job job;
  job.progress.resize(graph.tasks.size());
  job.successors.resize(graph.tasks.size());
  for (std::uint32_t task = 0; task < graph.tasks.size(); ++task) {
    const auto& predecessors = graph.tasks[task].predecessors;
    job.progress[task].unissued_predecessors = static_cast<std::uint32_t>(predecessors.size());
    for (const auto before : predecessors)
      job.successors[before].push_back(task);
    if (predecessors.empty()) job.ready.insert(task);
  }
  job.graph = std::move(graph);
  job.actor_of_rank = std::move(actor_of_rank);
  job.priority = priority;
  job.age = next_age_++;
  jobs_.emplace(id, std::move(job));
}

int Dispatcher::outstanding(ActorId actor) const {
  const auto queue = queues_.find(actor);
  return queue == queues_.end() ? 0 : static_cast<int>(queue->second.size());
}

std::optional<std::pair<JobId, std::uint32_t>> Dispatcher::current(ActorId actor) const {
  const auto queue = queues_.find(actor);
  if (queue == queues_.end() || queue->second.empty()) return std::nullopt;
  return queue->second.front();
}

bool Dispatcher::has_room(const Job& job, const Task& task) const {
  return std::all_of(task.ranks.begin(), task.ranks.end(), [&](std::int32_t rank) {
    return outstanding(job.actor_of_rank[rank]) < window_;
  });
}

void Dispatcher::issue_task(JobId id, Job& job, std::uint32_t task_id, std::vector<Issue>& out) {
  const Task& task = job.graph.tasks[task_id];
  auto& progress = job.progress[task_id];
  progress.issued = true;
  ++job.unfinished_issued;
  job.ready.erase(task_id);
  for (const auto after : job.successors[task_id]) {
    if (--job.progress[after].unissued_predecessors == 0) job.ready.insert(after);
  }
  wire::Command run{.job = id,
                    .task = task_id,
                    .kind = task.kind,
                    .step = task.step,
                    .patch = task.patch,
                    .part = task.part};
  for (const auto rank : task.ranks) {
    const ActorId actor = job.actor_of_rank[rank];
    progress.waiting_for.insert(actor);
    queues_[actor].emplace_back(id, task_id);
    out.push_back({actor, run});
  }
  wire::Command receive = run;
  receive.receive = true;
  receive.step = task.consumer_step;
  receive.part = task.consumer_part;
  for (const auto rank : task.receivers)
    out.push_back({job.actor_of_rank[rank], receive});
}

bool Dispatcher::issue_next(JobId id, Job& job, std::vector<Issue>& out) {
  if (job.cancelled) return false;
  for (const auto task : job.ready) {
    if (!has_room(job, job.graph.tasks[task])) continue;
    issue_task(id, job, task, out);
    return true;
  }
  return false;
}

std::vector<Issue> Dispatcher::issue() {
  std::vector<std::pair<JobId, Job*>> order;
  for (auto& [id, job] : jobs_)
    order.emplace_back(id, &job);
  std::stable_sort(order.begin(), order.end(), [](const auto& a, const auto& b) {
    return a.second->priority != b.second->priority ? a.second->priority > b.second->priority
                                                    : a.second->age < b.second->age;
  });
  std::vector<Issue> out;
  for (auto& [id, job] : order) {
    while (issue_next(id, *job, out)) {
    }
  }
  return out;
}

bool Dispatcher::finish(JobId id, std::uint32_t task_id, ActorId actor) {
  const auto found = jobs_.find(id);
  if (found == jobs_.end() || task_id >= found->second.progress.size()) return false;
  Job& job = found->second;
  auto& progress = job.progress[task_id];
  if (progress.waiting_for.erase(actor) == 0) return false;
  auto& queue = queues_[actor];
  queue.erase(std::find(queue.begin(), queue.end(), std::pair{id, task_id}));
  if (!progress.waiting_for.empty()) return false;
  progress.done = true;
  --job.unfinished_issued;
  ++job.done;
  return true;
}

void Dispatcher::cancel(JobId id) {
  if (const auto job = jobs_.find(id); job != jobs_.end()) job->second.cancelled = true;
}

void Dispatcher::remove(JobId id) {
  if (jobs_.erase(id) == 0) return;
  for (auto& [actor, queue] : queues_) {
    std::erase_if(queue, [id](const auto& entry) { return entry.first == id; });
  }
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
