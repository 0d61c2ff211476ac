#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

#include "base/format.h"
#include "base/numbers.h"
#include "base/suggest.h"
#include "base/text.h"
#include "client/cli/cluster_view.h"
#include "client/cli/json.h"
#include "client/cli/progress.h"
#include "client/cli/terminal.h"
#include "client/cli/verb.h"
#include "client/repl/command.h"
#include "client/repl/session.h"
#include "client/repl/words.h"
#include "transport/json/info_json.h"
#include "troupe/actor.h"
#include "troupe/inspect.h"

namespace troupe::repl {
namespace {

using cli::bytes_cell;
using cli::Overflow;
using cli::print_json_line;
using cli::Row;
using cli::take;

void print(const Row& heads, const std::vector<Row>& rows, const std::string& none,
           Overflow overflow = Overflow::shorten) {
  if (rows.empty()) {
    std::cout << none << "\n";
  } else {
    std::cout << cli::table(heads, rows, cli::output_width(), overflow);
  }
}

void print_jobs(const std::vector<JobInfo>& jobs) {
  auto list = nlohmann::json::array();
  for (const JobInfo& job : jobs)
    list.push_back(to_json(job));
  print_json_line({{"jobs", list}});
}

void one_failure(const nlohmann::json& failure) {
  // A batch's failure says which it is.
  if (!failure.contains("batch")) std::cout << "job " << failure["job"] << ": ";
  std::cout << cli::on_one_line(failure["failure"].get<std::string>()) << "\n";
  if (failure.contains("file"))
    std::cout << "file " << cli::on_one_line(failure["file"].get<std::string>()) << "\n";
  std::vector<Row> rows;
  const auto& record = failure["record"];
  for (const auto& task : record.value("unfinished", nlohmann::json::array())) {
    rows.push_back({task["name"].get<std::string>(), std::to_string(task["actor"].get<int>()),
                    seconds_text(-task["issued"].get<double>())});
  }
  if (!rows.empty())
    std::cout << "\nunfinished:\n"
              << cli::table({"TASK", "ACTOR", "ISSUED BEFORE"}, rows, cli::output_width());
  rows.clear();
  constexpr std::size_t kShown = 25;
  const auto& events = record["events"];
  for (std::size_t i = events.size() - std::min(events.size(), kShown); i < events.size(); ++i) {
    const auto& event = events[i];
    char at[32];
    std::snprintf(at, sizeof at, "%.3f s", event["at"].get<double>());
    rows.push_back({at, event["event"].get<std::string>(),
                    event.contains("job") ? std::to_string(event["job"].get<int>()) : "-",
                    event.contains("actor") ? std::to_string(event["actor"].get<int>()) : "-",
                    event["what"].get<std::string>()});
  }
  std::cout << "\nlast events:\n"
            << cli::table({"AT", "EVENT", "JOB", "ACTOR", "WHAT"}, rows, cli::output_width(),
                          Overflow::shorten);
}

}  // namespace

void nodes(Session& session, const Words&) {
  const ClusterInfo cluster = take(session.client().status());
  Hosts hosts;
  add_hosts(cluster, hosts);
  if (session.json()) {
    auto list = to_json(hosts);
    for (auto& host : list)
      host["host"] = host["name"];
    return print_json_line({{"nodes", list}});
  }
  std::vector<Row> rows;
  for (const auto& [host, node] : hosts) {
    std::string devices;
    for (const auto& device : node.devices)
      devices.append(devices.empty() ? "" : " ").append(device);
    rows.push_back({host, std::to_string(node.actors), std::to_string(node.ready),
                    std::to_string(node.restarts), bytes_cell(node.memory_bytes),
                    devices.empty() ? "-" : devices,
                    node.has_controller ? fmt::format("controller, pid {}", cluster.pid) : "-"});
  }
  print({"HOST", "ACTORS", "READY", "RESTARTS", "MEMORY", "DEVICES", "ALSO"}, rows, "no hosts");
}

void actors(Session& session, const Words&) {
  const ClusterInfo cluster = take(session.client().status());
  if (session.json()) return print_json_line({{"actors", cli::to_json(cluster)["actors"]}});
  std::vector<Row> rows;
  for (const ActorInfo& actor : cluster.actors) {
    rows.push_back({std::to_string(actor.id), to_string(actor.state), actor.host,
                    std::to_string(actor.pid), actor.device, std::to_string(actor.restarts),
                    bytes_cell(actor.memory_bytes), actor.doing.empty() ? "-" : actor.doing});
  }
  print({"ID", "STATE", "HOST", "PID", "DEVICE", "RESTARTS", "MEMORY", "DOING"}, rows, "no actors");
}

void groups(Session& session, const Words&) {
  const ClusterInfo cluster = take(session.client().status());
  std::map<std::pair<std::string, std::vector<int>>, std::map<int, std::uint32_t>> members;
  for (const ActorInfo& actor : cluster.actors) {
    for (const GroupInfo& group : actor.groups) {
      if (group.ranks.size() > 1)
        members[{group.axis, group.ranks}][group.rank_in_group] = actor.id;
    }
  }
  if (session.json()) {
    auto list = nlohmann::json::array();
    for (const auto& [group, members_of] : members) {
      std::vector<std::uint32_t> actors;
      for (const auto& [rank, actor] : members_of)
        actors.push_back(actor);
      list.push_back({{"axis", group.first}, {"ranks", group.second}, {"actors", actors}});
    }
    return print_json_line({{"groups", list}});
  }
  std::vector<Row> rows;
  const auto joined = [](const auto& numbers, const auto& text_of) {
    std::string text;
    for (const auto& number : numbers)
      text.append(text.empty() ? "" : " ").append(text_of(number));
    return text;
  };
  for (const auto& [group, actors] : members) {
    rows.push_back({group.first,
                    joined(group.second, [](int rank) { return std::to_string(rank); }),
                    joined(actors, [](const auto& one) { return std::to_string(one.second); })});
  }
  print({"AXIS", "RANKS", "ACTORS"}, rows, "no groups: no job has needed one yet");
}

void queue(Session& session, const Words&) {
  // Within a priority the controller is fair to shares, by what they have had: not known here.
  auto jobs = take(session.client().jobs());
  std::stable_sort(jobs.begin(), jobs.end(),
                   [](const auto& a, const auto& b) { return a.priority > b.priority; });
  std::erase_if(jobs, [](const auto& job) { return job.state != JobState::queued; });
  if (session.json()) return print_jobs(jobs);
  const std::size_t longest = cli::output_width() == 0 ? std::string::npos : 48;
  std::vector<Row> rows;
  for (const JobInfo& job : std::span(jobs).first(std::min(jobs.size(), cli::kShownRows))) {
    rows.push_back({std::to_string(job.id), std::to_string(job.priority),
                    job.share.empty() ? "-" : job.share, std::to_string(job.pictures),
                    duration_text(job.seconds), cli::shorten(job.prompt, longest),
                    cli::shorten(cli::in_options(job.cause), std::string::npos)});
  }
  print({"ID", "PRIORITY", "SHARE", "PICTURES", "WAITS", "PROMPT", "CAUSE"}, rows, "no job waits");
  std::cout << cli::shown_text(rows.size(), jobs.size(), "jobs that wait", "");
}

void failures(Session& session, const Words& words) {
  const auto job = words.empty() ? 0 : job_of(words[0]);
  const auto document = nlohmann::json::parse(take(session.inspector().failures(job)));
  if (session.json()) return print_json_line(document);
  const auto& list = document["failures"];
  if (!words.empty()) {
    for (const auto& failure : list)
      one_failure(failure);
    if (list.empty()) std::cout << "no failure of job " << job << " is remembered\n";
    return;
  }
  std::vector<Row> rows;
  for (const auto& failure : list) {
    rows.push_back(
        {failure.contains("batch") ? "-" : std::to_string(failure["job"].get<std::uint64_t>()),
         failure["failure"].get<std::string>(), failure.value("file", "-")});
  }
  print({"JOB", "FAILURE", "FILE"}, rows, "no job has failed");
}

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
