#include <iostream>
#include <mutex>
#include <nlohmann/json.hpp>

#include "client/cli/json.h"
#include "client/cli/progress.h"
#include "client/cli/verb.h"
#include "client/repl/command.h"
#include "client/repl/options.h"
#include "client/repl/session.h"

namespace troupe::repl {
namespace {

using cli::CommandError;
using cli::take;
using cli::UsageError;
using std::chrono::milliseconds;

/// Shows progress until the job ends; its pictures stay with the controller.
void show_progress(Session& session, std::uint64_t job, const cli::ResultOptions& options) {
  struct Shown {
    std::mutex mutex;
    bool over = false;
    cli::ProgressView view;
    explicit Shown(bool quiet) : view(std::cerr, cli::progress_style(quiet)) {}
  };
  // Shared with the callback, which may outlive this call by a moment.
  auto shown = std::make_shared<Shown>(options.quiet);
  Client::OnProgress on_progress = [shown](const Progress& progress) {
    std::lock_guard lock(shown->mutex);
    if (!shown->over) shown->view.show(progress);
  };
  const auto deadline = std::chrono::steady_clock::now() +
                        std::chrono::duration_cast<milliseconds>(
                            std::chrono::duration<double>(options.timeout_seconds));
  std::optional<Error> error;
  for (;;) {
    constexpr milliseconds kSlice{200};
    const auto result = session.client().wait(job, kSlice, std::exchange(on_progress, nullptr));
    if (!result && result.error().code == ErrorCode::timeout) {
      {
        std::lock_guard lock(shown->mutex);
        shown->view.tick();
      }
      if (session.signals().caught() == 0 && std::chrono::steady_clock::now() < deadline) continue;
      error =
          Error{ErrorCode::interrupted, "stopped following " + name_of(job) + ", which goes on"};
    } else if (!result) {
      error = result.error();
    }
    break;
  }
  {
    std::lock_guard lock(shown->mutex);
    shown->view.finish();
    shown->over = true;
  }
  if (error) throw CommandError(*error);
  if (session.json()) return cli::print_json_line({{"job", job}, {"state", "succeeded"}});
  std::cout << name_of(job) << " succeeded\n";
}

void submit(Session& session, const Words& words) {
  SubmitLine line;
  if (!parse(line.app, words, session.json())) return;
  cli::take_prompts(line.request, "submit");
  cli::settle(line.request);
  cli::check_preview_options(line.app);
  cli::settle_output(line.app, line.request.request, line.results);
  const bool writes = line.app.count("--output") > 0 || line.app.count("--save-latents") > 0 ||
                      line.app.count("--preview") > 0;
  if (writes) cli::check_outputs(line.results, cli::picture_count(line.request), session.report());
  Submission submission = cli::make_submission(line.request);
  submission.detached = true;
  cli::ask_for_results(line.results, submission.request);
  if (line.results.frames_per_second && !writes)
    throw UsageError("--fps needs --output: else no file is written");
  if (!cli::video_option(line.results).empty()) {
    cli::check_video(line.results, submission.model.empty() ? take(session.client().status()).model
                                                            : submission.model);
  }
  if (writes) {
    line.results.cancels = false;
    const auto begin = [&](Client::OnProgress on_progress) {
      return cli::accepted(session.client().submit(submission, std::move(on_progress)), submission);
    };
    cli::follow_job(session.client(), begin, line.results, session.report(), session.signals());
    return;
  }
  const std::uint64_t job = cli::hand_in(session.client(), submission);
  if (!session.json()) std::cout << name_of(job) << std::endl;
  if (line.follows) return show_progress(session, job, line.results);
  if (session.json()) cli::print_json_line({{"job", job}});
}

void follow(Session& session, const Words& words) {
  FollowLine line;
  if (!parse(line.app, words, session.json())) return;
  const auto job = job_of(line.job);
  const bool writes = line.app.count("--output") > 0 || line.app.count("--save-latents") > 0;
  if (line.results.frames_per_second && !writes)
    throw UsageError("--fps needs --output: else no file is written");
  if (!writes) return show_progress(session, job, line.results);
  cli::check_outputs(line.results, 1, session.report());
  line.results.cancels = false;
  cli::follow_job(
      session.client(), [&](const Client::OnProgress&) { return job; }, line.results,
      session.report(), session.signals());
}

void cancel(Session& session, const Words& words) {
  const auto job = job_of(words[0]);
  const std::string note = take(session.client().cancel(job));
  if (session.json()) return cli::print_json_line({{"job", job}, {"note", note}});
  std::cout << note << "\n";
}

}  // namespace

std::vector<Command> job_commands() {
  const auto job = std::vector{Argument::job};
  return {
      {.name = "submit",
       .arguments = "--prompt TEXT [OPTIONS]",
       .summary = "hand a job in",
       .details =
           "The options are those of `troupe submit`; `submit --help` lists them. The job goes on\n"
           "when the console is left. --output FILE.png waits for it and writes its pictures.",
       .completes = {},
       .run = submit,
       .has_options = true},
      {.name = "follow",
       .arguments = "JOB [OPTIONS]",
       .summary = "show a job's progress until it ends",
       .details = "Ctrl-C stops following; the job goes on. With --output FILE.png its pictures "
                  "are written,\n"
                  "with --save-latents F.safetensors its latents, if it was asked for them.",
       .completes = job,
       .run = follow,
       .has_options = true},
      {.name = "cancel",
       .arguments = "JOB",
       .summary = "end a job at its next micro-step",
       .details = {},
       .completes = job,
       .least = 1,
       .most = 1,
       .run = cancel},
  };
}

}  // namespace troupe::repl
