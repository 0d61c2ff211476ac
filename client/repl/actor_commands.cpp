#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <span>

#include "base/format.h"
#include "base/numbers.h"
#include "base/suggest.h"
#include "base/text.h"
#include "client/cli/json.h"
#include "client/cli/terminal.h"
#include "client/cli/verb.h"
#include "client/repl/command.h"
#include "client/repl/session.h"
#include "client/repl/slice_text.h"
#include "client/repl/words.h"
#include "troupe/actor.h"
#include "troupe/inspect.h"

namespace troupe::repl {

namespace {

using nlohmann::json;

/// Returns a value as JSON, which has no number for values that are not finite.
json number(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  return value;
}

}  // namespace

json to_json(const MailboxInfo& mailbox) {
  json entries = json::array();
  for (const MailboxEntry& entry : mailbox.entries)
    entries.push_back({{"what", entry.what},
                       {"job", entry.job},
                       {"step", entry.step},
                       {"patch", entry.patch},
                       {"part", entry.part}});
  return {{"doing", mailbox.doing},
          {"doing_seconds", mailbox.doing_seconds},
          {"waiting", mailbox.total},
          {"handled", mailbox.handled},
          {"entries", entries}};
}

json to_json(const TensorsInfo& info) {
  json tensors = json::array();
  for (const TensorInfo& tensor : info.tensors)
    tensors.push_back({{"name", tensor.name},
                       {"shape", tensor.shape},
                       {"dtype", tensor.dtype},
                       {"mean", number(tensor.mean)},
                       {"min", number(tensor.min)},
                       {"max", number(tensor.max)},
                       {"not_finite", tensor.not_finite}});
  return {{"at", info.at}, {"tensors", tensors}};
}

json to_json(const TensorValues& info) {
  json values = json::array();
  for (const double value : info.values)
    values.push_back(number(value));
  return {{"dtype", info.dtype}, {"shape", info.shape}, {"values", values}};
}

json to_json(const ActorClassInfo& one) {
  json methods = json::array();
  for (const auto& method : one.methods)
    methods.push_back(
        {{"name", method.name}, {"arguments", method.arguments}, {"result", method.result}});
  return {{"name", one.name},     {"arguments", one.arguments}, {"needs_torch", one.needs_torch},
          {"plugin", one.plugin}, {"methods", methods},         {"lacking", one.lacking}};
}

json to_json(const UserActorInfo& actor) {
  return {{"id", actor.id},
          {"name", actor.name},
          {"class", actor.class_name},
          {"state", to_string(actor.state)},
          {"host", actor.host},
          {"pid", actor.pid},
          {"detached", actor.detached},
          {"restarts", actor.restarts},
          {"gpus", actor.gpus},
          {"owner", actor.owner},
          {"cause", actor.cause}};
}
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

}  // namespace

std::vector<std::string> fault_names() {
  std::vector<std::string> names;
  for (const auto& [name, fault] : kFaults)
    names.push_back(name);
  return names;
}

namespace {

using cli::Row;
using cli::take;

constexpr std::chrono::seconds kCallDeadline{60};

template <class T>
nlohmann::json listed(const std::vector<T>& all) {
  auto list = nlohmann::json::array();
  for (const T& one : all)
    list.push_back(to_json(one));
  return list;
}

std::uint64_t id_of(Session& session, const std::string& word) {
  if (const auto id = parse_number<std::uint64_t>(word)) return *id;
  return take(session.client().actors().find(word));
}

}  // namespace

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

void inject(Session& session, const Words& words) {
  const auto fault = kFaults.find(words[0]);
  if (fault == kFaults.end()) {
    throw UsageError("fault " + not_one_of(words[0], fault_names()));
  }
  const bool holds = fault->second == Fault::hold;
  const bool lasts = holds || fault->second == Fault::stop || fault->second == Fault::delay;
  if (holds ? words.size() < 4 : words.size() != (lasts ? 3 : 2)) {
    throw UsageError("inject " + words[0] + " takes ACTOR" + (lasts ? " SECONDS" : "") +
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

void classes(Session& session, const Words&) {
  const auto all = take(session.client().actors().classes());
  if (session.json()) return cli::print_json_line({{"classes", listed(all)}});
  std::vector<Row> rows;
  for (const auto& one : all) {
    rows.push_back({one.name, "(constructor)", one.arguments, "-", one.plugin});
    for (const auto& method : one.methods)
      rows.push_back({one.name, method.name, method.arguments, method.result, "-"});
    for (const auto& host : one.lacking)
      rows.push_back({one.name, "(not on)", "-", "-", host});
  }
  if (rows.empty()) {
    std::cout << "no classes: give them to `troupe start --plugin`\n";
    return;
  }
  std::cout << cli::table({"CLASS", "METHOD", "ARGUMENTS", "RESULT", "PLUGIN"}, rows,
                          cli::output_width());
}

void user_actors(Session& session, const Words&) {
  const auto all = take(session.client().actors().list());
  if (session.json()) return cli::print_json_line({{"actors", listed(all)}});
  std::vector<Row> rows;
  for (const auto& actor : all) {
    rows.push_back({std::to_string(actor.id), actor.name.empty() ? "-" : actor.name,
                    actor.class_name, to_string(actor.state), actor.host, std::to_string(actor.pid),
                    std::to_string(actor.restarts), actor.owner.empty() ? "-" : actor.owner,
                    actor.cause.empty() ? "-" : actor.cause});
  }
  if (rows.empty()) {
    std::cout << "no users' actors\n";
    return;
  }
  std::cout << cli::table(
      {"ID", "NAME", "CLASS", "STATE", "HOST", "PID", "RESTARTS", "OWNER", "LAST CAUSE"}, rows,
      cli::output_width(), cli::Overflow::shorten);
}

void call(Session& session, const Words& words) {
  const auto id = id_of(session, words[0]);
  const std::string arguments = call_arguments({words.begin() + 2, words.end()});
  const auto result =
      take(session.client().actors().call_text(id, words[1], arguments, kCallDeadline));
  if (session.json())
    return cli::print_json_line({{"result", nlohmann::json::parse(result, nullptr, false)}});
  std::cout << result << "\n";
}

}  // namespace troupe::repl
