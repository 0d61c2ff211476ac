#include <algorithm>
#include <cstdio>
#include <iostream>
#include <map>
#include <span>

#include "base/format.h"
#include "base/numbers.h"
#include "base/suggest.h"
#include "base/text.h"
#include "client/cli/table.h"
#include "client/cli/verb.h"
#include "client/repl/command.h"
#include "client/repl/documents.h"
#include "client/repl/session.h"
#include "client/repl/slice_text.h"

namespace troupe::repl {
namespace {

using cli::Row;
using cli::take;
using cli::UsageError;

std::string short_number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.5g", value);
  return text;
}

std::string optional_text(int number) {
  return number < 0 ? "-" : std::to_string(number);
}

/// Batches by their numbers, which entries bear as if they were jobs': "batch 9 (jobs 3, 5)".
std::map<std::uint64_t, std::string> batch_names(Session& session, const MailboxInfo& info) {
  std::map<std::uint64_t, std::string> names;
  if (info.entries.empty()) return names;
  for (const JobInfo& job : take(session.client().jobs())) {
    if (job.batch == 0 || names.contains(job.batch)) continue;
    std::vector<std::uint64_t> jobs = job.with_jobs;
    jobs.insert(std::upper_bound(jobs.begin(), jobs.end(), job.id), job.id);
    std::string text = jobs.size() == 1 ? "job " : "jobs ";
    for (std::size_t i = 0; i < jobs.size(); ++i)
      text += fmt::format("{}{}", i == 0 ? "" : ", ", jobs[i]);
    names[job.batch] = fmt::format("batch {} ({})", job.batch, text);
  }
  return names;
}

void mailbox(Session& session, const Words& words) {
  const auto actor = actor_of(words[0]);
  const MailboxInfo info = take(session.inspector().mailbox(actor));
  const auto batches = batch_names(session, info);
  const auto name = [&](std::uint64_t job) {
    const auto batch = batches.find(job);
    return batch == batches.end() ? fmt::format("job {}", job) : batch->second;
  };
  if (session.json()) {
    auto document = to_json(info);
    document["actor"] = actor;
    for (auto& entry : document["entries"]) {
      const auto job = entry["job"].get<std::uint64_t>();
      entry["name"] = job == 0 ? "" : name(job);
    }
    return cli::print_json_line(document);
  }
  std::cout << "actor " << actor << ": ";
  if (info.doing.empty()) {
    std::cout << "idle";
  } else {
    std::cout << cli::on_one_line(info.doing) << " since " << duration_text(info.doing_seconds);
  }
  std::cout << "; " << info.total << " waiting, " << info.handled << " handled\n";
  std::vector<Row> rows;
  for (const MailboxEntry& entry : info.entries) {
    rows.push_back({entry.what, entry.job == 0 ? "-" : name(entry.job), optional_text(entry.step),
                    entry.step >= 0 && entry.patch < 0 ? "whole" : optional_text(entry.patch),
                    entry.step >= 0 ? std::to_string(entry.part) : "-"});
  }
  if (!rows.empty())
    std::cout << cli::table({"LETTER", "OF", "STEP", "PATCH", "PART"}, rows, cli::output_width());
  if (info.total > info.entries.size())
    std::cout << "and " << info.total - info.entries.size() << " more\n";
}

void tensors(Session& session, const Words& words) {
  const auto actor = actor_of(words[0]);
  const auto job = job_of(words[1]);
  const TensorsInfo info = take(session.inspector().tensors(actor, job));
  std::vector<std::string> names;
  for (const TensorInfo& tensor : info.tensors)
    names.push_back(tensor.name);
  session.keep_tensor_names(words[0], words[1], std::move(names));
  if (session.json()) {
    auto document = to_json(info);
    document["actor"] = actor;
    document["job"] = job;
    return cli::print_json_line(document);
  }
  std::cout << "job " << job << " at actor " << actor << ", after "
            << (info.at.empty() ? "nothing yet" : cli::on_one_line(info.at)) << "\n";
  std::vector<Row> rows;
  for (const TensorInfo& tensor : info.tensors) {
    rows.push_back({tensor.name, shape_text(tensor.shape), tensor.dtype, short_number(tensor.mean),
                    short_number(tensor.min), short_number(tensor.max),
                    tensor.not_finite == 0 ? "-" : std::to_string(tensor.not_finite)});
  }
  std::cout << cli::table({"NAME", "SHAPE", "DTYPE", "MEAN", "MIN", "MAX", "NOT FINITE"}, rows,
                          cli::output_width());
}

void slice(Session& session, const Words& words) {
  const auto ranges = words.size() > 3 ? parse_slice(words[3]) : std::vector<SliceRange>{};
  const auto values =
      take(session.inspector().slice(actor_of(words[0]), job_of(words[1]), words[2], ranges));
  if (session.json()) return cli::print_json_line(to_json(values));
  std::cout << cli::on_one_line(values.dtype) << " " << shape_text(values.shape) << "\n"
            << values_text(values) << "\n";
}

const std::map<std::string, Fault> kFaults = {
    {"kill", Fault::kill},      {"stop", Fault::stop},      {"exception", Fault::exception},
    {"nan", Fault::not_finite}, {"delay", Fault::delay},    {"device-error", Fault::device_error},
    {"hold", Fault::hold},      {"release", Fault::release}};

/// The words behind those of `inject hold ACTOR SECONDS`: PHASE, or step [STEP] [patch PATCH].
HoldAt hold_of(std::span<const std::string> words) {
  HoldAt at{.phase = words[0]};
  const auto known = hold_phases();
  if (std::ranges::find(known, at.phase) == known.end())
    throw UsageError("phase " + not_one_of(at.phase, known));
  words = words.subspan(1);
  const auto number = [&](const std::string& what) {
    const auto value = words.empty() ? std::nullopt : parse_number<int>(words[0]);
    if (!value || *value < 0)
      throw UsageError(what + (words.empty() ? "" : " \"" + words[0] + "\"") + ": a number from 0");
    words = words.subspan(1);
    return *value;
  };
  if (at.phase == HoldAt{}.phase) {
    if (!words.empty() && words[0] != "patch") at.step = number("step");
    if (!words.empty() && words[0] == "patch") {
      words = words.subspan(1);
      at.patch = number("patch");
    }
  }
  if (!words.empty()) throw UsageError("\"" + words[0] + "\" is too much behind the phase");
  return at;
}

void inject(Session& session, const Words& words) {
  const auto fault = kFaults.find(words[0]);
  if (fault == kFaults.end()) {
    throw UsageError("fault " + not_one_of(words[0], fault_names()));
  }
  const bool holds = fault->second == Fault::hold;
  const bool lasts = holds || fault->second == Fault::stop || fault->second == Fault::delay;
  if (holds ? words.size() < 4 : words.size() != (lasts ? 3 : 2)) {
    throw UsageError("usage: inject " + words[0] + " ACTOR" + (lasts ? " SECONDS" : "") +
                     (holds ? " PHASE" : ""));
  }
  const auto actor = actor_of(words[1]);
  const std::string note =
      take(session.inspector().inject(actor, fault->second, lasts ? seconds_of(words[2]) : 0,
                                      holds ? hold_of(std::span(words).subspan(3)) : HoldAt{}));
  if (session.json())
    return cli::print_json_line({{"actor", actor}, {"fault", words[0]}, {"note", note}});
  std::cout << note << "\n";
}

void logs(Session& session, const Words& words) {
  const bool controller = words.empty() || words[0] == "controller";
  const auto speaker = controller ? std::int64_t{-1} : std::int64_t{actor_of(words[0])};
  std::uint32_t lines = 50;
  if (words.size() > 1)
    lines = static_cast<std::uint32_t>(std::min<std::uint64_t>(job_of(words[1]), 100'000));
  const LogInfo info = take(session.inspector().logs(speaker, 0, lines));
  if (session.json()) {
    return cli::print_json_line({{"who", controller ? "controller" : words[0]},
                                 {"last", info.last},
                                 {"lines", info.lines}});
  }
  for (const std::string& line : info.lines)
    std::cout << line << "\n";
  if (info.lines.empty())
    std::cout << (controller ? "the controller" : "actor " + words[0]) << " has said nothing\n";
}

}  // namespace

std::vector<std::string> fault_names() {
  std::vector<std::string> names;
  for (const auto& [name, fault] : kFaults)
    names.push_back(name);
  return names;
}

std::vector<Command> actor_commands() {
  return {
      {.name = "mailbox",
       .arguments = "ACTOR",
       .summary = "what an actor is doing and what waits in its mailbox",
       .details = "Answered at once, also while the actor is inside a long task.",
       .completes = {Argument::actor},
       .least = 1,
       .most = 1,
       .run = mailbox},
      {.name = "tensors",
       .arguments = "ACTOR JOB",
       .summary = "what a job keeps at an actor: K,V, latents, caption, transfers",
       .details =
           "Looked at between two entries of the actor's mailbox; when it is inside one for long,\n"
           "the answer says so.",
       .completes = {Argument::actor, Argument::job},
       .least = 2,
       .most = 2,
       .run = tensors},
      {.name = "slice",
       .arguments = "ACTOR JOB NAME [SLICE]",
       .summary = "values of one of these tensors, as slice 0 3 latents [0,0,:4,:4]",
       .details = "NAME as `tensors` shows it, in quotes where it has spaces. SLICE has for each "
                  "dimension\n"
                  "an index, i:k or :, at most 4096 values in all.",
       .completes = {Argument::actor, Argument::job, Argument::tensor},
       .least = 3,
       .most = 4,
       .run = slice},
      {.name = "inject",
       .arguments = "FAULT ACTOR [SECONDS [PHASE]]",
       .summary = "a fault: kill, stop, exception, nan, delay, device-error, hold or release",
       .details =
           "  inject kill ACTOR           SIGKILL\n"
           "  inject stop ACTOR SECONDS   SIGSTOP, then SIGCONT\n"
           "  inject exception ACTOR      its next task throws\n"
           "  inject nan ACTOR            its next micro-step meets a NaN\n"
           "  inject delay ACTOR SECONDS  its next task begins later\n"
           "  inject device-error ACTOR   its next task loses the device, and with it the process\n"
           "  inject hold ACTOR SECONDS PHASE  it stands still when it comes to PHASE: loading,\n"
           "      connecting, beginning, text, step [STEP] [patch PATCH], decode or ending\n"
           "  inject release ACTOR        it goes on, or will not be held\n"
           "An actor without a job meets exception, nan, delay, device-error and hold in its next "
           "job.",
       .completes = {Argument::fault, Argument::actor, Argument::seconds, Argument::hold_phase},
       .least = 2,
       .most = 7,
       .run = inject},
      {.name = "logs",
       .arguments = "[ACTOR|controller] [LINES]",
       .summary = "what an actor's process has written, or the controller has to say",
       .details = {},
       .completes = {Argument::speaker},
       .most = 2,
       .run = logs},
  };
}

}  // namespace troupe::repl
