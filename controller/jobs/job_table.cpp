#include "controller/jobs/job_table.h"

#include <algorithm>

namespace troupe::jobs {

std::optional<JobId> JobTable::add(wire::JobSpec spec, plan::Plan plan, std::uint64_t owner,
                                   bool detached, double now, std::uint64_t fingerprint) {
  if (queue_.size() >= max_queued_) return std::nullopt;
  JobEntry job;
  job.id = next_id_++;
  job.spec = std::move(spec);
  job.plan = std::move(plan);
  job.fingerprint = fingerprint;
  job.owner = owner;
  job.watchers = {owner};
  job.detached = detached;
  job.submitted = now;
  queue_.push_back(job.id);
  const JobId id = job.id;
  jobs_.emplace(id, std::move(job));
  return id;
}

JobEntry* JobTable::find(JobId id) {
  const auto found = jobs_.find(id);
  return found == jobs_.end() ? nullptr : &found->second;
}

std::int32_t JobTable::position(JobId id) const {
  return static_cast<std::int32_t>(std::find(queue_.begin(), queue_.end(), id) - queue_.begin());
}

bool JobTable::start(JobId id, double now) {
  JobEntry* job = find(id);
  if (!job || job->state != wire::JobState::queued) return false;
  std::erase(queue_, id);
  job->state = wire::JobState::loading;
  job->phase = "loading";
  job->started = now;
  return true;
}

bool JobTable::run(JobId id) {
  JobEntry* job = find(id);
  if (!job || job->state != wire::JobState::loading) return false;
  job->state = wire::JobState::running;
  job->phase = "text";
  return true;
}

bool JobTable::finish(JobId id, wire::JobState terminal, wire::Failure failure, double now) {
  JobEntry* job = find(id);
  if (!job || wire::is_terminal(job->state) || !wire::is_terminal(terminal)) return false;
  std::erase(queue_, id);
  job->state = terminal;
  job->phase = wire::to_string(terminal);
  job->failure = std::move(failure);
  job->ended = now;
  ended_.push_back(id);
  ++ended_total_;
  return true;
}

std::vector<JobEntry> JobTable::expire() {
  std::vector<JobEntry> gone;
  while (ended_.size() > max_kept_) {
    gone.push_back(std::move(jobs_.extract(ended_.front()).mapped()));
    ended_.pop_front();
  }
  return gone;
}

std::size_t JobTable::count(wire::JobState state) const {
  return std::count_if(jobs_.begin(), jobs_.end(),
                       [state](const auto& entry) { return entry.second.state == state; });
}

}  // namespace troupe::jobs
