#include <chrono>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>

#include "controller/gateway/inspect.h"
#include "controller/plan/machine_json.h"
#include "controller/recorder/chrome_trace.h"
#include "controller/recorder/graph_text.h"

// What the controller remembers and hands out to be read: graphs, time lines, lines that were said.

namespace troupe::gateway {
namespace {

using wire::FailureCode;

/// "2026-11-21 09:41:02.123", where the controller is.
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

void InspectDesk::get_document(const Asker& asker, const wire::GetDocument& question) {
  const auto user = tools_.server.user(asker.peer);
  const bool own_only = user.role < control::ClientRole::all_jobs;
  if (own_only && question.kind != wire::DocumentKind::machine) {
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
                  "job " + std::to_string(question.job) + " is not remembered here");
  }
  switch (question.kind) {
    case wire::DocumentKind::graph: {
      if (!notes) return refuse(asker, FailureCode::bad_request, "the graph of which job?");
      const bool paused = tools_.runner.paused(question.job);
      return reply(asker, wire::Document{keep("graph", recorder::graph_text(*notes, paused))});
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
  }
}

void InspectDesk::send_timeline(const Asker& asker, jobs::JobId job) {
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

void InspectDesk::get_logs(const Asker& asker, const wire::GetLogs& question) {
  /// What a message holds beside everything else.
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
                    "actor " + std::to_string(question.actor) + " is not known here");
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

wire::BlobRef InspectDesk::keep(const std::string& name, std::string bytes,
                                std::vector<std::int64_t> shape) {
  constexpr std::size_t kKept = 8;
  constexpr std::uint64_t kKeptBytes = 1u << 30;  // the newest aside
  wire::BlobRef ref{.name = name, .id = 0, .bytes = bytes.size(), .shape = std::move(shape)};
  ref.id = tools_.outside.keep_blob(std::make_shared<const std::string>(std::move(bytes)));
  kept_.push_back(ref);
  std::uint64_t sum = 0;
  for (const auto& each : kept_)
    sum += each.bytes;
  while (kept_.size() > kKept || (kept_.size() > 1 && sum > kKeptBytes)) {
    tools_.outside.drop_blob(kept_.front().id);
    sum -= kept_.front().bytes;
    kept_.pop_front();
  }
  return ref;
}

}  // namespace troupe::gateway
