#include "client/cli/cluster_view.h"

#include <algorithm>
#include <array>
#include <limits>
#include <span>
#include <utility>

#include "base/format.h"
#include "base/text.h"
#include "client/cli/terminal.h"
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

/// Returns the colours of the column STATE, in which each row has that of its actor or job.
template <class Each>
ColumnColours state_colours(const Row& heads, const Each& all) {
  ColumnColours colours;
  colours.column = static_cast<std::size_t>(std::ranges::find(heads, "STATE") - heads.begin());
  for (const auto& one : all)
    colours.of_rows.push_back(state_colour(one.state));
  return colours;
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

Colour state_colour(ActorState state) {
  switch (state) {
    case ActorState::ready:
      return Colour::green;
    case ActorState::busy:
      return Colour::cyan;
    case ActorState::starting:
    case ActorState::draining:
      return Colour::yellow;
    case ActorState::drained:
      return Colour::dim;
    case ActorState::dead:
      return Colour::red;
    case ActorState::leaving:
      break;
  }
  return Colour::none;
}

Colour state_colour(JobState state) {
  switch (state) {
    case JobState::queued:
    case JobState::loading:
    case JobState::paused:
      return Colour::yellow;
    case JobState::running:
      return Colour::cyan;
    case JobState::succeeded:
      return Colour::green;
    case JobState::failed:
      return Colour::red;
    case JobState::cancelled:
      return Colour::dim;
  }
  return Colour::none;
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
  const auto colours = state_colours(heads, actors);
  return text + "\n" + (rows.empty() ? "" : table(heads, rows, width, Overflow::wrap, &colours)) +
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

namespace {

constexpr std::size_t kUncut = std::numeric_limits<std::size_t>::max();
constexpr std::size_t kLabel = 10;  // characters of a field's name, at most
constexpr std::size_t kNarrowestView = 20;
constexpr std::size_t kNarrowestText = 6;  // of a column

/// Takes out the columns that say nothing of any job, so that the others have their place.
void leave_out_empty(Row& heads, std::vector<Row>& rows) {
  for (const auto& [head, nothing] :
       {std::pair{"PICTURES", "1"}, {"PRIO", "0"}, {"SHARE", "-"}, {"BATCH", "-"}, {"CAUSE", ""}}) {
    const auto column = std::find(heads.begin(), heads.end(), head) - heads.begin();
    if (std::any_of(rows.begin(), rows.end(),
                    [&, nothing = nothing](const Row& row) { return row[column] != nothing; }))
      continue;
    heads.erase(heads.begin() + column);
    for (Row& row : rows)
      row.erase(row.begin() + column);
  }
}

/// Cuts the wider one of PROMPT and CAUSE, then SHARE, until the table fits: all else stays whole.
void cut_texts(const Row& heads, std::vector<Row>& rows, std::size_t width) {
  auto now = table_width(heads, rows);
  for (const Row& cuttable : {Row{"PROMPT", "CAUSE"}, Row{"SHARE"}}) {
    std::vector<std::pair<std::size_t, std::size_t>> columns;  // width, which
    for (std::size_t i = 0; i < heads.size(); ++i) {
      if (std::find(cuttable.begin(), cuttable.end(), heads[i]) == cuttable.end()) continue;
      std::vector<Row> cells;
      for (const Row& row : rows)
        cells.push_back({row[i]});
      columns.emplace_back(table_width({heads[i]}, cells), i);
    }
    for (; now > width && !columns.empty(); --now) {
      auto& widest = *std::max_element(columns.begin(), columns.end());
      if (widest.first <= kNarrowestText) break;
      --widest.first;
    }
    for (Row& row : rows) {
      for (const auto& [length, i] : columns)
        row[i] = shorten(row[i], length);
    }
  }
}

std::string steps_text(const JobInfo& job) {
  return fmt::format("{}/{}", job.step, job.steps);
}

std::string or_dash(const std::string& text) {
  return text.empty() ? "-" : text;
}

std::string seed_text(const JobInfo& job) {
  return std::to_string(job.seed) +
         (job.own_seeds ? ", of the first picture: each has its own" : "");
}

/// "cfg 2 × pp 2"
std::string degrees_text(const Parallelism& degrees) {
  std::string text;
#define DEGREE_FIELD(name, option, most, help) \
  if (degrees.name != 1)                       \
    text += fmt::format("{}" #name " {}", text.empty() ? "" : " × ", degrees.name);
#include "transport/wire/degree_fields.def"
  return text.empty() ? "one actor" : text;
}

std::string batch_text(const JobInfo& job) {
  if (job.batch == 0) return job.not_batched.empty() ? "-" : "none: " + job.not_batched;
  auto text = std::to_string(job.batch);
  for (std::size_t i = 0; i < job.with_jobs.size(); ++i) {
    text += i > 0 ? ", " : job.with_jobs.size() == 1 ? ", with job " : ", with jobs ";
    text += std::to_string(job.with_jobs[i]);
  }
  return text;
}

}  // namespace

std::string jobs_table(const std::vector<JobInfo>& jobs, std::size_t width,
                       const std::string& command) {
  const bool limited = width != 0;
  bool cut = false;  // here: the controller's own … is no cause to look further
  const auto fitted = [&](const std::string& text, std::size_t length) {
    const auto line = shorten(text, kUncut);
    if (!limited) return line;
    auto shorter = shorten(line, length);
    cut = cut || shorter != line;
    return shorter;
  };
  std::vector<Row> rows;
  for (const JobInfo& job : jobs) {
    rows.push_back({std::to_string(job.id), to_string(job.state), steps_text(job),
                    std::to_string(job.pictures), std::to_string(job.priority),
                    or_dash(fitted(job.share, 16)),
                    job.batch == 0 ? "-" : std::to_string(job.batch), duration_text(job.seconds),
                    fitted(job.prompt, 48), shorten(in_options(job.cause), kUncut)});
  }
  Row heads = {"ID",    "STATE", "STEP", "PICTURES", "PRIO",
               "SHARE", "BATCH", "TIME", "PROMPT",   "CAUSE"};
  if (limited && table_width(heads, rows) > width) leave_out_empty(heads, rows);
  if (limited && table_width(heads, rows) > width) {
    cut = true;
    cut_texts(heads, rows, width);
  }
  const auto colours = state_colours(heads, jobs);
  auto text = table(heads, rows, width, Overflow::shorten, &colours);
  if (cut) text += "… is cut to fit: `" + command + " ID` shows more of a job\n";
  return text;
}

std::string shown_text(std::size_t shown, std::size_t all, const std::string& what,
                       const std::string& next) {
  if (shown >= all) return "";
  auto text = fmt::format("{} of {} {}", shown, all, what);
  if (!next.empty()) text += "; `" + next + "` shows more";
  return text + "\n";
}

std::string job_text(const JobInfo& job, std::size_t width) {
  auto text = std::string("job ").append(std::to_string(job.id)).append("\n");
  const std::size_t room =
      width == 0 ? kUncut : std::max(width, kLabel + kNarrowestView) - kLabel - 4;
  for (const auto& [label, value] : std::vector<std::pair<std::string, std::string>>{
           {"state", to_string(job.state)},
           {"step", steps_text(job)},
           {"pictures", std::to_string(job.pictures)},
           {"seed", seed_text(job)},
           {"degrees", degrees_text(job.parallelism)},
           {"time", duration_text(job.seconds)},
           {"priority", std::to_string(job.priority)},
           {"share", or_dash(job.share)},
           {"batch", batch_text(job)},
           {"prompt", job.prompt},
           {"cause", or_dash(in_options(job.cause))}}) {
    auto head = label;
    for (const auto& line : wrapped(shorten(value, kUncut), room)) {
      head.resize(kLabel, ' ');
      text += "  " + head + line + "\n";
      head.clear();
    }
  }
  return text;
}

std::vector<JobInfo> chosen_jobs(std::vector<JobInfo> jobs, std::uint64_t id) {
  if (id == 0) return jobs;
  std::erase_if(jobs, [id](const JobInfo& job) { return job.id != id; });
  if (jobs.empty())
    throw CommandError(Error{ErrorCode::not_found, fmt::format("job {} is not known here", id)});
  return jobs;
}

}  // namespace troupe::cli
