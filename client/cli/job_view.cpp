#include "client/cli/job_view.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/format.h"
#include "base/text.h"
#include "client/cli/cluster_view.h"
#include "client/cli/table.h"
#include "client/cli/verb.h"

namespace troupe::cli {
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
                    fitted(job.prompt, 48), shorten(job.cause, kUncut)});
  }
  Row heads = {"ID",    "STATE", "STEP", "PICTURES", "PRIO",
               "SHARE", "BATCH", "TIME", "PROMPT",   "CAUSE"};
  if (limited && table_width(heads, rows) > width) leave_out_empty(heads, rows);
  if (limited && table_width(heads, rows) > width) {
    cut = true;
    cut_texts(heads, rows, width);
  }
  auto text = table(heads, rows, width, Overflow::shorten, state_column(heads));
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
  for (const auto& [label, value] :
       std::vector<std::pair<std::string, std::string>>{{"state", to_string(job.state)},
                                                        {"step", steps_text(job)},
                                                        {"pictures", std::to_string(job.pictures)},
                                                        {"seed", seed_text(job)},
                                                        {"degrees", degrees_text(job.parallelism)},
                                                        {"time", duration_text(job.seconds)},
                                                        {"priority", std::to_string(job.priority)},
                                                        {"share", or_dash(job.share)},
                                                        {"batch", batch_text(job)},
                                                        {"prompt", job.prompt},
                                                        {"cause", or_dash(job.cause)}}) {
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
