#include <iostream>
#include <optional>

#include "base/format.h"
#include "client/cli/cluster_view.h"
#include "client/cli/endpoint.h"
#include "client/cli/json.h"
#include "client/cli/terminal.h"
#include "client/cli/verb.h"

namespace troupe::cli {
namespace {

class JobsVerb : public SharedVerb {
 public:
  JobsVerb(Options& options, Where where) : SharedVerb(options, where) {
    app_->add_option("ID", id_, "A job: as much of it as the controller tells")
        ->default_str("all")
        ->type_name("")
        ->kind(ValueKind::job);
    app_->add_option("--limit", limit_, "How many of them at most; 0 = all")
        ->check(whole(0, 1'000'000))
        ->default_str(std::to_string(kShownRows) + ", with --json all");
    app_->add_option("--skip", skip_, "Leave out so many before that")
        ->check(whole(0, 1'000'000))
        ->capture_default_str();
    add_connect();
    set_footer(
        "Running jobs come first, then waiting ones in the order of their turns, then ended ones, "
        "the newest first; what is shown of these is sorted by number. Ended jobs are remembered, "
        "the last 256 of them: `troupe wait ID` still writes their "
        "pictures. CAUSE says why a job failed, and of a queued one what it waits for; jobs of one "
        "BATCH compute as one. On a terminal lines are cut to fit; a file, a pipe and --json have "
        "as much as the controller tells: 200 bytes of a prompt, 1000 of a cause. `troupe wait ID` "
        "has the whole cause.",
        {"troupe jobs", "troupe jobs 3 --json"}, "commands.md#jobs");
  }

  void check() override {
    if (!id_.empty()) refuse_beside(*app_, "ID", {"--limit", "--skip"}, ": one job is no list");
  }

 protected:
  int run_on(Connections& at) override {
    const auto id = app_->count("ID") > 0 ? checked_job_id("jobs", id_) : 0;
    const auto limit = limit_.value_or(json() ? 0 : kShownRows);
    const auto page =
        take(at.client().jobs({.job = id, .skip = skip_, .most = id == 0 ? limit : 0}));
    const auto jobs = chosen_jobs(page.jobs, id);
    if (json()) {
      auto list = nlohmann::json::array();
      for (const JobInfo& job : jobs)
        list.push_back(to_json(job));
      nlohmann::json document = {{"jobs", list}};
      if (id == 0) document["all"] = page.all;
      print(document);
    } else if (id != 0) {
      std::cout << job_text(jobs.front(), output_width()) << std::flush;
    } else if (jobs.empty()) {
      std::cout << (skip_ > 0 ? fmt::format("no more jobs: there are {}", page.all) : "no jobs")
                << std::endl;
    } else {
      const auto next = skip_ + jobs.size();
      std::cout << jobs_table(jobs, output_width(), command())
                << shown_text(jobs.size(), page.all, "jobs",
                              next < page.all ? fmt::format("{} --skip {}", command(), next) : "")
                << std::flush;
    }
    return kOk;
  }

 private:
  std::string command() const { return in_console() ? "jobs" : "troupe jobs"; }

  std::string id_;
  std::optional<std::size_t> limit_;
  std::size_t skip_ = 0;
};

}  // namespace

std::unique_ptr<SharedVerb> make_jobs(Options& options, Where where) {
  return std::make_unique<JobsVerb>(options, where);
}

}  // namespace troupe::cli
