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
    add_connect_option(*app_, endpoint_);
  }

  int run() override {
    Client client = take(Client::connect(checked_endpoint(endpoint_)));
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
                      std::to_string(job.pictures), duration_text(job.seconds),
                      shorten(job.prompt, 48), job.cause});
    }
    std::cout << table({"ID", "STATE", "STEP", "PICTURES", "TIME", "PROMPT", "CAUSE"}, rows,
                       output_width(), Overflow::shorten)
              << std::flush;
    return kOk;
  }

 private:
  std::string endpoint_;
};

}  // namespace

std::unique_ptr<Verb> make_jobs(CLI::App& parent) {
  return std::make_unique<JobsVerb>(parent);
}

}  // namespace troupe::cli
