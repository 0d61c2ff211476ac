#include "client/cli/cluster_view.h"

#include <algorithm>
#include <array>
#include <span>

#include "base/format.h"
#include "base/text.h"
#include "client/cli/job_view.h"

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

constexpr std::array kActorHeads = {"ID",         "STATE",    "HOST",   "PID",    "DEVICE",
                                    "LOCAL RANK", "RESTARTS", "MEMORY", "GROUPS", "DOING"};

Row actor_row(const ActorInfo& actor) {
  return {std::to_string(actor.id),
          to_string(actor.state),
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
  for (const char* head : {"HOST", "DEVICE", "RESTARTS", "LOCAL RANK"}) {
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

/// Takes out the columns among these that say nothing of any actor.
void leave_out_dashes(Row& heads, std::vector<Row>& rows) {
  for (const char* head : {"GROUPS", "DOING"}) {
    const auto column = std::find(heads.begin(), heads.end(), head) - heads.begin();
    if (!std::ranges::all_of(rows, [&](const Row& row) { return row[column] == "-"; })) continue;
    heads.erase(heads.begin() + column);
    for (Row& row : rows)
      row.erase(row.begin() + column);
  }
}

}  // namespace

Colour state_colour(const std::string& state) {
  static const std::array<std::pair<const char*, Colour>, 13> kColours = {
      {{"ready", Colour::green},
       {"busy", Colour::cyan},
       {"starting", Colour::yellow},
       {"draining", Colour::yellow},
       {"drained", Colour::dim},
       {"dead", Colour::red},
       {"queued", Colour::yellow},
       {"loading", Colour::yellow},
       {"running", Colour::cyan},
       {"paused", Colour::yellow},
       {"succeeded", Colour::green},
       {"failed", Colour::red},
       {"cancelled", Colour::dim}}};
  const auto found =
      std::ranges::find_if(kColours, [&](const auto& one) { return state == one.first; });
  return found == kColours.end() ? Colour::none : found->second;
}

CellColour state_column(const Row& heads) {
  const auto column =
      static_cast<std::size_t>(std::find(heads.begin(), heads.end(), "STATE") - heads.begin());
  return [column](std::size_t at, const std::string& cell) {
    return at == column ? state_colour(cell) : Colour::none;
  };
}

std::string actors_text(const std::vector<ActorInfo>& all, std::size_t width, std::size_t most) {
  const auto actors = std::span(all).first(std::min(all.size(), most));
  auto text = fmt::format("Actors: {}", all.size());
  Row heads(kActorHeads.begin(), kActorHeads.end());
  std::vector<Row> rows;
  for (const ActorInfo& actor : actors)
    rows.push_back(actor_row(actor));
  if (!rows.empty() && width != 0 && table_width(heads, rows) > width) {
    const std::string said = say_once(heads, rows);
    if (!said.empty()) text += " (each: " + said + ")";
    if (table_width(heads, rows) > width) leave_out_dashes(heads, rows);
  }
  return text + "\n" +
         (rows.empty() ? "" : table(heads, rows, width, Overflow::wrap, state_column(heads))) +
         shown_text(actors.size(), all.size(), "actors", "troupe status --all");
}

std::string status_text(const ClusterInfo& cluster, std::size_t width, std::size_t most) {
  auto text = fmt::format(
      "Cluster\n  endpoint    {}\n  controller  {}, pid {}, troupe {}, up {}\n  model       {}\n\n",
      on_one_line(cluster.endpoint), on_one_line(cluster.host), cluster.pid,
      on_one_line(cluster.version), duration_text(cluster.uptime_seconds),
      cluster.model.empty() ? "(as each job says)" : on_one_line(cluster.model));
  text += actors_text(cluster.actors, width, most);
  text += fmt::format("\nJobs: {} queued, {} running, {} ended\n\nRecent failures:{}\n",
                      cluster.jobs_queued, cluster.jobs_running, cluster.jobs_ended,
                      cluster.recent_failures.empty() ? " none" : "");
  for (const std::string& failure : cluster.recent_failures) {
    const auto lines = width > 8 ? wrapped(failure, width - 4) : std::vector{on_one_line(failure)};
    for (std::size_t i = 0; i < lines.size(); ++i)
      text += (i == 0 ? "  " : "    ") + lines[i] + "\n";
  }
  return text;
}

}  // namespace troupe::cli
