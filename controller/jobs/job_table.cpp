#include "controller/jobs/job_table.h"

#include <algorithm>
#include <functional>
#include <queue>
#include <stdexcept>

#include "base/format.h"

namespace troupe::jobs {
namespace {

/// Weight of the newest job in the mean cost.
constexpr double kNewest = 0.25;

}  // namespace

std::string share_of(const JobEntry& job) {
  if (!job.spec.share.empty()) return job.spec.share;
  const auto client = job.client.number;
  return client != 0 ? fmt::format("client {}", client) : fmt::format("job {}", job.id);
}

bool may_meet(const JobEntry& a, const JobEntry& b) {
  return a.client.user == b.client.user || (!a.client.apart && !b.client.apart);
}

std::optional<JobId> JobTable::add(wire::JobSpec spec, plan::Plan plan, std::uint64_t owner,
                                   bool detached, double now, std::uint64_t fingerprint) {
  if (queue_.size() >= max_queued_) return std::nullopt;
  JobEntry job;
  job.id = next_id_++;
  job.spec = std::move(spec);
  job.plan = std::move(plan);
  job.fingerprint = fingerprint;
  job.client.owner = owner;
  job.client.number = owner;
  job.client.watchers = {owner};
  job.client.detached = detached;
  job.submitted = now;
  join_share(job);
  queue_.push_back(job.id);
  enter_line(job);
  const JobId id = job.id;
  jobs_.emplace(id, std::move(job));
  return id;
}

void JobTable::join_share(const JobEntry& job) {
  const auto [share, fresh] = shares_.try_emplace(share_of(job));
  ++share->second.jobs;
  if (!fresh) return;
  // Who comes in has no claim on what others were given before.
  std::optional<double> least;
  for (const auto& [name, other] : shares_) {
    if (&other != &share->second) least = std::min(least.value_or(other.service), other.service);
  }
  share->second.service = least.value_or(0);
}

void JobTable::restore(JobEntry job) {
  count_from(job.id + 1);
  if (has_ended(job.state)) {
    ended_.push_back(job.id);
    ++ended_total_;
  } else {
    job.state = JobState::queued;
    job.held = true;
    job.waits_for = "waits to be planned anew after its controller's restart";
    join_share(job);
    queue_.push_back(job.id);
  }
  jobs_.emplace(job.id, std::move(job));
}

bool JobTable::hold(JobId id, const std::string& what) {
  JobEntry* job = find(id);
  if (!job || job->state != JobState::queued) return false;
  job->held = true;
  job->waits_for = what;
  leave_line(id);
  return true;
}

bool JobTable::let_go(JobId id) {
  JobEntry* job = find(id);
  if (!job || job->state != JobState::queued) return false;
  job->held = false;
  job->waits_for.clear();
  enter_line(*job);
  return true;
}

bool JobTable::withdraw(JobId id) {
  const JobEntry* job = find(id);
  if (!job || job->state != JobState::queued) return false;
  std::erase(queue_, id);
  leave_line(id);
  leave_share(*job);
  jobs_.erase(id);
  return true;
}

JobEntry* JobTable::find_key(std::uint64_t key) {
  if (key == 0) return nullptr;
  for (auto& [id, job] : jobs_) {
    if (job.client.key == key) return &job;
  }
  return nullptr;
}

JobEntry* JobTable::find(JobId id) {
  const auto found = jobs_.find(id);
  return found == jobs_.end() ? nullptr : &found->second;
}

JobEntry* JobTable::find_run(JobId id) {
  const auto found = batches_.find(id);
  return found == batches_.end() ? find(id) : &found->second.run;
}

const BatchEntry* JobTable::find_batch(JobId id) const {
  const auto found = batches_.find(id);
  return found == batches_.end() ? nullptr : &found->second;
}

BatchEntry& JobTable::join(BatchEntry batch, double now) {
  auto& run = batch.run;
  run.id = next_id_++;
  run.state = JobState::loading;
  run.phase = JobPhase::loading;
  run.started = now;
  for (const auto& member : batch.members) {
    start(member.job, now);
    jobs_.at(member.job).batching.number = run.id;
  }
  return batches_.emplace(run.id, std::move(batch)).first->second;
}

std::vector<JobId> JobTable::members_of(JobId id) const {
  std::vector<JobId> living;
  const BatchEntry* batch = find_batch(id);
  if (!batch) return living;
  for (const auto& member : batch->members) {
    const auto job = jobs_.find(member.job);
    if (job != jobs_.end() && job->second.batching.number == id && !has_ended(job->second.state))
      living.push_back(member.job);
  }
  return living;
}

bool JobTable::requeue(JobId id) {
  JobEntry* job = find(id);
  if (!job || has_ended(job->state) || job->state == JobState::queued) return false;
  job->state = JobState::queued;
  job->phase = JobPhase::queued;
  job->step = 0;
  job->started = 0;
  job->batching.number = 0;
  job->batching.alone = true;
  job->course.parts.clear();
  queue_.insert(std::upper_bound(queue_.begin(), queue_.end(), id), id);
  under_way_.erase(id);
  enter_line(*job);
  return true;
}

std::int32_t JobTable::position(JobId id) const {
  const auto order = queue();
  return static_cast<std::int32_t>(std::find(order.begin(), order.end(), id) - order.begin());
}

void JobTable::enter_line(const JobEntry& job) {
  if (job.held || !turns_.try_emplace(job.id, job.spec.priority, share_of(job)).second) return;
  const auto& [priority, share] = turns_.at(job.id);
  lines_[priority][share].insert(job.id);
}

void JobTable::leave_line(JobId id) {
  const auto turn = turns_.extract(id);
  if (turn.empty()) return;
  const auto& [priority, share] = turn.mapped();
  auto& shares = lines_.at(priority);
  shares.at(share).erase(id);
  if (shares.at(share).empty()) shares.erase(share);
  if (shares.empty()) lines_.erase(priority);
}

std::map<std::string, double> JobTable::had() const {
  std::map<std::string, double> had;
  for (const auto& [name, share] : shares_)
    had[name] = share.service;
  for (const JobId id : under_way_) {
    // A job under way will cost about as much as the others did.
    const auto& job = jobs_.at(id);
    had[share_of(job)] += std::max(0.0, mean_cost_ + job.cost.before - job.cost.actor_seconds);
  }
  return had;
}

std::optional<JobId> JobTable::first() const {
  if (lines_.empty()) return std::nullopt;
  const auto had = this->had();
  std::optional<std::pair<double, JobId>> least;
  for (const auto& [share, jobs] : lines_.begin()->second) {
    const std::pair candidate{had.at(share), *jobs.begin()};
    least = std::min(least.value_or(candidate), candidate);
  }
  return least->second;
}

std::vector<JobId> JobTable::queue() const {
  struct Turn {
    double had;
    std::set<JobId>::const_iterator next, end;
    bool operator>(const Turn& other) const {
      return std::pair(had, *next) > std::pair(other.had, *other.next);
    }
  };
  auto had = this->had();
  std::vector<JobId> order;
  order.reserve(turns_.size());
  for (const auto& [priority, shares] : lines_) {
    std::priority_queue<Turn, std::vector<Turn>, std::greater<>> turns;
    for (const auto& [share, jobs] : shares)
      turns.push({had.at(share), jobs.begin(), jobs.end()});
    while (!turns.empty()) {
      Turn turn = turns.top();
      turns.pop();
      order.push_back(*turn.next);
      turn.had += mean_cost_;
      if (++turn.next != turn.end) turns.push(turn);
    }
    for (const auto& [share, jobs] : shares)
      had.at(share) += mean_cost_ * static_cast<double>(jobs.size());
  }
  return order;
}

void JobTable::charge(JobId id, double actor_seconds) {
  JobEntry* job = find(id);
  if (!job || has_ended(job->state) || !(actor_seconds > 0)) return;
  job->cost.actor_seconds += actor_seconds;
  shares_.at(share_of(*job)).service += actor_seconds;
}

double JobTable::service(const std::string& share) const {
  const auto found = shares_.find(share);
  return found == shares_.end() ? 0 : found->second.service;
}

void JobTable::leave_share(const JobEntry& job) {
  const auto share = shares_.find(share_of(job));
  if (--share->second.jobs == 0) shares_.erase(share);
}

bool JobTable::start(JobId id, double now) {
  JobEntry* job = find(id);
  if (!job || job->state != JobState::queued) return false;
  std::erase(queue_, id);
  leave_line(id);
  under_way_.insert(id);
  job->state = JobState::loading;
  job->phase = JobPhase::loading;
  job->started = now;
  job->cost.before = job->cost.actor_seconds;
  return true;
}

bool JobTable::run(JobId id) {
  JobEntry* job = find_run(id);
  if (!job || job->state != JobState::loading) return false;
  for (const JobId member : members_of(id))
    jobs_.at(member).state = JobState::running;
  job->state = JobState::running;
  job->phase = JobPhase::text;
  return true;
}

bool JobTable::finish(JobId id, JobState terminal, wire::Failure failure, double now) {
  JobEntry* job = find(id);
  if (!job || has_ended(job->state) || !has_ended(terminal)) return false;
  std::erase(queue_, id);
  leave_line(id);
  under_way_.erase(id);
  if (job->state != JobState::queued) {
    if (job->cost.actor_seconds == job->cost.before)
      charge(id, (now - job->started) * job->plan.degrees.world());
    mean_cost_ += kNewest * (job->cost.actor_seconds - mean_cost_);
  }
  leave_share(*job);
  job->state = terminal;
  job->phase = JobPhase::ended;
  job->failure = std::move(failure);
  job->ended = now;
  ended_.push_back(id);
  ++ended_total_;
  return true;
}

std::vector<JobEntry> JobTable::expire() {
  std::size_t kept = 0;
  std::uint64_t bytes = 0;
  for (const JobId id : ended_) {
    const auto& job = jobs_.at(id);
    if (job.client.unreported) continue;
    ++kept;
    for (const auto& blob : job.outcome.blobs)
      bytes += blob.bytes;
  }
  std::vector<JobEntry> gone;
  for (auto next = ended_.begin(); kept > max_kept_ || (bytes > max_kept_bytes_ && kept > 1);) {
    if (jobs_.at(*next).client.unreported) {
      ++next;
      continue;
    }
    gone.push_back(std::move(jobs_.extract(*next).mapped()));
    for (const auto& blob : gone.back().outcome.blobs)
      bytes -= blob.bytes;
    --kept;
    next = ended_.erase(next);
  }
  return gone;
}

std::size_t JobTable::count(JobState state) const {
  return std::count_if(jobs_.begin(), jobs_.end(),
                       [state](const auto& entry) { return entry.second.state == state; });
}

}  // namespace troupe::jobs
