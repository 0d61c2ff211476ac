#include <algorithm>
#include <tuple>

#include "controller/schedule/dispatcher.h"

namespace troupe::schedule {
namespace {

/// Tasks that can start within this part of the first one's duration count as equally early.
constexpr double kAboutAsEarly = 0.1;
/// What may go before a task that comes first: this part of it must fit into the time that would
/// pass idle otherwise.
constexpr double kMustFit = 0.75;
/// A task that less deserving ones were put before so often is not passed over again.
constexpr std::uint32_t kPatience = 8;

}  // namespace

/// Plays what is issued on the virtual clock: a task starts when all its members have come to it
/// and what it waits for is done. A task that should be done by now ends now.
void Dispatcher::forecast() {
  if (!stale_) return;
  stale_ = false;
  for (auto& [id, actor] : actors_)
    actor.free = actor.clock;
  for (const auto& [job, id] : in_flight_) {
    auto& progress = job->progress[id];
    double start = progress.issued_at;
    for (const Actor* actor : progress.waiting_for)
      start = std::max(start, actor->free);
    for (const auto before : job->graph.tasks[id].predecessors)
      start = std::max(start, job->progress[before].finish);
    progress.start = start;
    progress.finish = std::max(start + progress.cost, now_);
    for (Actor* actor : progress.waiting_for)
      actor->free = progress.finish;
  }
}

/// All tasks that an actor with room might be given next, also those that have to wait for room at
/// another one: these keep theirs.
void Dispatcher::gather() {
  candidates_.clear();
  for (auto& [job_id, job] : jobs_) {
    if (job.cancelled || (job.paused && job.steps_allowed == 0)) continue;
    for (const auto id : job.ready) {
      const Task& task = job.graph.tasks[id];
      const auto& progress = job.progress[id];
      Candidate candidate{.job = &job, .id = id, .task = &task};
      bool some = false;
      bool all = true;
      bool few = true;
      double start = now_;
      for (const auto rank : task.ranks) {
        const Actor& actor = *job.actor_of_rank[rank];
        const bool room = static_cast<int>(actor.queue.size()) < limits_.window;
        some |= room;
        all &= room;
        few &= job.unfinished_at_rank[rank] < limits_.job_always;
        start = std::max(start, actor.free);
      }
      if (!some) continue;
      for (const auto before : task.predecessors)
        start = std::max(start, job.progress[before].finish);
      const auto estimate = speeds_.estimate(progress.speed, task.work);
      candidate.start = start;
      candidate.cost = estimate.seconds;
      candidate.overdue = progress.passed >= kPatience;
      candidate.within_limits = few || !estimate.measured || start - now_ < limits_.ahead_seconds;
      candidate.may_go = all && candidate.within_limits;
      candidates_.push_back(candidate);
    }
  }
}

bool Dispatcher::sort_before(const Candidate& a, const Candidate& b) const {
  const auto key = [](const Candidate& c) {
    return std::tuple(-c.job->priority, !c.overdue, c.overdue ? 0.0 : c.rank_start,
                      c.job->share->second.service, !c.feeds, c.job->age, c.id);
  };
  return key(a) < key(b);
}

/// A job's first task has many members and is never the oldest: it would wait until the jobs before
/// it are through, whatever these leave idle. So among equals it goes first where one of its
/// members has nothing else to begin by then.
void Dispatcher::find_feeding() {
  ++marks_;
  for (const auto& candidate : candidates_) {
    if (candidate.task->predecessors.empty()) continue;
    for (const auto rank : candidate.task->ranks) {
      Actor& actor = *candidate.job->actor_of_rank[rank];
      actor.next_start =
          actor.mark == marks_ ? std::min(actor.next_start, candidate.start) : candidate.start;
      actor.mark = marks_;
    }
  }
  for (auto& candidate : candidates_) {
    if (!candidate.task->predecessors.empty()) continue;
    const auto& ranks = candidate.task->ranks;
    candidate.feeds = std::any_of(ranks.begin(), ranks.end(), [&](std::int32_t rank) {
      const Actor& actor = *candidate.job->actor_of_rank[rank];
      return actor.mark != marks_ || actor.next_start > candidate.start;
    });
  }
}

void Dispatcher::rank() {
  std::sort(candidates_.begin(), candidates_.end(), [](const Candidate& a, const Candidate& b) {
    return std::tuple(-a.job->priority, a.start, a.job->age, a.id) <
           std::tuple(-b.job->priority, b.start, b.job->age, b.id);
  });
  const Candidate* first = nullptr;
  for (auto& candidate : candidates_) {
    if (!first || first->job->priority != candidate.job->priority) first = &candidate;
    const bool as_early = candidate.start <= first->start + kAboutAsEarly * first->cost;
    candidate.rank_start = as_early ? first->start : candidate.start;
  }
  find_feeding();
  std::sort(candidates_.begin(), candidates_.end(),
            [this](const Candidate& a, const Candidate& b) { return sort_before(a, b); });
}

bool Dispatcher::in_the_way(const Candidate& candidate) const {
  const auto& ranks = candidate.task->ranks;
  return std::any_of(ranks.begin(), ranks.end(), [&](std::int32_t rank) {
    const Actor& actor = *candidate.job->actor_of_rank[rank];
    return actor.closed_in == choices_ &&
           candidate.start + kMustFit * candidate.cost > actor.closed_from;
  });
}

void Dispatcher::mark(const Candidate& candidate) {
  ++marks_;
  for (const auto rank : candidate.task->ranks)
    candidate.job->actor_of_rank[rank]->mark = marks_;
}

bool Dispatcher::shares_marked(const Candidate& candidate) const {
  const auto& ranks = candidate.task->ranks;
  return std::any_of(ranks.begin(), ranks.end(), [&](std::int32_t rank) {
    return candidate.job->actor_of_rank[rank]->mark == marks_;
  });
}

/// The first in order that may go, or something that is out of its way before it can start. What
/// comes first but may not go yet keeps its members free from its start on.
const Dispatcher::Candidate* Dispatcher::choose() {
  ++choices_;
  for (std::size_t at = 0; at < candidates_.size(); ++at) {
    const auto& first = candidates_[at];
    if (in_the_way(first)) continue;
    if (first.may_go) {
      mark(first);
      for (std::size_t later = at + 1; later < candidates_.size(); ++later) {
        const auto& filler = candidates_[later];
        if (filler.may_go && filler.start + kMustFit * filler.cost <= first.start &&
            shares_marked(filler) && !in_the_way(filler))
          return &filler;
      }
      return &first;
    }
    for (const auto rank : first.task->ranks) {
      Actor& actor = *first.job->actor_of_rank[rank];
      actor.closed_from =
          actor.closed_in == choices_ ? std::min(actor.closed_from, first.start) : first.start;
      actor.closed_in = choices_;
    }
  }
  return nullptr;
}

void Dispatcher::count_passed(const Candidate& chosen) {
  mark(chosen);
  const auto deserves = [](const Candidate& c) {
    return std::pair(c.job->share->second.service, c.job->age);
  };
  for (const auto& other : candidates_) {
    if (&other == &chosen || !other.within_limits) continue;
    if (other.job->priority != chosen.job->priority) continue;
    if (deserves(other) < deserves(chosen) && shares_marked(other))
      ++other.job->progress[other.id].passed;
  }
}

void Dispatcher::issue_task(const Candidate& chosen, std::vector<Issue>& out) {
  Job& job = *chosen.job;
  const Task& task = *chosen.task;
  auto& progress = job.progress[chosen.id];
  progress.issued = true;
  progress.issued_at = now_;
  progress.start = chosen.start;
  progress.cost = chosen.cost;
  progress.finish = chosen.start + chosen.cost;
  ++job.issued;
  ++job.unfinished_issued;
  if (job.paused) --job.steps_allowed;
  const double service = chosen.cost * static_cast<double>(task.ranks.size());
  job.service += service;
  job.share->second.service += service;
  std::erase(job.ready, chosen.id);
  for (const auto after : job.successors[chosen.id]) {
    if (--job.progress[after].unissued_predecessors == 0) job.ready.push_back(after);
  }
  in_flight_.emplace_back(&job, chosen.id);
  wire::Command run{.job = job.id,
                    .task = chosen.id,
                    .kind = task.kind,
                    .step = task.step,
                    .patch = task.patch,
                    .part = task.part,
                    .stage = task.stage};
  for (const auto rank : task.ranks) {
    Actor& actor = *job.actor_of_rank[rank];
    progress.waiting_for.push_back(&actor);
    actor.queue.emplace_back(job.id, chosen.id);
    actor.free = progress.finish;
    ++job.unfinished_at_rank[rank];
    out.push_back({actor.id, run});
  }
  wire::Command receive = run;
  receive.receive = true;
  receive.step = task.consumer_step;
  receive.part = task.consumer_part;
  for (const auto rank : task.receivers)
    out.push_back({job.actor_of_rank[rank]->id, receive});
}

std::vector<Issue> Dispatcher::issue() {
  std::vector<Issue> out;
  forecast();
  for (;;) {
    gather();
    rank();
    const Candidate* chosen = choose();
    if (!chosen) return out;
    count_passed(*chosen);
    issue_task(*chosen, out);
  }
}

}  // namespace troupe::schedule
