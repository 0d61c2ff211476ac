#include <algorithm>
#include <tuple>

#include "controller/schedule/neighbourhood.h"

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

/// All tasks that an actor with room might be given next, also those that have to wait for room at
/// another one: these keep theirs. False when none may go, whatever their order.
bool Neighbourhood::gather() {
  candidates_.clear();
  bool some_has_room = false;
  for (ScheduledJob* job : jobs_) {
    if (!job->goes_on()) continue;
    for (const auto id : job->ready) {
      const auto& teams = job->teams(id);
      const bool has_room = std::all_of(teams.begin(), teams.end(), [&](const Team* team) {
        return team->most() < limits_.window;
      });
      if (!has_room && std::none_of(teams.begin(), teams.end(), [&](const Team* team) {
            return team->fewest() < limits_.window;
          }))
        continue;
      some_has_room |= has_room;
      candidates_.push_back({.job = job,
                             .id = id,
                             .task = &job->graph.tasks[id],
                             .teams = &teams,
                             .has_room = has_room});
    }
  }
  if (!some_has_room) return false;
  bool some_may_go = false;
  for (auto& candidate : candidates_) {
    if (!candidate.has_room) continue;
    expect(candidate);
    some_may_go |= candidate.may_go();
  }
  if (!some_may_go) return false;
  for (auto& candidate : candidates_) {
    if (!candidate.has_room) expect(candidate);
  }
  return true;
}

/// When the candidate would start, if it were issued now, and how long it would take.
void Neighbourhood::expect(Candidate& candidate) {
  ScheduledJob& job = *candidate.job;
  bool few = true;
  double start = now_;
  for (const Team* team : *candidate.teams) {
    few &= team->most_of(job) < limits_.job_always;
    if (team->queue.empty()) continue;
    const auto& last = team->queue.back().what;
    forecast(last);
    start = std::max(start, last.job->progress[last.task].finish);
  }
  for (const auto before : candidate.task->predecessors) {
    forecast({&job, before});
    start = std::max(start, job.progress[before].finish);
  }
  const auto& progress = job.progress[candidate.id];
  const auto estimate = speeds_.estimate(progress.speed, candidate.task->work);
  candidate.start = start;
  candidate.cost = estimate.seconds;
  candidate.overdue = progress.passed >= kPatience;
  candidate.within_limits = few || !estimate.measured || start - now_ < limits_.ahead_seconds;
}

bool Neighbourhood::sort_before(const Candidate& a, const Candidate& b) {
  const auto key = [](const Candidate& c) {
    return std::tuple(-c.job->priority, !c.overdue, c.overdue ? 0.0 : c.rank_start,
                      c.job->share->service, !c.feeds, c.job->age, c.id);
  };
  return key(a) < key(b);
}

/// A job's first task has many members and is never the oldest: it would wait until the jobs before
/// it are through, whatever these leave idle. So among equals it goes first where one of its
/// members has nothing else to begin by then.
void Neighbourhood::find_feeding() {
  ++marks_;
  for (const auto& candidate : candidates_) {
    if (candidate.task->predecessors.empty()) continue;
    for (Team* team : *candidate.teams) {
      team->next_start =
          team->mark == marks_ ? std::min(team->next_start, candidate.start) : candidate.start;
      team->mark = marks_;
    }
  }
  for (auto& candidate : candidates_) {
    if (!candidate.task->predecessors.empty()) continue;
    candidate.feeds = std::ranges::any_of(*candidate.teams, [&](const Team* team) {
      return team->mark != marks_ || team->next_start > candidate.start;
    });
  }
}

void Neighbourhood::rank() {
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
  std::sort(candidates_.begin(), candidates_.end(), sort_before);
}

bool Neighbourhood::in_the_way(const Candidate& candidate) const {
  return std::ranges::any_of(*candidate.teams, [&](const Team* team) {
    return team->closed_in == choices_ &&
           candidate.start + kMustFit * candidate.cost > team->closed_from;
  });
}

void Neighbourhood::mark(const Candidate& candidate) {
  ++marks_;
  for (Team* team : *candidate.teams)
    team->mark = marks_;
}

bool Neighbourhood::shares_marked(const Candidate& candidate) const {
  return std::ranges::any_of(*candidate.teams,
                             [&](const Team* team) { return team->mark == marks_; });
}

/// The first in order that may go, or something that is out of its way before it can start. What
/// comes first but may not go yet keeps its members free from its start on.
const Neighbourhood::Candidate* Neighbourhood::choose() {
  ++choices_;
  for (std::size_t at = 0; at < candidates_.size(); ++at) {
    const auto& first = candidates_[at];
    if (in_the_way(first)) continue;
    if (first.may_go()) {
      mark(first);
      for (std::size_t later = at + 1; later < candidates_.size(); ++later) {
        const auto& filler = candidates_[later];
        if (filler.may_go() && filler.start + kMustFit * filler.cost <= first.start &&
            shares_marked(filler) && !in_the_way(filler))
          return &filler;
      }
      return &first;
    }
    for (Team* team : *first.teams) {
      team->closed_from =
          team->closed_in == choices_ ? std::min(team->closed_from, first.start) : first.start;
      team->closed_in = choices_;
    }
  }
  return nullptr;
}

void Neighbourhood::count_passed(const Candidate& chosen) {
  mark(chosen);
  const auto deserves = [](const Candidate& c) {
    return std::pair(c.job->share->service, c.job->age);
  };
  for (const auto& other : candidates_) {
    if (&other == &chosen || !other.within_limits) continue;
    if (other.job->priority != chosen.job->priority) continue;
    if (deserves(other) < deserves(chosen) && shares_marked(other))
      ++other.job->progress[other.id].passed;
  }
}

void Neighbourhood::issue_task(const Candidate& chosen, std::vector<Issue>& out) {
  ScheduledJob& job = *chosen.job;
  const Task& task = *chosen.task;
  const QueueEntry entry{&job, chosen.id};
  auto& progress = job.progress[chosen.id];
  progress.issued = true;
  progress.unfinished = static_cast<std::uint32_t>(task.ranks.size());
  progress.place = ++places_;
  progress.issued_at = now_;
  progress.start = chosen.start;
  progress.cost = chosen.cost;
  progress.finish = chosen.start + chosen.cost;
  progress.forecast = state_;
  ++job.issued;
  ++job.unfinished_issued;
  if (job.paused) --job.steps_allowed;
  const double service = chosen.cost * static_cast<double>(task.ranks.size());
  job.service += service;
  job.share->service += service;
  std::erase(job.ready, chosen.id);
  for (const auto after : job.successors[chosen.id]) {
    if (--job.progress[after].unissued_predecessors == 0) job.ready.push_back(after);
  }
  for (Team* team : *chosen.teams)
    team->push(entry);
  wire::Command run{.job = job.id,
                    .task = chosen.id,
                    .kind = task.kind,
                    .step = task.step,
                    .patch = task.patch,
                    .part = task.part,
                    .stage = task.stage};
  for (const auto rank : task.ranks) {
    ScheduledActor& actor = *job.actor_of_rank[rank];
    actor.queue.push_back(entry);
    out.push_back({actor.id, run});
  }
  wire::Command receive = run;
  receive.receive = true;
  receive.step = task.consumer_step;
  receive.part = task.consumer_part;
  for (const auto rank : task.receivers)
    out.push_back({job.actor_of_rank[rank]->id, receive});
}

void Neighbourhood::issue(std::vector<Issue>& out) {
  while (gather()) {
    rank();
    const Candidate* chosen = choose();
    if (!chosen) return;
    count_passed(*chosen);
    issue_task(*chosen, out);
  }
}

}  // namespace troupe::schedule
