#include "controller/service/introspection.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <future>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <system_error>
#include <type_traits>

#include "base/files.h"
#include "base/format.h"
#include "controller/jobs/batching.h"
#include "controller/plan/machine_json.h"
#include "controller/recorder/documents.h"
#include "controller/service/permissions.h"
#include "transport/wire/done.h"
#include "transport/wire/request_fields.h"

namespace troupe::service {
namespace {

using wire::FailureCode;

constexpr control::Milliseconds kClockDeadline{2'000};
constexpr double kClockInterval = 10;
constexpr int kFirstReadings = 4;

std::string name_of(jobs::JobId job) {
  return fmt::format("job {}", job);
}

std::string name_of_actor(std::uint32_t actor) {
  return fmt::format("actor {}", actor);
}

/// Returns "step 5 patch 1", "decode".
std::string text_of(const wire::HoldPoint& at) {
  std::string text = to_string(at.phase);
  if (at.step >= 0) text += fmt::format(" {}", at.step);
  if (at.patch >= 0) text += fmt::format(" patch {}", at.patch);
  return text;
}

/// Returns what becomes of an actor by a fault that it meets itself.
std::string text_of(const wire::InjectFault& fault, const cluster::Actor& actor) {
  std::string what = "throws in its next task";
  if (fault.fault == wire::FaultKind::not_finite) what = "meets a NaN in its next micro-step";
  if (fault.fault == wire::FaultKind::delay)
    what = fmt::format("begins its next task {:g} s later", fault.seconds);
  if (fault.fault == wire::FaultKind::device_error) what = "loses its device in its next task";
  if (fault.fault == wire::FaultKind::hold)
    what = fmt::format("is held when it comes to {}, for {:g} s at most", text_of(fault.at),
                       fault.seconds);
  if (fault.fault == wire::FaultKind::release) return actor.held ? "goes on" : "will not be held";
  if (actor.jobs.empty()) what += "; it has no job now: this waits for its next one";
  return what;
}

}  // namespace

recorder::Nanoseconds Introspection::now() const {
  return recorder::nanoseconds(tools_.environment.now());
}

void Introspection::refuse(const Asker& asker, FailureCode code, const std::string& why) {
  reply(asker, wire::Failure{code, why});
}

const jobs::JobEntry* Introspection::job_for(const Asker& asker, jobs::JobId id) {
  return service::job_for(tools_.server, tools_.table, asker.peer, asker.header, id);
}

const cluster::Actor* Introspection::ready_actor(const Asker& asker, std::uint32_t id) {
  const auto& all = tools_.members.all();
  const auto found = all.find(id);
  if (found == all.end()) {
    refuse(asker, FailureCode::not_found, name_of_actor(id) + " is not known here");
    return nullptr;
  }
  if (found->second.state != ActorState::ready) {
    refuse(asker, FailureCode::lost, name_of_actor(id) + " is " + to_string(found->second.state));
    return nullptr;
  }
  return &found->second;
}

template <class Answer, class M>
void Introspection::pass_on(const Asker& asker, const M& message, std::uint32_t actor) {
  const auto* member = ready_actor(asker, actor);
  if (!member) return;
  tools_.environment.request(
      member->peer, message, kActorDeadline, [this, asker, actor](const control::Reply& answer) {
        if (answer) {
          return reply(asker, answer.as<Answer>());
        }
        const auto& failure = answer.failure();
        const bool lost = failure.code == FailureCode::lost;
        refuse(
            asker, failure.code,
            name_of_actor(actor) + (lost ? " was lost before it answered" : ": " + failure.what));
      });
}

void Introspection::handle(const Asker& asker, const wire::GetMailbox& question) {
  pass_on<wire::MailboxReport>(asker, question, question.actor);
}

void Introspection::handle(const Asker& asker, wire::GetTensors question) {
  question.job = tools_.runner.run_of(question.job);
  pass_on<wire::TensorReport>(asker, question, question.actor);
}

void Introspection::handle(const Asker& asker, wire::GetSlice question) {
  question.job = tools_.runner.run_of(question.job);
  pass_on<wire::TensorSlice>(asker, question, question.actor);
}

void Introspection::handle(const Asker& asker, const wire::ControlJob& order) {
  const auto* job = job_for(asker, order.job);
  if (!job) return;
  auto& runner = tools_.runner;
  const auto name = name_of(order.job);
  if (has_ended(job->state)) {
    return refuse(
        asker, FailureCode::bad_request,
        name + " has already " +
            (job->state == JobState::cancelled ? "been cancelled" : to_string(job->state)));
  }
  if (const auto run = runner.run_of(order.job); run != order.job) {
    return refuse(asker, FailureCode::bad_request,
                  name + " computes in " + runner.name_of(run) +
                      ": who wants to stop it hands it in without " +
                      std::string(wire::kJobOptions.may_batch));
  }
  const bool begun = runner.dispatcher().has(order.job);
  if (order.action == wire::JobAction::pause) {
    if (!runner.pause(order.job))
      return refuse(asker, FailureCode::bad_request, name + " is paused already");
    return reply(asker, wire::Done{name + (begun ? " is paused; what was issued runs to its end"
                                                 : " will be paused when it begins")});
  }
  if (order.action == wire::JobAction::until) return run_until(asker, *job, order.step);
  const auto met = runner.met(order.job);
  if (order.action == wire::JobAction::until_not_finite) {
    if (!runner.stop_at_not_finite(order.job))
      return refuse(asker, FailureCode::bad_request, name + " is paused already: " + met);
    return reply(asker, wire::Done{name + " goes on until something is not finite"});
  }
  if (!runner.paused(order.job))
    return refuse(asker, FailureCode::bad_request, name + " is not paused");
  if (order.action == wire::JobAction::resume) {
    runner.resume(order.job);
    return reply(asker, wire::Done{name + (met.empty() ? " goes on" : " fails: " + met)});
  }
  const auto* notes = tools_.recorder.find(order.job);
  const auto issued = [&]() -> const recorder::TaskNote* {
    if (!notes || notes->attempts.empty() || notes->attempts.back().notes.empty()) return nullptr;
    return &notes->attempts.back().notes.back();
  };
  const auto* before = issued();
  if (!begun || !runner.step(order.job)) {
    return refuse(asker, FailureCode::bad_request,
                  name + (begun ? " has no task left to issue" : " has not begun yet"));
  }
  const auto* after = issued();
  if (!after || after == before)
    return reply(asker, wire::Done{name + ": one more task goes as soon as its actors have room"});
  reply(asker, wire::Done{name + ": " +
                          schedule::describe(notes->attempts.back().graph.tasks[after->task])});
}

void Introspection::run_until(const Asker& asker, const jobs::JobEntry& job, int step) {
  const auto name = name_of(job.id);
  const int steps = job.plan.request.steps;
  if (step < 0 || step >= steps) {
    return refuse(asker, FailureCode::bad_request,
                  fmt::format("step {}: {} has steps 0 to {}", step, name, steps - 1));
  }
  auto& runner = tools_.runner;
  const auto& dispatcher = runner.dispatcher();
  int begun = job.step - 1;
  if (dispatcher.has(job.id)) {
    const auto& tasks = dispatcher.graph(job.id).tasks;
    for (std::uint32_t id = 0; id < tasks.size(); ++id)
      if (dispatcher.is_issued(job.id, id)) begun = std::max(begun, tasks[id].step);
  }
  if (begun > step) {
    return refuse(asker, FailureCode::bad_request,
                  fmt::format("step {}: {} has {} already", step, name,
                              begun == steps ? "computed all its steps"
                                             : fmt::format("begun with step {}", begun)));
  }
  runner.pause(job.id, step);
  reply(asker, wire::Done{fmt::format("{} goes on to the end of step {}", name, step)});
}

void Introspection::handle(const Asker& asker, const wire::InjectFault& fault) {
  const auto* actor = ready_actor(asker, fault.actor);
  if (!actor) return;
  const auto name = name_of_actor(fault.actor);
  if (!std::isfinite(fault.seconds) || fault.seconds < 0 || fault.seconds > 3600)
    return refuse(asker, FailureCode::bad_request, "seconds: a number from 0 to 3600");
  const bool hold = fault.fault == wire::FaultKind::hold;
  if (hold && fault.seconds == 0)
    return refuse(asker, FailureCode::bad_request, "seconds: a hold needs more than 0");
  if (fault.at.step < -1 || fault.at.patch < -1)
    return refuse(asker, FailureCode::bad_request, "step and patch: numbers from 0");
  if ((fault.at.step >= 0 || fault.at.patch >= 0) &&
      (!hold || fault.at.phase != wire::HoldPhase::step))
    return refuse(asker, FailureCode::bad_request, "step and patch are those of a hold at a step");
  const auto note = [&](const std::string& what) {
    tools_.recorder.note(recorder::Event::Kind::actor, 0, fault.actor, "injected: " + what, now());
    return what;
  };
  switch (fault.fault) {
    case wire::FaultKind::kill:
      if (!tools_.signal(fault.actor, SIGKILL))
        return refuse(asker, FailureCode::lost, name + " has no process on this host");
      return reply(asker, wire::Done{name + " " + note("is killed")});
    case wire::FaultKind::stop: {
      if (!tools_.signal(fault.actor, SIGSTOP))
        return refuse(asker, FailureCode::lost, name + " has no process on this host");
      tools_.environment.after(fault.seconds,
                               [this, id = fault.actor, incarnation = actor->incarnation] {
                                 if (tools_.members.at(id).incarnation == incarnation)
                                   tools_.signal(id, SIGCONT);
                               });
      return reply(asker, wire::Done{name + " " +
                                     note(fmt::format("is stopped for {:g} s", fault.seconds))});
    }
    default:
      break;
  }
  const auto what = text_of(fault, *actor);
  tools_.environment.request(
      actor->peer, fault, kActorDeadline, [this, asker, name, what](const control::Reply& answer) {
        if (answer) return reply(asker, wire::Done{name + " " + what});
        refuse(asker, answer.failure().code, name + ": " + answer.failure().what);
      });
  note(what);
}

void Introspection::actor_ready(cluster::ActorId actor) {
  tools_.recorder.note(recorder::Event::Kind::actor, 0, actor, "is ready", now());
  read_clock(actor, tools_.members.at(actor).incarnation, kFirstReadings);
}

void Introspection::read_clock(cluster::ActorId id, std::uint64_t incarnation, int readings) {
  const auto& actor = tools_.members.at(id);
  if (actor.incarnation != incarnation || actor.state != ActorState::ready) return;
  tools_.environment.request(actor.peer, wire::ReadClock{}, kClockDeadline,
                             [this, id, incarnation, sent = now()](const control::Reply& answer) {
                               if (!answer) return;
                               tools_.recorder.clock_reading(
                                   id, incarnation, sent, now(),
                                   answer.as<wire::ClockReading>().monotonic_ns);
                             });
  tools_.environment.after(readings > 1 ? 0.05 : kClockInterval, [this, id, incarnation, readings] {
    read_clock(id, incarnation, std::max(1, readings - 1));
  });
}

// What the controller remembers and hands out to be read: graphs, time lines, lines that were said.

namespace {

using wire::FailureCode;

/// Returns "2026-11-21 09:41:02.123", in the time zone of the controller.
std::string time_text(std::int64_t wall_ns) {
  const std::time_t seconds = wall_ns / 1'000'000'000;
  std::tm parts{};
  localtime_r(&seconds, &parts);
  char text[40];
  const auto length = std::strftime(text, sizeof text, "%Y-%m-%d %H:%M:%S", &parts);
  std::snprintf(text + length, sizeof text - length, ".%03d",
                static_cast<int>(wall_ns / 1'000'000 % 1000));
  return text;
}

}  // namespace

void Introspection::handle(const Asker& asker, const wire::GetDocument& question) {
  const auto user = tools_.server.user(asker.peer);
  const bool own_only = user.role < control::ClientRole::all_jobs;
  const bool of_nobody =
      question.kind == wire::DocumentKind::machine || question.kind == wire::DocumentKind::metrics;
  if (own_only && !of_nobody) {
    if (question.job == 0)
      return refuse(
          asker, FailureCode::refused,
          "of which job? The key \"" + user.name + "\" has the role " + to_string(user.role));
    if (!job_for(asker, question.job)) return;
  }
  const auto run = tools_.runner.run_of(question.job);
  const auto* notes = question.job == 0 ? nullptr : tools_.recorder.find(run);
  const bool failures_only = question.kind == wire::DocumentKind::failures;
  if (question.job != 0 && !notes && !failures_only) {
    return refuse(asker, FailureCode::not_found,
                  fmt::format("job {} is not remembered here", question.job));
  }
  switch (question.kind) {
    case wire::DocumentKind::graph: {
      if (!notes) return refuse(asker, FailureCode::bad_request, "the graph of which job?");
      const bool paused = tools_.runner.paused(question.job);
      const auto met = tools_.runner.met(question.job);
      const auto* entry = tools_.table.find_run(run);
      const int kept = entry && entry->course.boundary ? entry->course.boundary->next_step : 0;
      return reply(asker,
                   wire::Document{keep("graph", recorder::graph_text(*notes, paused, met, kept))});
    }
    case wire::DocumentKind::timeline:
      return send_timeline(asker, question.job);
    case wire::DocumentKind::failures:
      return reply(asker, wire::Document{keep("failures", failures(question.job, own_only))});
    case wire::DocumentKind::machine:
      if (!tools_.machine) return refuse(asker, FailureCode::not_found, "no machine is known here");
      // Hosts' names and what actors failed by may be any bytes.
      return reply(
          asker,
          wire::Document{keep(
              "machine", plan::to_json(tools_.machine())
                             .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace))});
    case wire::DocumentKind::slices:
      return reply(asker, wire::Document{keep("slices", slices(question.after))});
    case wire::DocumentKind::metrics:
      return reply(asker, wire::Document{keep("metrics", tools_.metrics ? tools_.metrics() : "")});
  }
}

std::string Introspection::slices(std::uint64_t after) const {
  constexpr std::size_t kMost = 4000;  // of one answer
  const auto& all = tools_.recorder.slices();
  auto at = all.end();
  for (std::size_t i = 0; i < kMost && at != all.begin() && std::prev(at)->number > after; ++i)
    --at;
  nlohmann::json list = nlohmann::json::array();
  for (; at != all.end(); ++at) {
    const char* kind = at->kind == wire::TaskKind::encode_text ? "text"
                       : at->kind == wire::TaskKind::decode    ? "decode"
                                                               : "step";
    nlohmann::json waits = nlohmann::json::array();
    for (const auto& wait : at->waits)
      waits.push_back({recorder::seconds(wait.begin_ns), recorder::seconds(wait.end_ns)});
    list.push_back({{"actor", at->actor},
                    {"job", at->job},
                    {"step", at->step},
                    {"patch", at->patch},
                    {"kind", kind},
                    {"begin", recorder::seconds(at->ran.begin_ns)},
                    {"end", recorder::seconds(at->ran.end_ns)},
                    {"waits", std::move(waits)}});
  }
  return nlohmann::json({{"last", all.empty() ? 0 : all.back().number},
                         {"now", recorder::seconds(now())},
                         {"slices", std::move(list)}})
      .dump();
}

void Introspection::send_timeline(const Asker& asker, jobs::JobId job) {
  auto facts = std::make_shared<recorder::TraceFacts>();
  facts->controller_host = tools_.host;
  facts->controller_pid = tools_.pid;
  facts->now = now();
  for (const auto& [id, actor] : tools_.members.all())
    facts->actors[id] = {actor.host, actor.device, actor.pid};
  auto jobs = std::make_shared<std::vector<recorder::JobNotes>>();
  for (const auto& [id, notes] : tools_.recorder.jobs()) {
    if (job == 0 || job == id || tools_.runner.run_of(job) == id) jobs->push_back(notes);
  }
  const bool posted = thread_.post([this, asker, facts, jobs]() -> SideThread::OnLoop {
    std::vector<const recorder::JobNotes*> all;
    for (const auto& notes : *jobs)
      all.push_back(&notes);
    auto trace = std::make_shared<std::string>(recorder::chrome_trace(all, *facts));
    return
        [this, asker, trace] { reply(asker, wire::Document{keep("timeline", std::move(*trace))}); };
  });
  if (!posted) refuse(asker, FailureCode::overloaded, "too much is being written: try again later");
}

void Introspection::handle(const Asker& asker, const wire::GetLogs& question) {
  /// Bytes of lines that a message holds beside everything else.
  constexpr std::size_t kMostBytes = 800'000;
  wire::LogLines lines;
  if (question.actor < 0) {
    const auto wall = std::chrono::system_clock::now().time_since_epoch();
    const auto ahead = std::chrono::duration_cast<std::chrono::nanoseconds>(wall).count() - now();
    for (const auto& line : tools_.recorder.lines(question.after, question.lines, lines.last))
      lines.lines.push_back(time_text(line.at + ahead) + " " + line.text);
  } else {
    const auto id = static_cast<cluster::ActorId>(question.actor);
    if (!tools_.members.all().contains(id)) {
      return refuse(asker, FailureCode::not_found,
                    fmt::format("actor {} is not known here", question.actor));
    }
    lines = tools_.lines(id, question.after, question.lines);
  }
  std::size_t bytes = 0;
  std::size_t kept = 0;
  while (kept < lines.lines.size() && bytes < kMostBytes)
    bytes += lines.lines[lines.lines.size() - ++kept].size() + 8;
  lines.lines.erase(lines.lines.begin(), lines.lines.end() - static_cast<std::ptrdiff_t>(kept));
  reply(asker, lines);
}

wire::BlobRef Introspection::keep(const std::string& name, std::string bytes,
                                  std::vector<std::int64_t> shape) {
  constexpr std::ptrdiff_t kKept = 8;             // of a kind
  constexpr std::uint64_t kKeptBytes = 1u << 30;  // the newest aside
  wire::BlobRef ref{.name = name, .id = 0, .bytes = bytes.size(), .shape = std::move(shape)};
  ref.id = tools_.environment.keep_blob(std::make_shared<const std::string>(std::move(bytes)));
  kept_.push_back(ref);
  const auto drop = [this](std::deque<wire::BlobRef>::iterator at) {
    tools_.environment.drop_blob(at->id);
    kept_.erase(at);
  };
  // Of its own kind: what a page asks for twice a second pushes no time line away that is fetched.
  const auto of_kind = [&](const wire::BlobRef& each) { return each.name == name; };
  if (std::ranges::count_if(kept_, of_kind) > kKept) drop(std::ranges::find_if(kept_, of_kind));
  const auto sum = [this] {
    std::uint64_t bytes = 0;
    for (const auto& each : kept_)
      bytes += each.bytes;
    return bytes;
  };
  while (kept_.size() > 1 && sum() > kKeptBytes)
    drop(kept_.begin());
  return ref;
}

namespace {

constexpr std::size_t kKeptRecords = 16;
constexpr std::size_t kKeptFiles = 256;

/// Time that the loop gives the disk before it goes on without knowing the outcome.
constexpr std::chrono::milliseconds kAtOnce{100};

}  // namespace

std::string Introspection::record_failure(jobs::JobId job, const std::string& failure) {
  const bool together = tools_.runner.jobs_of(job) != std::vector{job};
  return record(job, tools_.runner.run_of(job), failure,
                fmt::format("{}{}.json", together ? "flight-batch-" : "flight-job-", job));
}

std::string Introspection::record_hang(cluster::ActorId actor, const std::string& why) {
  const auto current = tools_.runner.dispatcher().current(actor);
  const auto& member = tools_.members.at(actor);
  const jobs::JobId run = current ? current->first : member.jobs.empty() ? 0 : *member.jobs.begin();
  return record(run, run, why, fmt::format("flight-actor-{}-pid-{}.json", actor, member.pid));
}

std::string Introspection::record(jobs::JobId job, jobs::JobId run, const std::string& failure,
                                  const std::string& file) {
  Failed failed{.job = job,
                .name = {},
                .jobs = tools_.runner.jobs_of(job),
                .failure = failure,
                .file = {},
                .record = std::make_shared<const std::string>(
                    recorder::flight_record(tools_.recorder, job, run, failure, now()))};
  if (job != 0 && failed.jobs != std::vector{job}) failed.name = tools_.runner.name_of(job);
  failed_.push_back(std::move(failed));
  if (failed_.size() > kKeptRecords) failed_.pop_front();
  if (tools_.log_folder.empty()) return "";
  return write(failed_.back(), std::filesystem::path(tools_.log_folder) / file);
}

std::string Introspection::write(const Failed& failed, const std::filesystem::path& path) {
  // One wait for all failures of a moment; and where the thread is busy the disk is slow, as is
  // known.
  const auto begun = std::chrono::steady_clock::now();
  const bool prompt = thread_.idle() && begun - waited_ > std::chrono::seconds(1);
  const auto outcome = std::make_shared<std::promise<std::string>>();
  auto error = outcome->get_future();
  const auto work = [this, outcome, path, record = failed.record,
                     write = tools_.write]() -> SideThread::OnLoop {
    const auto why_not = write(path, *record);
    outcome->set_value(why_not);
    return [this, path, record, why_not] {
      if (!why_not.empty()) {
        if (tools_.note)
          tools_.note("flight record " + path.string() + " cannot be written: " + why_not);
        return;
      }
      written_.push_back(path);
      if (written_.size() > kKeptFiles) {
        std::error_code gone;
        std::filesystem::remove(written_.front(), gone);
        written_.pop_front();
      }
      const auto found = std::ranges::find(failed_, record, &Failed::record);
      if (found != failed_.end()) found->file = path.string();
    };
  };
  if (!thread_.post(work)) return "";
  if (!prompt) return path.string();
  const bool known = error.wait_for(kAtOnce) == std::future_status::ready;
  if (std::chrono::steady_clock::now() - begun > kAtOnce / 10)
    waited_ = std::chrono::steady_clock::now();
  return known && !error.get().empty() ? "" : path.string();
}

std::string Introspection::failures(jobs::JobId job, bool own_only) const {
  using nlohmann::json;
  json list = json::array();
  for (const Failed& failed : failed_) {
    if (job != 0 && std::ranges::find(failed.jobs, job) == failed.jobs.end()) continue;
    json row = {{"job", failed.job}, {"failure", failed.failure}};
    if (!failed.name.empty()) row["batch"] = failed.name;
    if (!failed.file.empty()) row["file"] = failed.file;
    if (job != 0)
      row["record"] = json::parse(own_only ? recorder::own_part(*failed.record, job, failed.job)
                                           : *failed.record);
    list.push_back(std::move(row));
  }
  return json{{"failures", list}}.dump(-1, ' ', false, json::error_handler_t::replace);
}

// A job's latents as they are now: asked of those who hold rows, fetched and put together.
namespace {

using wire::FailureCode;

constexpr control::Milliseconds kRenderDeadline{25'000};
constexpr control::Milliseconds kFetchDeadline{20'000};
/// Most bytes of the float32 latents of one job that a controller puts up with.
constexpr std::uint64_t kMostBytes = 1u << 30;
constexpr long kMostAtOnce = 4;

std::uint64_t product(const std::vector<std::int64_t>& shape) {
  std::uint64_t count = 1;
  for (const auto size : shape) {
    if (size < 0 || (size > 0 && count > kMostBytes / static_cast<std::uint64_t>(size)))
      return kMostBytes;
    count *= static_cast<std::uint64_t>(size);
  }
  return count;
}

}  // namespace

struct Introspection::Collection {
  std::shared_ptr<int> counted;
  Asker asker;
  jobs::JobId job = 0;
  bool renders = false;
  bool one_replica = false;  // the first one's pictures are enough
  wire::RowRange own;        // of the pictures: a batch has others', too
  cluster::ActorId renderer = 0;
  std::int64_t pictures = 0;
  std::size_t missing = 0;
  bool failed = false;
  int first_step = 0;
  int last_step = -1;
  std::vector<std::int64_t> shape;  // [n, C, h, w]; empty until the first piece is here
  std::string bytes;
};

void Introspection::handle(const Asker& asker, const wire::GetLatents& question) {
  const auto* job = job_for(asker, question.job);
  if (!job) return;
  const auto name = fmt::format("job {}", question.job);
  const auto run = tools_.runner.run_of(question.job);
  const auto* notes = tools_.recorder.find(run);
  const auto* computes = tools_.table.find_run(run);
  if (has_ended(job->state) || !computes || !tools_.runner.dispatcher().has(run) || !notes ||
      notes->attempts.empty()) {
    return refuse(asker, FailureCode::bad_request,
                  name + (has_ended(job->state) ? " has ended (" : " is not under way (") +
                      to_string(job->state) + "): only a running job has latents");
  }
  if (collecting_.use_count() > kMostAtOnce) {
    return refuse(
        asker, FailureCode::overloaded,
        fmt::format("{} jobs' latents are being collected: try again later", kMostAtOnce));
  }
  const auto& actors = notes->attempts.back().actor_of_rank;
  auto collection = std::make_shared<Collection>();
  collection->counted = collecting_;
  collection->asker = asker;
  const auto& plan = computes->plan;
  collection->job = run;
  collection->renders = question.render;
  collection->renderer = actors.at(static_cast<std::size_t>(plan.decode_rank(0)));
  collection->pictures = plan.picture_count();
  collection->own = {0, plan.picture_count()};
  if (const auto* batch = tools_.table.find_batch(run))
    collection->own = jobs::member_of(*batch, question.job).pictures;
  collection->first_step = plan.request.steps;
  std::set<cluster::ActorId> holders;
  // A rough picture shows the first one, which most often the first replica has.
  collection->one_replica = question.render && collection->own.begin == 0;
  const int replicas = collection->one_replica ? 1 : plan.degrees.dp;
  for (int dp = 0; dp < replicas; ++dp) {
    for (const int rank : plan.latent_holders(dp))
      holders.insert(actors.at(static_cast<std::size_t>(rank)));
  }
  collection->missing = holders.size();
  for (const auto holder : holders)
    ask_holder(collection, holder);
}

void Introspection::ask_holder(const std::shared_ptr<Collection>& collection, cluster::ActorId id) {
  const auto& actor = tools_.members.at(id);
  tools_.environment.request(
      actor.peer, wire::GetLatentRows{collection->job}, kActorDeadline,
      [this, collection, id, incarnation = actor.incarnation](const control::Reply& answer) {
        if (!answer) {
          return fail(*collection, {answer.failure().code,
                                    fmt::format("actor {}: {}", id, answer.failure().what)});
        }
        const auto rows = answer.as<wire::LatentRows>();
        tools_.environment.fetch_blob(incarnation, rows.blob, kFetchDeadline,
                                      [this, collection, rows](const control::BlobResult& blob) {
                                        if (collection->failed) return;
                                        if (!blob) return fail(*collection, blob.failure);
                                        add_rows(*collection, rows, *blob.bytes);
                                        if (!collection->failed && --collection->missing == 0)
                                          collected(collection);
                                      });
      });
}

void Introspection::fail(Collection& collection, const wire::Failure& failure) {
  if (std::exchange(collection.failed, true)) return;
  reply(collection.asker, failure);
}

void Introspection::add_rows(Collection& collection, const wire::LatentRows& rows,
                             const std::string& bytes) {
  const auto wrong = [&] {
    fail(collection, {FailureCode::protocol, "latents whose bytes do not fit their shape"});
  };
  if (rows.shape.size() != 4) return wrong();
  auto shape = rows.shape;
  shape[0] = collection.one_replica ? rows.shape[0] : collection.pictures;
  if (product(shape) > kMostBytes / sizeof(float))
    return fail(collection, {FailureCode::overloaded, "the latents are larger than 1 GiB"});
  if (collection.shape.empty()) {
    collection.shape = shape;
    collection.bytes.assign(product(shape) * sizeof(float), '\0');
  }
  std::int64_t height = 0;
  for (const auto& run : rows.runs) {
    if (run.begin < 0 || run.end < run.begin || run.end > shape[2]) return wrong();
    height += run.end - run.begin;
  }
  const auto first = collection.one_replica ? 0 : rows.first_image;
  const bool fits =
      shape == collection.shape && first >= 0 && first + rows.shape[0] <= collection.shape[0] &&
      bytes.size() == product({rows.shape[0], shape[1], height, shape[3]}) * sizeof(float);
  if (!fits) return wrong();
  const auto row_bytes = static_cast<std::size_t>(shape[3]) * sizeof(float);
  const char* from = bytes.data();
  for (std::int64_t image = 0; image < rows.shape[0]; ++image) {
    for (std::int64_t channel = 0; channel < shape[1]; ++channel) {
      const auto plane = ((first + image) * shape[1] + channel) * shape[2];
      for (const auto& run : rows.runs) {
        const auto run_bytes = static_cast<std::size_t>(run.end - run.begin) * row_bytes;
        std::memcpy(
            collection.bytes.data() + static_cast<std::size_t>(plane + run.begin) * row_bytes, from,
            run_bytes);
        from += run_bytes;
      }
    }
  }
  collection.first_step = std::min(collection.first_step, rows.first_step);
  collection.last_step = std::max(collection.last_step, rows.last_step);
}

void Introspection::collected(const std::shared_ptr<Collection>& collection) {
  if (!collection->one_replica) {
    const auto& own = collection->own;
    const wire::RowRange all{0, static_cast<std::int32_t>(collection->pictures)};
    if (own != all) collection->bytes = jobs::cut_pictures(collection->bytes, all, own);
    collection->shape[0] = own.end - own.begin;
  }
  if (collection->renders) return render(collection);
  reply(collection->asker,
        wire::JobLatents{collection->first_step, collection->last_step,
                         keep("latents", std::move(collection->bytes), collection->shape)});
}

void Introspection::render(const std::shared_ptr<Collection>& collection) {
  collection->bytes.resize(
      collection->bytes.size() /
      static_cast<std::size_t>(std::max<std::int64_t>(1, collection->shape[0])));
  collection->shape[0] = 1;
  const auto latents = keep("latents", std::move(collection->bytes), collection->shape);
  const auto& actor = tools_.members.at(collection->renderer);
  tools_.environment.request(
      actor.peer, wire::RenderLatents{collection->job, latents}, kRenderDeadline,
      [this, collection, incarnation = actor.incarnation](const control::Reply& answer) {
        if (!answer) return fail(*collection, answer.failure());
        tools_.environment.fetch_blob(
            incarnation, answer.as<wire::Rendered>().png, kFetchDeadline,
            [this, collection](const control::BlobResult& png) {
              if (!png) return fail(*collection, png.failure);
              reply(collection->asker,
                    wire::JobLatents{collection->first_step, collection->last_step,
                                     keep("preview", *png.bytes)});
            });
      });
}

}  // namespace troupe::service
