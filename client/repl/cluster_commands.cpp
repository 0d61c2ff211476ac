#include <algorithm>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>

#include "base/format.h"
#include "base/text.h"
#include "client/cli/cluster_view.h"
#include "client/cli/json.h"
#include "client/cli/progress.h"
#include "client/cli/terminal.h"
#include "client/cli/verb.h"
#include "client/repl/command.h"
#include "client/repl/session.h"
#include "transport/json/info_json.h"

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
                    cli::shorten(job.cause, std::string::npos)});
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

}  // namespace troupe::repl
