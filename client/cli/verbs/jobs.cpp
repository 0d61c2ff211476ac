#include <iostream>

#include "client/cli/endpoint.h"
#include "client/cli/job_view.h"
#include "client/cli/json.h"
#include "client/cli/table.h"
#include "client/cli/verb.h"

namespace troupe::cli {
namespace {

class JobsVerb : public Verb {
 public:
  explicit JobsVerb(CLI::App& parent)
      : Verb(parent, "jobs", "List the jobs: queued, running and ended; or one alone") {
    app_->add_option("ID", id_, "A job: as much of it as the controller tells")
        ->default_str("all")
        ->type_name("");
    add_connect_option(*app_, target_);
    set_footer(
        "Ended jobs are remembered, the last 256 of them: `troupe wait ID` still writes their "
        "pictures. CAUSE says why a job failed, and of a queued one what it waits for; jobs of one "
        "BATCH compute as one. On a terminal lines are cut to fit; a file, a pipe and --json have "
        "as much as the controller tells: 200 bytes of a prompt, 1000 of a cause. `troupe wait ID` "
        "has the whole cause.",
        {"troupe jobs", "troupe jobs 3 --json"}, "commands.md#jobs");
  }

  int run() override {
    const auto id = app_->count("ID") > 0 ? checked_job_id("jobs", id_) : 0;
    Client client = connect(target_);
    const auto jobs = chosen_jobs(take(client.jobs()), id);
    if (json()) {
      auto list = nlohmann::json::array();
      for (const JobInfo& job : jobs)
        list.push_back(to_json(job));
      print_json({{"jobs", list}});
    } else if (id != 0) {
      std::cout << job_text(jobs.front(), output_width()) << std::flush;
    } else if (jobs.empty()) {
      std::cout << "no jobs" << std::endl;
    } else {
      std::cout << jobs_table(jobs, output_width(), "troupe jobs") << std::flush;
    }
    return kOk;
  }

 private:
  std::string id_;
  Target target_;
};

}  // namespace

std::unique_ptr<Verb> make_jobs(CLI::App& parent) {
  return std::make_unique<JobsVerb>(parent);
}

}  // namespace troupe::cli
