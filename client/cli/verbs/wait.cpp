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
        ->type_name("");
    app_->add_flag("--all", all_,
                   "All jobs that have not ended: say how each ends, and write nothing");
    add_connect_option(*app_, target_);
    add_result_options(*app_, results_);
    set_footer(
        "--save-latents needs a job that was handed in with it. Ctrl-C and --timeout leave the job "
        "alone. The exit code of --all is 1 where a job failed or was cancelled.",
        {"troupe wait 3 --output dog.png", "troupe wait --all --timeout 600"}, "commands.md#wait");
  }

  int run() override {
    if (all_) return wait_for_all();
    const std::uint64_t job = checked_job_id("wait", id_);
    checked_endpoint(target_.endpoint);
    check_outputs(results_, 1, json() ? Report::json : Report::text);
    results_.cancels = false;
    const SignalWatch signals;
    Client client = connect(target_, signals);
    return follow_job(
        client, [&](const Client::OnProgress&) { return job; }, results_,
        json() ? Report::json : Report::text, signals);
  }

 private:
  int wait_for_all() {
    for (const char* option : {"ID", "--output", "--fps", "--save-latents"})
      if (app_->count(option) > 0)
        throw UsageError(std::string(option) + " does not go with --all, which writes nothing");
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

}  // namespace

std::unique_ptr<Verb> make_wait(Options& options) {
  return std::make_unique<WaitVerb>(options);
}

}  // namespace troupe::cli
