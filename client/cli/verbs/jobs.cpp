#include <algorithm>
#include <iostream>
#include <utility>

#include "client/cli/endpoint.h"
#include "client/cli/json.h"
#include "client/cli/table.h"
#include "client/cli/verb.h"

namespace troupe::cli {
namespace {

/// Takes out the columns that say nothing of any job, so that the others have their place.
void leave_out_empty(Row& heads, std::vector<Row>& rows) {
  for (const auto& [head, nothing] : {std::pair{"PRIO", "0"}, {"SHARE", "-"}, {"CAUSE", ""}}) {
    const auto column = std::find(heads.begin(), heads.end(), head) - heads.begin();
    if (std::any_of(rows.begin(), rows.end(),
                    [&, nothing = nothing](const Row& row) { return row[column] != nothing; }))
      continue;
    heads.erase(heads.begin() + column);
    for (Row& row : rows)
      row.erase(row.begin() + column);
  }
}

class JobsVerb : public Verb {
 public:
  explicit JobsVerb(CLI::App& parent)
      : Verb(parent, "jobs", "List the jobs: queued, running and ended") {
    add_connect_option(*app_, target_);
    app_->footer(
        "Ended jobs are remembered, the last 256 of them: `troupe wait ID` still writes their "
        "pictures.\nCAUSE says why a job failed, and of a queued one what it waits for.");
  }

  int run() override {
    Client client = connect(target_);
    const std::vector<JobInfo> jobs = take(client.jobs());
    if (json()) {
      auto list = nlohmann::json::array();
      for (const JobInfo& job : jobs)
        list.push_back(to_json(job));
      print_json({{"jobs", list}});
      return kOk;
    }
    if (jobs.empty()) {
      std::cout << "no jobs" << std::endl;
      return kOk;
    }
    std::vector<Row> rows;
    for (const JobInfo& job : jobs) {
      rows.push_back({std::to_string(job.id), job.state,
                      std::to_string(job.step) + "/" + std::to_string(job.steps),
                      std::to_string(job.pictures), std::to_string(job.priority),
                      job.share.empty() ? "-" : shorten(job.share, 16), duration_text(job.seconds),
                      shorten(job.prompt, 48), job.cause});
    }
    Row heads = {"ID", "STATE", "STEP", "PICTURES", "PRIO", "SHARE", "TIME", "PROMPT", "CAUSE"};
    const std::size_t width = output_width();
    if (width != 0 && table_width(heads, rows) > width) leave_out_empty(heads, rows);
    std::cout << table(heads, rows, width, Overflow::shorten) << std::flush;
    return kOk;
  }

 private:
  Target target_;
};

}  // namespace

std::unique_ptr<Verb> make_jobs(CLI::App& parent) {
  return std::make_unique<JobsVerb>(parent);
}

}  // namespace troupe::cli
