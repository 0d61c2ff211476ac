#include <iostream>
#include <map>
#include <set>
#include <stdexcept>

#include "base/files.h"
#include "base/format.h"
#include "client/cli/endpoint.h"
#include "client/cli/files.h"
#include "client/cli/follow.h"
#include "client/cli/json.h"
#include "client/cli/request_options.h"
#include "client/cli/verb.h"
#include "models/image/clip_text.h"
#include "models/image/limits.h"
#include "transport/json/recorded_request.h"
#include "transport/wire/request_fields.h"

namespace troupe::cli {
namespace {

class SubmitVerb : public Verb {
 public:
  explicit SubmitVerb(Options& parent)
      : Verb(parent, "submit", "Make pictures on a running cluster") {
    add_connect_option(*app_, target_);
    add_request_options(*app_, request_);
    add_degree_options(*app_, request_);
    add_elastic_option(*app_, request_);
    add_queue_options(*app_, request_);
    add_result_options(*app_, results_);
    add_preview_options(*app_, results_);
    app_->add_option(
            "--from", from_,
            "Take what is not given here from this PNG, MP4 or WebM: the request that made it")
        ->check(not_empty())
        ->type_name("FILE");
    app_->add_flag("--detach", detach_, "Print the job's ID and go; fetch with `troupe wait ID`");
    set_footer("Without --model the cluster's own model is taken. Ctrl-C cancels the job.",
               {"troupe submit --prompt \"a green star\" --cfg 2 --pp 2 --output star.png",
                "troupe submit --prompt \"a cat\" --n 8 --dp 2 --output \"cat-{}.png\" --json",
                "id=$(troupe submit --prompt \"a dog\" --detach) && troupe wait $id"},
               "commands.md#submit");
  }

  int run() override {
    if (!from_.empty()) take_from_picture();
    take_prompts(request_, "submit");
    settle(request_);
    check_preview_options(*app_);
    settle_output(*app_, request_.request, results_);
    checked_endpoint(target_.endpoint);
    if (detach_) {
      refuse_with_detach();
    } else {
      check_outputs(results_, picture_count(request_), json() ? Report::json : Report::text);
    }
    Submission submission = make_submission(request_);
    submission.detached = detach_;
    ask_for_results(results_, submission.request);
    const SignalWatch signals;
    Client client = connect(target_, signals);
    if (detach_) {
      const std::uint64_t job = hand_in(client, submission);
      goes_on_ = fmt::format(
          "job {0} was accepted: `troupe wait {0}` fetches what it makes, `troupe cancel {0}` ends "
          "it",
          job);
      if (json()) {
        print_json({{"job", job}});
      } else {
        std::cout << job << std::endl;
      }
      return kOk;
    }
    if (!video_option(results_).empty())
      check_video(results_,
                  submission.model.empty() ? take(client.status()).model : submission.model);
    return follow_job(
        client,
        [&](Client::OnProgress on_progress) {
          return accepted(client.submit(submission, std::move(on_progress)), submission);
        },
        results_, json() ? Report::json : Report::text, signals);
  }

 private:
  void take_from_picture() {
    const auto given = [&](const std::string& option) {
      return !option.empty() && app_->count(option) > 0;
    };
    const std::map<std::string, std::string> inputs = {{"init_image", "--init-image"},
                                                       {"mask_image", "--mask"},
                                                       {"init_latents", "--init-latents"},
                                                       {"prompt_embeds", "--prompt-embeds"}};
    std::set<std::string> brought;
    for (const auto& [field, option] : inputs)
      if (given(option)) brought.insert(field);
    ImageRequest& request = request_.request;
    // A prompt takes the place of embeds.
    const bool own_prompts = !request.prompts.empty() || brought.contains("prompt_embeds");
    if (own_prompts) brought.insert("prompt_embeds");
    const ImageRequest made = naming("--from", [&] {
      const auto file = read_file(from_, models::kMaxPictureBytes);
      try {
        ImageRequest read;
        const auto [fields, image] = wire::recorded_request(models::read_file_text(file), brought);
        wire::read_recorded(fields, read);
        if (read.images_per_prompt > 1 && !own_prompts && !given("--n") && !given("--seed"))
          std::cerr << fmt::format(
              "troupe: {} is number {}, counted from 0, of the {} pictures of one seed, which are "
              "all made again\n",
              from_, image, read.images_per_prompt);
        return read;
      } catch (const wire::MissingInput& missing) {
        throw std::runtime_error(
            fmt::format("{}: was made with {}, which is not in it: give it, too", from_,
                        inputs.at(missing.field)));
      } catch (const std::runtime_error& error) {
        throw std::runtime_error(from_ + ": " + error.what());
      }
    });
    if (!own_prompts) request.prompts = made.prompts;
    const auto copied = [&](const wire::RequestField& field) {
      return field.option != "--preview" && field.name != wire::kRequestFields.prompts.name &&
             !given(std::string(field.option));
    };
#define REQUEST_FIELD(type, member, initial, ...) \
  if (copied(wire::kRequestFields.member)) request.member = made.member;
#include "transport/wire/request_fields.def"
    if (given("--prompt-embeds")) request.negative_prompt.reset();
    if (!given("--method")) request_.method = request.method;
  }

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
  std::string from_;
};

}  // namespace

std::unique_ptr<Verb> make_submit(Options& parent) {
  return std::make_unique<SubmitVerb>(parent);
}

}  // namespace troupe::cli
