#include "controller/schedule/neighbourhood.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <tuple>

namespace troupe::schedule {

namespace {

/// Part of the first task's duration within which tasks that can start count as equally early.
constexpr double kAboutAsEarly = 0.1;
/// Part of a task's duration that must fit into the time that would pass idle otherwise, so that
/// the task may go before one that comes first.
constexpr double kMustFit = 0.75;
/// Number of times that less deserving tasks are put before a task; then it is not passed over
/// again.
constexpr std::uint32_t kPatience = 8;

}  // namespace

// A team.

int Team::fewest() const {
  const auto begun = std::find_if(queue.rbegin(), queue.rend(),
                                  [](const Entry& entry) { return !entry.finished.empty(); });
  return static_cast<int>(begun - queue.rbegin());
}

int Team::most_of(const ScheduledJob& job) const {
  return static_cast<int>(std::count_if(
      queue.begin(), queue.end(), [&](const Entry& entry) { return entry.what.job == &job; }));
}

double Team::head_reached() {
  const auto waits = [this](const ScheduledActor* actor) {
    return !actor->queue.empty() && actor->queue.front() == queue.front().what;
  };
  while (!arrived.empty() && !waits(arrived.back()))
    arrived.pop_back();
  return arrived.empty() ? 0 : arrived.back()->clock;
}

void Team::push(const QueueEntry& what) {
  queue.push_back({what, static_cast<std::uint32_t>(members.size()), {}});
  if (members.size() > 1) queue.back().finished.reserve(members.size());
}

void Team::finish(const QueueEntry& what, ScheduledActor& member) {
  const auto entry = std::find_if(queue.begin(), queue.end(),
                                  [&](const Entry& queued) { return queued.what == what; });
  if (members.size() > 1) entry->finished.push_back(&member);
  if (--entry->unfinished > 0) return;
  if (entry == queue.begin() && members.size() > 1) arrived = std::move(entry->finished);
  queue.erase(entry);
}

// Who belongs together.

void Neighbourhood::add(ScheduledJob& job) {
  job.neighbourhood = this;
  jobs_.push_back(&job);
  for (ScheduledActor* actor : job.actor_of_rank) {
    if (!actor->neighbourhood) actor->clock = now_;
    actor->neighbourhood = this;
  }
}

void Neighbourhood::absorb(const Neighbourhood& other) {
  const double ahead = now_ - other.now_;
  places_ = std::max(places_, other.places_);
  for (ScheduledJob* job : other.jobs_) {
    for (auto& progress : job->progress) {
      progress.issued_at += ahead;
      progress.start += ahead;
      progress.finish += ahead;
    }
    add(*job);
  }
  for (const auto& team : other.teams_) {
    for (ScheduledActor* actor : team.members)
      actor->clock += ahead;
  }
}

void Neighbourhood::remove(ScheduledJob& job) {
  for (ScheduledActor* actor : job.actor_of_rank) {
    std::erase_if(actor->queue, [&](const auto& entry) { return entry.job == &job; });
    actor->neighbourhood = nullptr;
    actor->team = nullptr;
  }
  std::erase(jobs_, &job);
}

std::vector<std::unique_ptr<Neighbourhood>> Neighbourhood::arrange() {
  std::vector<std::unique_ptr<Neighbourhood>> others;
  auto connected = connected_jobs();
  if (connected.size() > 1) {
    jobs_ = std::move(connected.front());
    for (std::size_t i = 1; i < connected.size(); ++i) {
      auto& other = others.emplace_back(std::make_unique<Neighbourhood>(limits_, speeds_));
      other->now_ = now_;
      other->places_ = places_;
      other->jobs_ = std::move(connected[i]);
      for (ScheduledJob* job : other->jobs_)
        job->neighbourhood = other.get();
      other->make_teams();
    }
  }
  make_teams();
  return others;
}

std::vector<std::vector<ScheduledJob*>> Neighbourhood::connected_jobs() const {
  std::vector<std::size_t> leader(jobs_.size());
  std::iota(leader.begin(), leader.end(), 0);
  const auto leader_of = [&](std::size_t job) {
    while (leader[job] != job)
      job = leader[job] = leader[leader[job]];
    return job;
  };
  std::map<const ScheduledActor*, std::size_t> first_job;
  for (std::size_t job = 0; job < jobs_.size(); ++job) {
    for (const auto* actor : jobs_[job]->actor_of_rank) {
      const auto [first, fresh] = first_job.try_emplace(actor, job);
      if (fresh) continue;
      const auto [low, high] = std::minmax({leader_of(first->second), leader_of(job)});
      leader[high] = low;
    }
  }
  std::map<std::size_t, std::vector<ScheduledJob*>> by_leader;
  for (std::size_t job = 0; job < jobs_.size(); ++job)
    by_leader[leader_of(job)].push_back(jobs_[job]);
  std::vector<std::vector<ScheduledJob*>> connected;
  for (auto& [first, jobs] : by_leader)
    connected.push_back(std::move(jobs));
  return connected;
}

void Neighbourhood::make_teams() {
  using Memberships = std::vector<std::pair<JobId, std::size_t>>;  // job, which of its rank sets
  std::map<ActorId, std::pair<ScheduledActor*, Memberships>> actors;
  for (const ScheduledJob* job : jobs_) {
    for (ScheduledActor* actor : job->actor_of_rank)
      actors[actor->id].first = actor;
    for (std::size_t set = 0; set < job->rank_sets.size(); ++set) {
      for (const auto rank : job->rank_sets[set])
        actors[job->actor_of_rank[rank]->id].second.emplace_back(job->id, set);
    }
  }
  std::map<Memberships, std::vector<ScheduledActor*>> alike;
  for (auto& [id, actor] : actors)
    alike[std::move(actor.second)].push_back(actor.first);
  teams_.clear();
  teams_.reserve(alike.size());
  for (auto& [memberships, members] : alike) {
    Team& team = teams_.emplace_back();
    team.members = std::move(members);
    for (ScheduledActor* actor : team.members) {
      actor->team = &team;
      actor->neighbourhood = this;
    }
  }
  for (ScheduledJob* job : jobs_) {
    job->teams_of_set.assign(job->rank_sets.size(), {});
    for (std::size_t set = 0; set < job->rank_sets.size(); ++set) {
      ++marks_;
      for (const auto rank : job->rank_sets[set]) {
        Team* team = job->actor_of_rank[rank]->team;
        if (team->mark == marks_) continue;
        team->mark = marks_;
        job->teams_of_set[set].push_back(team);
      }
    }
  }
  fill_queues();
  ++state_;
}

/// Fills the teams' queues with what lies at their members.
void Neighbourhood::fill_queues() {
  for (auto& team : teams_) {
    team.arrived = team.members;
    std::stable_sort(team.arrived.begin(), team.arrived.end(),
                     [](const auto* a, const auto* b) { return a->clock < b->clock; });
    std::map<std::uint64_t, QueueEntry> by_place;
    for (const auto* actor : team.members) {
      for (const auto& entry : actor->queue)
        by_place.emplace(entry.job->progress[entry.task].place, entry);
    }
    for (const auto& [place, what] : by_place) {
      team.push(what);
      auto& entry = team.queue.back();
      for (ScheduledActor* actor : team.arrived) {
        if (std::find(actor->queue.begin(), actor->queue.end(), what) == actor->queue.end())
          entry.finished.push_back(actor);
      }
      entry.unfinished -= static_cast<std::uint32_t>(entry.finished.size());
    }
  }
}

// What happens.

bool Neighbourhood::finish(ScheduledActor& actor, const QueueEntry& what,
                           std::optional<double> seconds) {
  ScheduledJob& job = *what.job;
  auto& progress = job.progress[what.task];
  forecast(what);
  now_ = std::max(now_, progress.start + seconds.value_or(progress.cost));
  actor.clock = now_;
  actor.queue.erase(std::find(actor.queue.begin(), actor.queue.end(), what));
  actor.team->finish(what, actor);
  progress.measured = std::max(progress.measured, seconds.value_or(0));
  ++state_;
  if (--progress.unfinished > 0) return false;
  progress.done = true;
  progress.finish = now_;
  speeds_.learn(progress.speed, job.graph.tasks[what.task].work, progress.measured);
  --job.unfinished_issued;
  ++job.done;
  return true;
}

/// Computes when an issued task starts and ends on the virtual clock, if each starts when all its
/// members have come to it and what it waits for is done. A task that should be done by now ends
/// now. Looks only at what lies before it.
void Neighbourhood::forecast(const QueueEntry& entry) {
  ScheduledJob& job = *entry.job;
  auto& progress = job.progress[entry.task];
  if (progress.done || progress.forecast == state_) return;
  double start = progress.issued_at;
  for (Team* team : job.teams(entry.task))
    start = std::max(start, free_for(*team, entry));
  for (const auto before : job.graph.tasks[entry.task].predecessors) {
    forecast({&job, before});
    start = std::max(start, job.progress[before].finish);
  }
  progress.start = start;
  progress.finish = std::max(start + progress.cost, now_);
  progress.forecast = state_;
}

/// Returns when those of the team's members that have not finished an issued task come to it.
double Neighbourhood::free_for(Team& team, const QueueEntry& entry) {
  const auto at = std::find_if(team.queue.begin(), team.queue.end(),
                               [&](const Team::Entry& queued) { return queued.what == entry; });
  if (at == team.queue.end()) return 0;
  if (at == team.queue.begin()) return team.head_reached();
  const auto& previous = (at - 1)->what;
  forecast(previous);
  return previous.job->progress[previous.task].finish;
}

// What is issued next.

/// Gathers all tasks that an actor with room might be given next, also those that have to wait for
/// room at another actor: these keep their room. False when none may go, whatever their order.
bool Neighbourhood::gather() {
  candidates_.clear();
  bool some_has_room = false;
  for (ScheduledJob* job : jobs_) {
    for (const auto id : job->ready) {
      if (!job->may_go(id)) continue;
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

/// Computes when the candidate would start, if it were issued now, and how long it would take.
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

/// Finds candidates that feed idle members. A job's first task has many members and is never the
/// oldest: it would wait until the jobs before it are through, whatever these leave idle. So among
/// equals it goes first where one of its members has nothing else to begin by then.
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

/// Chooses the first candidate in order that may go, or one that is out of its way before it can
/// start. A candidate that comes first but may not go yet keeps its members free from its start on.
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
  if (!job.is_free(chosen.id)) --job.steps_allowed;
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

namespace {

/// Seconds of a token through one block, when nothing is known.
constexpr double kGuess = 1e-6;
/// Weight of the newest measurement.
constexpr double kNewest = 0.25;

double units(double work) {
  return std::max(work, 1.0);
}

}  // namespace

void TaskSpeeds::Rate::take(double sample) {
  seconds_per_unit =
      seconds_per_unit == 0 ? sample : seconds_per_unit + kNewest * (sample - seconds_per_unit);
}

TaskSpeeds::Class TaskSpeeds::class_of(std::uint64_t machine, const Task& task) {
  const auto [found, unknown] = machines_.try_emplace(machine);
  auto& known = found->second;
  known.used = ++uses_;
  if (unknown && machines_.size() > kMachines) {
    machines_.erase(std::ranges::min_element(machines_, {},
                                             [](const auto& entry) { return entry.second.used; }));
  }
  auto& of = known.classes[{task.kind, task.stage, task.patch<0, task.work> 0}];
  if (!of) of = std::make_shared<Entry>(Entry{.rate = {}, .mean = known.mean});
  return of;
}

TaskSpeeds::Estimate TaskSpeeds::estimate(const Class& of, double work) {
  if (of->rate.seconds_per_unit > 0) return {units(work) * of->rate.seconds_per_unit, true};
  const double mean = of->mean->seconds_per_unit;
  return {units(work) * (mean > 0 ? mean : kGuess), false};
}

void TaskSpeeds::learn(const Class& of, double work, double seconds) {
  if (!(seconds > 0) || !std::isfinite(seconds)) return;
  of->rate.take(seconds / units(work));
  if (work > 0) of->mean->take(seconds / units(work));
}

}  // namespace troupe::schedule
