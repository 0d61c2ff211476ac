#include "controller/recorder/documents.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/format.h"

namespace troupe::recorder {

namespace {

using nlohmann::json;

constexpr int kController = 1;  // "pid" of its row; hosts follow

class TraceWriter {
 public:
  TraceWriter(const std::vector<const JobNotes*>& jobs, const TraceFacts& facts)
      : facts_(facts), several_(jobs.size() > 1) {
    origin_ = facts.now;
    for (const JobNotes* job : jobs) {
      if (!job->phases.empty()) origin_ = std::min(origin_, job->phases.front().began);
      for (const Attempt& attempt : job->attempts)
        origin_ = std::min(origin_, attempt.began);
    }
    name_rows();
    for (const JobNotes* job : jobs) {
      write_phases(*job);
      for (const Attempt& attempt : job->attempts)
        write_attempt(*job, attempt);
    }
  }

  std::string text() const {
    return R"({"displayTimeUnit":"ms","traceEvents":[)" + events_ + "]}\n";
  }

 private:
  double microseconds(Nanoseconds time) const { return static_cast<double>(time - origin_) * 1e-3; }

  void add(const json& event) {
    if (!events_.empty()) events_ += ",\n";
    events_ += event.dump(-1, ' ', false, json::error_handler_t::replace);
  }

  void name_rows() {
    const auto name = [&](const char* what, int pid, int tid, const std::string& text) {
      add({{"ph", "M"}, {"name", what}, {"pid", pid}, {"tid", tid}, {"args", {{"name", text}}}});
    };
    name("process_name", kController, 0,
         fmt::format("controller on {} (pid {})", facts_.controller_host, facts_.controller_pid));
    for (const auto& [id, actor] : facts_.actors) {
      if (!hosts_.contains(actor.host)) {
        const int pid = kController + 1 + static_cast<int>(hosts_.size());
        hosts_[actor.host] = pid;
        name("process_name", pid, 0, "host " + actor.host);
      }
      const int tid = static_cast<int>(id) + 1;
      name("thread_name", hosts_[actor.host], tid,
           fmt::format("actor {} ({}, pid {})", id, actor.device, actor.pid));
      add({{"ph", "M"},
           {"name", "thread_sort_index"},
           {"pid", hosts_[actor.host]},
           {"tid", tid},
           {"args", {{"sort_index", id}}}});
    }
  }

  void slice(int pid, int tid, const std::string& name, const char* category, Nanoseconds begin,
             Nanoseconds end, json arguments) {
    add({{"ph", "X"},
         {"name", name},
         {"cat", category},
         {"pid", pid},
         {"tid", tid},
         {"ts", microseconds(begin)},
         {"dur", static_cast<double>(end - begin) * 1e-3},
         {"args", std::move(arguments)}});
  }

  void write_phases(const JobNotes& job) {
    const int tid = static_cast<int>(job.job);
    add({{"ph", "M"},
         {"name", "thread_name"},
         {"pid", kController},
         {"tid", tid},
         {"args", {{"name", name_of(job)}}}});
    for (std::size_t i = 0; i < job.phases.size(); ++i) {
      const auto end =
          i + 1 < job.phases.size() ? job.phases[i + 1].began : job.ended.value_or(facts_.now);
      slice(kController, tid, to_string(job.phases[i].phase), "phase", job.phases[i].began,
            std::max(end, job.phases[i].began), {{"job", job.job}, {"prompt", job.prompt}});
    }
    const auto instant = [&](const std::string& name, Nanoseconds at) {
      add({{"ph", "i"},
           {"s", "t"},
           {"name", name},
           {"cat", "job"},
           {"pid", kController},
           {"tid", tid},
           {"ts", microseconds(at)}});
    };
    for (const Attempt& attempt : job.attempts)
      instant(fmt::format("epoch {}", attempt.epoch), attempt.began);
    if (job.ended) instant(to_string(job.state), *job.ended);
  }

  void write_attempt(const JobNotes& job, const Attempt& attempt) {
    using Key = std::pair<std::uint32_t, ActorId>;
    std::map<Key, const TaskNote*> done;
    for (const TaskNote& note : attempt.notes) {
      const auto actor = facts_.actors.find(note.actor);
      if (!note.ran || actor == facts_.actors.end()) continue;
      done[{note.task, note.actor}] = &note;
      const auto& task = attempt.graph.tasks[note.task];
      const int pid = hosts_.at(actor->second.host);
      const int tid = static_cast<int>(note.actor) + 1;
      const auto ran = *note.ran;
      std::string name = slice_name(task);
      // Of a batch without its jobs, which the row names: a slice has little room.
      const auto row = fmt::format("{}{}", job.name.empty() ? "job " : "batch ", job.job);
      if (several_) name = row + " " + name;
      static constexpr const char* kCategories[] = {"text", "micro_step", "decode"};
      slice(pid, tid, name, kCategories[static_cast<int>(task.kind)], ran.begin_ns, ran.end_ns,
            {{"job", job.job},
             {"task", note.task},
             {"stage", task.stage},
             {"replica", task.dp},
             {"epoch", attempt.epoch},
             {"issued_us", microseconds(note.issued)},
             {"in_mailbox_us",
              static_cast<double>(std::max<Nanoseconds>(0, ran.begin_ns - note.issued)) * 1e-3}});
      for (const auto& wait : note.waits)
        slice(pid, tid, "wait", "wait", wait.begin_ns, wait.end_ns, json::object());
    }
    write_arrows(attempt, done);
  }

  /// Writes an arrow from the stage that sent a tensor to the micro-step that took it.
  void write_arrows(const Attempt& attempt,
                    const std::map<std::pair<std::uint32_t, ActorId>, const TaskNote*>& done) {
    std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t, std::int32_t>, std::uint32_t>
        takers;  // step, patch, part, rank → task
    const auto& tasks = attempt.graph.tasks;
    for (std::uint32_t id = 0; id < tasks.size(); ++id) {
      if (tasks[id].kind != wire::TaskKind::micro_step) continue;
      for (const auto rank : tasks[id].ranks)
        takers[{tasks[id].step, tasks[id].patch, tasks[id].part, rank}] = id;
    }
    const auto taker_of = [&](const schedule::Task& task, std::int32_t rank) {
      auto found = takers.find({task.consumer_step, task.patch, task.consumer_part, rank});
      // After the last synchronous step the first patch takes the whole picture.
      if (found == takers.end() && task.patch < 0)
        found = takers.find({task.consumer_step, 0, 0, rank});
      return found;
    };
    const auto note_of = [&](std::uint32_t task, std::int32_t rank) -> const TaskNote* {
      const auto found = done.find({task, attempt.actor_of_rank.at(rank)});
      return found == done.end() ? nullptr : found->second;
    };
    for (std::uint32_t id = 0; id < tasks.size(); ++id) {
      const auto& task = tasks[id];
      for (std::size_t i = 0; i < task.receivers.size(); ++i) {
        const auto taker = taker_of(task, task.receivers[i]);
        const TaskNote* from = note_of(id, task.ranks[i % task.ranks.size()]);
        const TaskNote* to =
            taker == takers.end() ? nullptr : note_of(taker->second, task.receivers[i]);
        if (from && to) arrow(*from, *to);
      }
    }
  }

  void arrow(const TaskNote& from, const TaskNote& to) {
    const auto arrives = std::clamp(from.ran->end_ns, to.ran->begin_ns, to.ran->end_ns);
    const auto leaves = std::min(from.ran->end_ns, arrives);
    if (leaves < from.ran->begin_ns) return;  // clocks that disagree by more than a task
    const auto end = [&](const char* phase, const TaskNote& note, Nanoseconds at) {
      json event = {{"ph", phase},
                    {"name", "tensor"},
                    {"cat", "tensor"},
                    {"id", arrows_},
                    {"pid", hosts_.at(facts_.actors.at(note.actor).host)},
                    {"tid", static_cast<int>(note.actor) + 1},
                    {"ts", microseconds(at)}};
      if (*phase == 'f') event["bp"] = "e";
      add(std::move(event));
    };
    ++arrows_;
    end("s", from, leaves);
    end("f", to, arrives);
  }

  const TraceFacts& facts_;
  bool several_;
  Nanoseconds origin_ = 0;
  std::string events_;  // parted by commas
  std::map<std::string, int> hosts_;
  std::uint64_t arrows_ = 0;
};

}  // namespace

std::string chrome_trace(const std::vector<const JobNotes*>& jobs, const TraceFacts& facts) {
  return TraceWriter(jobs, facts).text();
}

namespace {

using nlohmann::json;

json unfinished_tasks(const JobNotes& job, Nanoseconds now) {
  json rows = json::array();
  if (job.attempts.empty()) return rows;
  const Attempt& attempt = job.attempts.back();
  for (const TaskNote& note : attempt.notes) {
    if (note.ran) continue;
    rows.push_back({{"task", note.task},
                    {"name", schedule::describe(attempt.graph.tasks.at(note.task))},
                    {"actor", note.actor},
                    {"issued", seconds(note.issued - now)}});
  }
  return rows;
}

}  // namespace

std::string flight_record(const Recorder& recorder, JobId id, JobId run, const std::string& failure,
                          Nanoseconds now) {
  json document = {{"job", id}, {"failure", failure}};
  if (const JobNotes* job = recorder.find(id)) {
    document["prompt"] = job->prompt;
    for (const auto& phase : job->phases)
      document["phases"].push_back(
          {{"phase", to_string(phase.phase)}, {"began", seconds(phase.began - now)}});
  }
  if (const JobNotes* job = recorder.find(run)) {
    if (!job->name.empty()) document["batch"] = job->name;
    for (const auto& attempt : job->attempts) {
      document["epochs"].push_back({{"epoch", attempt.epoch},
                                    {"began", seconds(attempt.began - now)},
                                    {"actors", attempt.actor_of_rank}});
    }
    document["unfinished"] = unfinished_tasks(*job, now);
  }
  document["events"] = json::array();
  for (const Event& event : recorder.events()) {
    json row = {{"at", seconds(event.at - now)}, {"event", to_string(event.kind)}};
    if (event.job != 0) row["job"] = event.job;
    if (!event.name.empty()) row["batch"] = event.name;
    if (event.actor) row["actor"] = *event.actor;
    row["what"] = event.what();
    document["events"].push_back(std::move(row));
  }
  return document.dump(1, ' ', false, json::error_handler_t::replace) + "\n";
}

std::string own_part(const std::string& record, JobId job, JobId run) {
  auto document = json::parse(record);
  auto& events = document.at("events").get_ref<json::array_t&>();
  std::erase_if(events, [&](const json& event) {
    const JobId whose = event.value("job", JobId{0});
    return whose == 0 || (whose != job && whose != run);
  });
  return document.dump();
}

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
