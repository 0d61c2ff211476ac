#include <unistd.h>

#include <chrono>
#include <iostream>
#include <set>
#include <thread>

#include "base/format.h"
#include "base/text.h"
#include "client/cli/cluster_view.h"
#include "client/cli/endpoint.h"
#include "client/cli/follow.h"
#include "client/cli/json.h"
#include "client/cli/verb.h"

namespace troupe::cli {
namespace {

class WaitVerb : public Verb {
 public:
  explicit WaitVerb(Options& options) : Verb(options) {
    app_->add_option("ID", id_, "The job, as `troupe submit --detach` and `troupe jobs` name it")
        ->default_str("or --all")
        ->type_name("")
        ->kind(ValueKind::job);
    app_->add_flag("--all", all_,
                   "All jobs that have not ended: say how each ends, and write nothing");
    add_connect_option(*app_, target_);
    add_result_options(*app_, results_);
    app_->add_rivals({"ID", "--all", "--output", "--fps", "--save-latents", "--show", "--quiet"});
    set_footer(
        "--save-latents needs a job that was handed in with it. Ctrl-C and --timeout leave the job "
        "alone. The exit code of --all is 1 where a job failed or was cancelled.",
        {"troupe wait 3 --output dog.png", "troupe wait --all --timeout 600"}, "commands.md#wait");
  }

  void check() override {
    if (all_) {
      refuse_beside(*app_, "--all",
                    {"ID", "--output", "--fps", "--save-latents", "--show", "--show-as", "--quiet"},
                    ", which says how jobs end and writes nothing");
      return;
    }
    checked_job_id("wait", id_);
    check_results(*app_, results_, 1, json() ? Report::json : Report::text);
  }

  int run() override {
    if (all_) return wait_for_all();
    const std::uint64_t job = checked_job_id("wait", id_);
    checked_endpoint(target_.endpoint);
    check_outputs(results_, 1);
    results_.cancels = false;
    const SignalWatch signals;
    Client client = connect(target_, signals);
    return follow_job(
        client, [&](const Client::OnProgress&) { return job; }, results_,
        json() ? Report::json : Report::text, signals);
  }

 private:
  int wait_for_all() {
    const SignalWatch signals;
    Client client = connect(target_, signals);
    const auto deadline = std::chrono::steady_clock::now() +
                          std::chrono::duration_cast<std::chrono::milliseconds>(
                              std::chrono::duration<double>(results_.timeout_seconds));
    std::set<std::uint64_t> waited;
    auto ended = nlohmann::json::array();
    bool good = true;
    for (;;) {
      std::size_t left = 0;
      for (const JobInfo& job : take(client.jobs())) {
        const bool over = has_ended(job.state);
        if (!over) {
          waited.insert(job.id);
          ++left;
        } else if (waited.erase(job.id) > 0) {
          good = good && job.state == JobState::succeeded;
          if (json())
            ended.push_back(
                {{"job", job.id}, {"state", to_string(job.state)}, {"cause", job.cause}});
          else
            std::cout << "job " << job.id << " "
                      << coloured(to_string(job.state), state_colour(job.state), STDOUT_FILENO)
                      << (job.cause.empty() ? "" : ": " + one_line(job.cause)) << std::endl;
        }
      }
      if (left == 0) break;
      std::optional<ErrorCode> why;
      if (signals.caught() != 0)
        why = ErrorCode::interrupted;
      else if (std::chrono::steady_clock::now() >= deadline)
        why = ErrorCode::timeout;
      if (why)
        throw CommandError(
            Error{*why,
                  fmt::format("stopped waiting{}: {} {} on",
                              why == ErrorCode::timeout
                                  ? " at the --timeout of " + seconds_text(results_.timeout_seconds)
                                  : "",
                              counted(left, "job"), left == 1 ? "goes" : "go")},
            signals.caught() != 0 ? signals.exit_code() : kFailed);
      std::this_thread::sleep_for(kAskJobsAgain);
    }
    if (json()) print_json({{"jobs", ended}});
    return good ? kOk : kFailed;
  }

  static constexpr std::chrono::milliseconds kAskJobsAgain{300};
  bool all_ = false;
  std::string id_;
  Target target_;
  ResultOptions results_;
};

/// The console's way to wait: it shows progress, and writes files only if it is told to.
class FollowVerb : public SharedVerb {
 public:
  FollowVerb(Options& options, Where where) : SharedVerb(options, where) {
    app_->add_option("JOB", id_, "The job, as `jobs` names it")->kind(ValueKind::job);
    add_connect();
    add_result_options(*app_, results_);
    app_->get_option("--output")->default_str("");
  }

  bool shows_progress() const override { return true; }

  void check() override {
    checked_job_id("follow", id_);
    writes_ = app_->count("--output") > 0 || app_->count("--save-latents") > 0;
    if (!writes_) refuse_beside(*app_, "follow", {"--fps", "--show"}, " without --output");
    check_results(*app_, results_, 1, report());
  }

 protected:
  int run_on(Connections& at) override {
    const std::uint64_t job = checked_job_id("follow", id_);
    if (!writes_) return show_progress(at.client(), job, results_, report(), at.signals());
    check_outputs(results_, 1);
    results_.cancels = false;
    return follow_job(
        at.client(), [&](const Client::OnProgress&) { return job; }, results_, report(),
        at.signals());
  }

 private:
  std::string id_;
  ResultOptions results_;
  bool writes_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_wait(Options& options) {
  return std::make_unique<WaitVerb>(options);
}

std::unique_ptr<SharedVerb> make_follow(Options& options, Where where) {
  return std::make_unique<FollowVerb>(options, where);
}

}  // namespace troupe::cli
