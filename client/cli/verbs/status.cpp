#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <iostream>
#include <span>
#include <thread>

#include "base/format.h"
#include "base/text.h"
#include "client/cli/endpoint.h"
#include "client/cli/job_view.h"
#include "client/cli/json.h"
#include "client/cli/table.h"
#include "client/cli/verb.h"

namespace troupe::cli {
namespace {

/// "pp 1/4 [0 2 4 6]": rank 1 of the four actors named. Who is alone on an axis is in no group.
std::string groups_text(const ActorInfo& actor) {
  std::string text;
  for (const GroupInfo& group : actor.groups) {
    if (group.ranks.size() < 2) continue;
    if (!text.empty()) text += ", ";
    text += fmt::format("{} {}/{} [", group.axis, group.rank_in_group, group.ranks.size());
    for (std::size_t i = 0; i < group.ranks.size(); ++i) {
      if (i > 0) text += ' ';
      text += std::to_string(group.ranks[i]);
    }
    text += "]";
  }
  return text.empty() ? "-" : text;
}

constexpr std::array kHeads = {"ID",    "STATE",    "HOST",   "PID",    "DEVICE",
                               "LOCAL", "RESTARTS", "MEMORY", "GROUPS", "DOING"};

Row actor_row(const ActorInfo& actor) {
  return {std::to_string(actor.id),
          actor.state,
          actor.host,
          std::to_string(actor.pid),
          actor.device,
          std::to_string(actor.local_rank),
          std::to_string(actor.restarts),
          bytes_cell(actor.memory_bytes),
          groups_text(actor),
          actor.doing.empty() ? "-" : actor.doing};
}

/// Takes out the columns among `heads` that say the same of every actor, and says it once: "HOST
/// hal, RESTARTS 0".
std::string say_once(Row& heads, std::vector<Row>& rows) {
  std::string said;
  for (const char* head : {"HOST", "DEVICE", "RESTARTS", "LOCAL"}) {
    const auto column = std::find(heads.begin(), heads.end(), head) - heads.begin();
    const std::string value = rows.front()[column];
    if (std::any_of(rows.begin(), rows.end(), [&](const Row& row) { return row[column] != value; }))
      continue;
    said += (said.empty() ? "" : ", ") + heads[column] + " " + value;
    heads.erase(heads.begin() + column);
    for (Row& row : rows)
      row.erase(row.begin() + column);
  }
  return said;
}

void print_actors(const std::vector<ActorInfo>& all, std::size_t width, std::size_t most) {
  const auto actors = std::span(all).first(std::min(all.size(), most));
  std::cout << "Actors: " << all.size();
  Row heads(kHeads.begin(), kHeads.end());
  std::vector<Row> rows;
  for (const ActorInfo& actor : actors)
    rows.push_back(actor_row(actor));
  if (!rows.empty() && width != 0 && table_width(heads, rows) > width) {
    const std::string said = say_once(heads, rows);
    if (!said.empty()) std::cout << " (each: " << said << ")";
  }
  std::cout << "\n"
            << (rows.empty() ? "" : table(heads, rows, width))
            << shown_text(actors.size(), all.size(), "actors", "troupe status --all");
}

void print_status(const ClusterInfo& cluster, bool all) {
  std::cout << "Cluster\n"
            << "  endpoint    " << cluster.endpoint << "\n"
            << "  controller  " << cluster.host << ", pid " << cluster.pid << ", troupe "
            << cluster.version << ", up " << duration_text(cluster.uptime_seconds) << "\n"
            << "  model       " << (cluster.model.empty() ? "(as each job says)" : cluster.model)
            << "\n\n";
  print_actors(cluster.actors, output_width(), all ? cluster.actors.size() : kShownRows);
  std::cout << "\nJobs: " << cluster.jobs_queued << " queued, " << cluster.jobs_running
            << " running, " << cluster.jobs_ended << " ended\n\n"
            << "Recent failures:" << (cluster.recent_failures.empty() ? " none" : "") << "\n";
  for (const std::string& failure : cluster.recent_failures) {
    const std::size_t width = output_width();
    const auto lines = width > 8 ? wrapped(failure, width - 4) : std::vector{printable(failure)};
    for (std::size_t i = 0; i < lines.size(); ++i)
      std::cout << (i == 0 ? "  " : "    ") << lines[i] << "\n";
  }
  std::cout << std::flush;
}

class StatusVerb : public Verb {
 public:
  explicit StatusVerb(CLI::App& parent)
      : Verb(parent, "status", "Say who lives where, in which groups with which rank, doing what") {
    app_->add_option("--watch", watch_seconds_, "Say it again and again, so far apart")
        ->check(number(0.1, 86400))
        ->type_name("SECONDS");
    app_->add_flag("--all", all_,
                   fmt::format("All actors; else of more than {} the first", kShownRows));
    add_connect_option(*app_, target_);
    set_footer(
        "GROUPS is, for each axis that the actor shares with others, its rank and all ranks: \"pp "
        "1/2 [0 2]\" is the second of two stages. Jobs themselves are in `troupe jobs`. --watch "
        "goes on until Ctrl-C, or the cluster's end.",
        {"troupe status", "troupe status --watch 2", "troupe status --json"}, "commands.md#status");
  }

  int run() override {
    if (json() && watch_seconds_ > 0) throw UsageError("--watch does not go with --json");
    Client client = connect(target_);
    if (json()) {
      print_json(to_json(take(client.status())));
      return kOk;
    }
    print_status(take(client.status()), all_);
    while (watch_seconds_ > 0 && std::cout) {
      std::this_thread::sleep_for(std::chrono::duration<double>(watch_seconds_));
      const ClusterInfo cluster = take(client.status());
      std::cout << (isatty(STDOUT_FILENO) ? "\x1b[H\x1b[2J" : "\n");
      print_status(cluster, all_);
    }
    return kOk;
  }

 private:
  double watch_seconds_ = 0;  // 0: once
  bool all_ = false;
  Target target_;
};

}  // namespace

std::unique_ptr<Verb> make_status(CLI::App& parent) {
  return std::make_unique<StatusVerb>(parent);
}

}  // namespace troupe::cli
