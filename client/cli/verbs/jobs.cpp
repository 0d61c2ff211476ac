#include <unistd.h>

#include <chrono>
#include <iostream>
#include <optional>
#include <set>
#include <thread>

#include "base/format.h"
#include "base/text.h"
#include "client/cli/cluster_view.h"
#include "client/cli/follow.h"
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

namespace {

class CancelVerb : public SharedVerb {
 public:
  CancelVerb(Options& options, Where where) : SharedVerb(options, where) {
    app_->add_option("ID", id_, "The job, as `troupe jobs` names it")->kind(ValueKind::job);
    add_connect();
    set_footer("What was issued before still runs to its end: some micro-steps at most.",
               {"troupe cancel 3"}, "commands.md#cancel");
  }

 protected:
  int run_on(Connections& at) override {
    const std::uint64_t job = checked_job_id("cancel", id_);
    const std::string note = take(at.client().cancel(job));
    if (json()) {
      print({{"job", job}, {"note", note}});
    } else {
      const std::string name = fmt::format("job {}", job);
      if (note.rfind(name + " ", 0) != 0) std::cout << name << ": ";
      std::cout << (note.empty() ? "cancelled" : one_line(note)) << std::endl;
    }
    return kOk;
  }

 private:
  std::string id_;
};

}  // namespace

std::unique_ptr<SharedVerb> make_cancel(Options& options, Where where) {
  return std::make_unique<CancelVerb>(options, where);
}

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
                      << (job.cause.empty() ? "" : ": " + one_line(in_options(job.cause)))
                      << std::endl;
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
