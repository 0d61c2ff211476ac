#include <iostream>

#include "client/cli/endpoint.h"
#include "client/cli/follow.h"
#include "client/cli/json.h"
#include "client/cli/request_options.h"
#include "client/cli/verb.h"

namespace troupe::cli {
namespace {

class SubmitVerb : public Verb {
 public:
  explicit SubmitVerb(CLI::App& parent)
      : Verb(parent, "submit", "Make pictures on a running cluster") {
    add_connect_option(*app_, target_);
    add_request_options(*app_, request_);
    add_degree_options(*app_, request_);
    add_elastic_option(*app_, request_);
    add_queue_options(*app_, request_);
    add_result_options(*app_, results_);
    add_preview_options(*app_, results_);
    app_->add_flag("--detach", detach_, "Print the job's ID and go; fetch with `troupe wait ID`");
    set_footer("Without --model the cluster's own model is taken. Ctrl-C cancels the job.",
               {"troupe submit --prompt \"a green star\" --cfg 2 --pp 2 --output star.png",
                "troupe submit --prompt \"a cat\" --n 8 --dp 2 --output \"cat-{}.png\" --json",
                "id=$(troupe submit --prompt \"a dog\" --detach) && troupe wait $id"},
               "commands.md#submit");
  }

  int run() override {
    take_prompts(request_, "submit");
    settle(request_);
    check_preview_options(*app_);
    settle_output(*app_, request_.request, results_);
    checked_endpoint(target_.endpoint);
    if (detach_) {
      refuse_with_detach();
    } else {
      check_outputs(results_, picture_count(request_));
    }
    Submission submission = make_submission(request_);
    submission.detached = detach_;
    ask_for_results(results_, submission.request);
    const SignalWatch signals;
    Client client = connect(target_);
    if (detach_) {
      const std::uint64_t job = hand_in(client, submission);
      if (json()) {
        print_json({{"job", job}});
      } else {
        std::cout << job << std::endl;
      }
      return kOk;
    }
    if (results_.frames_per_second)
      check_speed(results_,
                  submission.model.empty() ? take(client.status()).model : submission.model);
    return follow_job(
        client,
        [&](Client::OnProgress on_progress) {
          return accepted(client.submit(submission, std::move(on_progress)), submission);
        },
        results_, json() ? Report::json : Report::text, signals);
  }

 private:
  /// `--save-latents` stays: the job is asked for latents, which `troupe wait` then writes.
  void refuse_with_detach() const {
    for (const char* option : {"--output", "--fps", "--preview"}) {
      if (app_->count(option) > 0)
        throw UsageError(std::string(option) +
                         " does not go with --detach: `troupe wait ID` writes the pictures");
    }
    if (app_->count("--timeout") > 0)
      throw UsageError(
          "--timeout does not go with --detach: nobody would be there to cancel the job");
    check_names(results_);
  }

  Target target_;
  RequestOptions request_;
  ResultOptions results_;
  bool detach_ = false;
};

}  // namespace

std::unique_ptr<Verb> make_submit(CLI::App& parent) {
  return std::make_unique<SubmitVerb>(parent);
}

}  // namespace troupe::cli
