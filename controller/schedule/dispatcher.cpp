#include "controller/schedule/dispatcher.h"

#include <algorithm>
#include <stdexcept>
#include <unordered_map>

#include "base/format.h"

namespace troupe::schedule {

void Dispatcher::add_job(JobId id, TaskGraph graph, std::vector<ActorId> actor_of_rank,
                         JobTerms terms) {
  if (jobs_.contains(id))
    throw std::logic_error(fmt::format("[dispatcher] job {} is already running", id));
  if (static_cast<int>(actor_of_rank.size()) != graph.world) {
    throw std::logic_error(fmt::format("[dispatcher] job {} needs {} actors, got {}", id,
                                       graph.world, actor_of_rank.size()));
  }
  ScheduledJob& job = jobs_[id];
  job.id = id;
  job.progress.resize(graph.tasks.size());
  job.successors.resize(graph.tasks.size());
  std::map<std::vector<std::int32_t>, std::uint32_t> sets;
  for (std::uint32_t task = 0; task < graph.tasks.size(); ++task) {
    const auto& predecessors = graph.tasks[task].predecessors;
    const auto [set, fresh] =
        sets.try_emplace(graph.tasks[task].ranks, static_cast<std::uint32_t>(sets.size()));
    if (fresh) job.rank_sets.push_back(set->first);
    auto& progress = job.progress[task];
    progress.members = set->second;
    progress.unissued_predecessors = static_cast<std::uint32_t>(predecessors.size());
    progress.speed = speeds_.class_of(terms.machine, graph.tasks[task]);
    for (const auto before : predecessors)
      job.successors[before].push_back(task);
    if (predecessors.empty()) job.ready.push_back(task);
  }
  for (const auto actor : actor_of_rank) {
    auto& entry = actors_[actor];
    entry.id = actor;
    job.actor_of_rank.push_back(&entry);
  }
  job.graph = std::move(graph);
  job.priority = terms.priority;
  job.share_name = std::move(terms.share);
  job.share = &shares_[job.share_name];
  if (job.share->jobs++ == 0) {
    // Who comes in has no claim on what others were given before.
    std::optional<double> least;
    for (const auto& [name, share] : shares_) {
      if (&share != job.share) least = std::min(least.value_or(share.service), share.service);
    }
    job.share->service = least.value_or(0);
  }
  job.age = next_age_++;
  auto& neighbourhood = join(job.actor_of_rank);
  neighbourhood.add(job);
  neighbourhood.arrange();
  touch(neighbourhood);
}

Neighbourhood& Dispatcher::join(const std::vector<ScheduledActor*>& actors) {
  Neighbourhood* joined = nullptr;
  for (const auto* actor : actors) {
    Neighbourhood* other = actor->neighbourhood;
    if (!other || other == joined) continue;
    if (!joined) {
      joined = other;
      continue;
    }
    joined->absorb(*other);
    forget(other);
  }
  if (!joined)
    joined = neighbourhoods_.emplace_back(std::make_unique<Neighbourhood>(limits_, speeds_)).get();
  return *joined;
}

void Dispatcher::forget(const Neighbourhood* gone) {
  std::erase(touched_, gone);
  std::erase_if(neighbourhoods_, [gone](const auto& entry) { return entry.get() == gone; });
}

void Dispatcher::touch(Neighbourhood& neighbourhood) {
  if (neighbourhood.touched) return;
  neighbourhood.touched = true;
  touched_.push_back(&neighbourhood);
}

std::vector<Issue> Dispatcher::issue() {
  std::vector<Issue> out;
  for (Neighbourhood* neighbourhood : touched_) {
    neighbourhood->touched = false;
    neighbourhood->issue(out);
  }
  touched_.clear();
  return out;
}

ScheduledJob* Dispatcher::find(JobId id) {
  const auto found = jobs_.find(id);
  return found == jobs_.end() ? nullptr : &found->second;
}

const ScheduledJob* Dispatcher::find(JobId id) const {
  const auto found = jobs_.find(id);
  return found == jobs_.end() ? nullptr : &found->second;
}

bool Dispatcher::finish(JobId id, std::uint32_t task, ActorId actor_id,
                        std::optional<double> seconds) {
  ScheduledJob* job = find(id);
  const auto actor = actors_.find(actor_id);
  if (!job || actor == actors_.end()) return false;
  const QueueEntry what{job, task};
  const auto& queue = actor->second.queue;
  if (std::find(queue.begin(), queue.end(), what) == queue.end()) return false;
  touch(*job->neighbourhood);
  return job->neighbourhood->finish(actor->second, what, seconds);
}

void Dispatcher::cancel(JobId id) {
  ScheduledJob* job = find(id);
  if (!job) return;
  job->cancelled = true;
  touch(*job->neighbourhood);
}

void Dispatcher::remove(JobId id) {
  ScheduledJob* job = find(id);
  if (!job) return;
  Neighbourhood& neighbourhood = *job->neighbourhood;
  neighbourhood.remove(*job);
  if (--job->share->jobs == 0) shares_.erase(job->share_name);
  jobs_.erase(id);
  if (neighbourhood.jobs().empty()) return forget(&neighbourhood);
  touch(neighbourhood);
  for (auto& apart : neighbourhood.arrange()) {
    touch(*apart);
    neighbourhoods_.push_back(std::move(apart));
  }
}

bool Dispatcher::pause(JobId id, int last_step) {
  ScheduledJob* job = find(id);
  if (!job) return false;
  if (!job->paused) job->steps_allowed = 0;
  job->paused = true;
  job->last_step = last_step;
  touch(*job->neighbourhood);
  return true;
}

bool Dispatcher::step(JobId id) {
  ScheduledJob* job = find(id);
  if (!job) return false;
  const auto left = job->graph.tasks.size() - job->issued;
  if (!job->paused || job->cancelled || job->steps_allowed >= left) return false;
  ++job->steps_allowed;
  touch(*job->neighbourhood);
  return true;
}

bool Dispatcher::resume(JobId id) {
  ScheduledJob* job = find(id);
  if (!job) return false;
  job->paused = false;
  touch(*job->neighbourhood);
  return true;
}

bool Dispatcher::paused(JobId id) const {
  const ScheduledJob* job = find(id);
  return job && job->paused;
}

int Dispatcher::outstanding(ActorId actor) const {
  const auto found = actors_.find(actor);
  return found == actors_.end() ? 0 : static_cast<int>(found->second.queue.size());
}

std::optional<std::pair<JobId, std::uint32_t>> Dispatcher::current(ActorId actor) const {
  const auto found = actors_.find(actor);
  if (found == actors_.end() || found->second.queue.empty()) return std::nullopt;
  const auto& first = found->second.queue.front();
  return std::pair{first.job->id, first.task};
}

std::vector<std::pair<JobId, std::uint32_t>> Dispatcher::queue(ActorId actor) const {
  std::vector<std::pair<JobId, std::uint32_t>> entries;
  if (const auto found = actors_.find(actor); found != actors_.end()) {
    for (const auto& entry : found->second.queue)
      entries.emplace_back(entry.job->id, entry.task);
  }
  return entries;
}

bool Dispatcher::drained(JobId id) const {
  const ScheduledJob& job = jobs_.at(id);
  return job.unfinished_issued == 0 && (job.cancelled || job.done == job.graph.tasks.size());
}

bool Dispatcher::complete(JobId id) const {
  const ScheduledJob& job = jobs_.at(id);
  return job.done == job.graph.tasks.size();
}

std::vector<OutboxMessage> outbox_messages(const std::vector<Issue>& issued,
                                           const std::function<std::uint64_t(JobId)>& epoch_of) {
  std::vector<OutboxMessage> messages;
  std::unordered_map<ActorId, std::size_t> last;
  last.reserve(issued.size());
  JobId job = 0;
  std::uint64_t epoch = 0;
  for (const auto& issue : issued) {
    // Members of one task follow one another.
    if (&issue == &issued.front() || issue.command.job != job) {
      job = issue.command.job;
      epoch = epoch_of(job);
    }
    const auto [open, fresh] = last.try_emplace(issue.actor, messages.size());
    if (fresh || messages[open->second].tasks.epoch != epoch) {
      open->second = messages.size();
      messages.push_back({issue.actor, {.epoch = epoch, .commands = {}}});
    }
    messages[open->second].tasks.commands.push_back(issue.command);
  }
  return messages;
}

}  // namespace troupe::schedule
