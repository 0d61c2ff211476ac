#include <iostream>

#include "client/cli/endpoint.h"
#include "client/cli/json.h"
#include "client/cli/table.h"
#include "client/cli/verb.h"

namespace troupe::cli {
namespace {

class JobsVerb : public Verb {
 public:
  explicit JobsVerb(CLI::App& parent)
      : Verb(parent, "jobs", "List the jobs: queued, running and ended") {
    add_connect_option(*app_, target_);
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
                      shorten(job.share, 16), duration_text(job.seconds), shorten(job.prompt, 48),
                      job.cause});
    }
    std::cout << table({"ID", "STATE", "STEP", "PICTURES", "PRIO", "SHARE", "TIME", "PROMPT",
                        "CAUSE"},
                       rows, output_width(), Overflow::shorten)
              << std::flush;
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
