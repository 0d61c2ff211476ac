#include "controller/recorder/recorder.h"

#include <algorithm>

#include "base/format.h"
#include "transport/wire/client_messages.h"

namespace troupe::recorder {
namespace {

std::uint64_t key_of(std::uint32_t task, ActorId actor) {
  return std::uint64_t{task} << 32 | actor;
}

}  // namespace

const char* to_string(Event::Kind kind) {
  switch (kind) {
    case Event::Kind::job:
      return "job";
    case Event::Kind::issue:
      return "issue";
    case Event::Kind::done:
      return "done";
    case Event::Kind::failure:
      return "failure";
    case Event::Kind::actor:
      return "actor";
    case Event::Kind::epoch:
      return "epoch";
  }
  return "event";
}

std::string slice_name(const schedule::Task& task) {
  if (task.kind == wire::TaskKind::encode_text) return "text";
  if (task.kind == wire::TaskKind::decode) return "decode";
  std::string name = fmt::format("step {}", task.step);
  if (task.patch >= 0) name += fmt::format(" patch {}", task.patch);
  if (task.part > 0) name += fmt::format(" part {}", task.part);
  return name;
}

std::string name_of(const JobNotes& job) {
  return job.name.empty() ? fmt::format("job {}", job.job) : job.name;
}

JobNotes* Recorder::get(JobId job) {
  const auto found = jobs_.find(job);
  return found == jobs_.end() ? nullptr : &found->second;
}

const JobNotes* Recorder::find(JobId job) const {
  const auto found = jobs_.find(job);
  return found == jobs_.end() ? nullptr : &found->second;
}

Attempt* Recorder::attempt(JobId job) {
  JobNotes* notes = get(job);
  return notes && !notes->attempts.empty() ? &notes->attempts.back() : nullptr;
}

void Recorder::submitted(JobId job, const std::string& prompt, Nanoseconds now) {
  JobNotes& notes = jobs_[job];
  notes.job = job;
  notes.prompt = prompt;
  notes.phases = {{JobPhase::queued, now}};
  note(Event::Kind::job, job, std::nullopt, "submitted", now);
}

void Recorder::withdrawn(JobId job, const std::string& why, Nanoseconds now) {
  if (jobs_.erase(job) > 0) note(Event::Kind::job, job, std::nullopt, "not taken in: " + why, now);
}

void Recorder::joined(JobId batch, const std::string& name, const std::string& jobs,
                      Nanoseconds now) {
  JobNotes& notes = jobs_[batch];
  notes.job = batch;
  notes.name = name;
  notes.prompt = jobs;
  notes.phases = {{JobPhase::queued, now}};
  note(Event::Kind::job, batch, std::nullopt, "begins as one", now);
}

void Recorder::phase(JobId job, JobPhase phase, Nanoseconds now) {
  JobNotes* notes = get(job);
  if (!notes || notes->ended) return;
  if (!notes->phases.empty() && notes->phases.back().phase == phase) return;
  notes->phases.push_back({phase, now});
  note(Event::Kind::job, job, std::nullopt, to_string(phase), now);
}

void Recorder::began(JobId job, std::uint64_t epoch, schedule::TaskGraph graph,
                     std::vector<ActorId> actor_of_rank, Nanoseconds now) {
  JobNotes& notes = jobs_[job];
  notes.job = job;
  if (notes.attempts.size() >= limits_.attempts) {
    forget(notes.attempts.front());
    notes.attempts.pop_front();
  }
  Attempt attempt;
  attempt.epoch = epoch;
  attempt.began = now;
  attempt.graph = std::move(graph);
  attempt.actor_of_rank = std::move(actor_of_rank);
  all_tasks_ += attempt.graph.tasks.size();
  notes.attempts.push_back(std::move(attempt));
  forget_graphs(notes.attempts.back());
  if (notes.attempts.size() > 1) ++recoveries_;
  note(Event::Kind::epoch, job, std::nullopt, fmt::format("begins in epoch {}", epoch), now);
}

void Recorder::issued(JobId job, std::uint32_t task, ActorId actor, Nanoseconds now) {
  Attempt* attempt = this->attempt(job);
  if (!attempt || task >= attempt->graph.tasks.size()) return;
  attempt->open[key_of(task, actor)] = attempt->dropped + attempt->notes.size();
  attempt->notes.push_back({.task = task, .actor = actor, .issued = now, .ran = {}, .waits = {}});
  ++all_notes_;
  forget_notes(*attempt);
  keep({.at = now,
        .kind = Event::Kind::issue,
        .job = job,
        .name = {},
        .actor = actor,
        .text = {},
        .task = schedule::name_of(attempt->graph.tasks[task])});
}

void Recorder::done(ActorId actor, const wire::TaskDone& done, Nanoseconds now) {
  Attempt* attempt = this->attempt(done.job);
  if (!attempt || attempt->epoch != done.epoch || done.task >= attempt->graph.tasks.size()) return;
  const auto place = attempt->open.extract(key_of(done.task, actor));
  if (place.empty() || place.mapped() < attempt->dropped) return;
  TaskNote* found = &attempt->notes[place.mapped() - attempt->dropped];
  const auto offset = clock_offset(actor);
  const auto here = [&](wire::ClockSpan span) {
    return wire::ClockSpan{span.begin_ns + offset, span.end_ns + offset};
  };
  // An actor's word is not trusted to be in order.
  wire::ClockSpan ran = here(done.ran);
  ran.end_ns = std::max(ran.begin_ns, ran.end_ns);
  found->ran = ran;
  auto& totals = totals_[attempt->graph.tasks[done.task].kind];
  Nanoseconds from = ran.begin_ns;
  for (const auto& span : done.waits) {
    auto wait = here(span);
    wait.begin_ns = std::clamp(wait.begin_ns, from, ran.end_ns);
    wait.end_ns = std::clamp(wait.end_ns, wait.begin_ns, ran.end_ns);
    from = wait.end_ns;
    totals.wait_seconds += seconds(wait.end_ns - wait.begin_ns);
    found->waits.push_back(wait);
  }
  ++totals.tasks;
  totals.seconds += seconds(ran.end_ns - ran.begin_ns);
  const auto& task = attempt->graph.tasks[done.task];
  slices_.push_back(
      {++last_slice_, actor, done.job, task.kind, task.step, task.patch, ran, found->waits});
  if (slices_.size() > limits_.slices) slices_.pop_front();
  keep({.at = now,
        .kind = Event::Kind::done,
        .job = done.job,
        .name = {},
        .actor = actor,
        .text = {},
        .task = schedule::name_of(task)});
}

void Recorder::failed(JobId job, ActorId actor, const std::string& where, Nanoseconds now) {
  note(Event::Kind::failure, job, actor, where, now);
}

namespace {

std::string end_text(JobState state, const std::string& why) {
  return to_string(state) + (why.empty() ? "" : ": " + why);
}

}  // namespace

void Recorder::ended(JobId job, JobState state, const std::string& why, Nanoseconds now) {
  if (JobNotes* notes = get(job); notes && !notes->ended) {
    notes->ended = now;
    notes->state = state;
    ++ended_[state];
    if (state == JobState::succeeded) count_seconds(*notes);
    forget_ended(job);
  }
  note(Event::Kind::job, job, std::nullopt, end_text(state, why), now);
}

void Recorder::closed(JobId batch, JobState state, const std::string& why, Nanoseconds now) {
  if (JobNotes* notes = get(batch); notes && !notes->ended) {
    notes->ended = now;
    notes->state = state;
    forget_ended(batch);
  }
  note(Event::Kind::job, batch, std::nullopt, "is over: " + end_text(state, why), now);
}

void Recorder::count_seconds(const JobNotes& notes) {
  std::map<JobPhase, double> by_phase;  // a job that began again has a phase twice
  double whole = 0;
  for (std::size_t i = 0; i < notes.phases.size(); ++i) {
    const auto end = i + 1 < notes.phases.size() ? notes.phases[i + 1].began : *notes.ended;
    const double passed = seconds(end - notes.phases[i].began);
    by_phase[notes.phases[i].phase] += passed;
    whole += passed;
  }
  job_seconds_.add(whole);
  for (const auto& [phase, passed] : by_phase)
    phase_seconds_.try_emplace(phase, kPhaseBounds).first->second.add(passed);
}

void Recorder::cost(const wire::ActorJobStats& stats,
                    const std::map<std::uint32_t, std::string>& names) {
  prompts_.encoded += stats.prompts_encoded;
  prompts_.from_cache += stats.prompts_from_cache;
  bytes_.tensors_sent += stats.tensor_bytes_sent;
  bytes_.tensors_received += stats.tensor_bytes_received;
  for (const auto& [id, bytes] : stats.sent_by_group)
    if (const auto name = names.find(id); name != names.end())
      bytes_.sent_by_group[name->second] += bytes;
}

void Recorder::note(Event::Kind kind, JobId job, std::optional<ActorId> actor,
                    const std::string& text, Nanoseconds now) {
  constexpr std::size_t kLongest = 2000;
  keep({.at = now,
        .kind = kind,
        .job = job,
        .name = {},
        .actor = actor,
        .text = text.substr(0, kLongest),
        .number = ++said_});
}

void Recorder::keep(Event event) {
  if (const JobNotes* notes = find(event.job)) event.name = notes->name;
  events_.push_back(std::move(event));
  if (events_.size() > limits_.events) events_.pop_front();
}

void Recorder::clock_reading(ActorId actor, std::uint64_t incarnation, Nanoseconds sent,
                             Nanoseconds received, Nanoseconds actors) {
  const auto way = received - sent;
  auto& clock = clocks_[actor];
  if (clock.incarnation == incarnation && way >= clock.way) return;
  const bool same = sent <= actors && actors <= received;
  clock = {incarnation, way, same ? 0 : sent + way / 2 - actors};
}

Nanoseconds Recorder::clock_offset(ActorId actor) const {
  const auto found = clocks_.find(actor);
  return found == clocks_.end() ? 0 : found->second.offset;
}

std::vector<Recorder::LogLine> Recorder::lines(std::uint64_t after, std::size_t limit,
                                               std::uint64_t& last) const {
  last = said_;
  std::vector<LogLine> lines;
  for (auto event = events_.rbegin(); event != events_.rend() && lines.size() < limit; ++event) {
    if (event->number == 0) continue;
    if (event->number <= after) break;
    std::string who;
    if (!event->name.empty())
      who += event->name + " ";
    else if (event->job != 0)
      who += fmt::format("job {} ", event->job);
    if (event->actor) who += fmt::format("actor {} ", *event->actor);
    if (!who.empty()) who.back() = ':';
    lines.push_back({event->at, who.empty() ? event->text : who + " " + event->text});
  }
  std::reverse(lines.begin(), lines.end());
  return lines;
}

void Recorder::forget_ended(JobId newest) {
  ended_jobs_.push_back(newest);
  if (ended_jobs_.size() <= limits_.jobs) return;
  const auto oldest = jobs_.find(ended_jobs_.front());
  ended_jobs_.pop_front();
  for (const Attempt& attempt : oldest->second.attempts)
    forget(attempt);
  jobs_.erase(oldest);
}

void Recorder::forget(const Attempt& attempt) {
  all_notes_ -= attempt.notes.size();
  all_tasks_ -= attempt.graph.tasks.size();
}

void Recorder::forget_graphs(const Attempt& newest) {
  for (auto& [id, notes] : jobs_) {
    // The newest attempt of a job that runs stays: its tasks are still to be noted.
    const std::size_t kept = notes.ended ? 0 : 1;
    while (all_tasks_ > limits_.tasks && notes.attempts.size() > kept &&
           &notes.attempts.front() != &newest) {
      forget(notes.attempts.front());
      notes.attempts.pop_front();
    }
  }
}

void Recorder::forget_notes(Attempt& attempt) {
  if (attempt.notes.size() > limits_.notes) {
    const auto& oldest = attempt.notes.front();
    if (!oldest.ran) attempt.open.erase(key_of(oldest.task, oldest.actor));
    attempt.notes.pop_front();
    ++attempt.dropped;
    --all_notes_;
  }
  for (auto& [id, notes] : jobs_) {
    if (all_notes_ <= limits_.all_notes) return;
    for (Attempt& old : notes.attempts) {
      if (&old == &attempt) continue;
      all_notes_ -= old.notes.size();
      old.dropped += old.notes.size();
      old.notes.clear();
      old.open.clear();
    }
  }
}

}  // namespace troupe::recorder
