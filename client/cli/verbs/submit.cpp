#include <iostream>
#include <map>
#include <set>
#include <stdexcept>

#include "base/files.h"
#include "base/format.h"
#include "base/text.h"
#include "client/cli/files.h"
#include "client/cli/follow.h"
#include "client/cli/json.h"
#include "client/cli/request_options.h"
#include "client/cli/terminal.h"
#include "client/cli/verb.h"
#include "models/image/clip_text.h"
#include "models/image/limits.h"
#include "models/spec/hub.h"
#include "transport/json/recorded_request.h"
#include "transport/wire/request_fields.h"

namespace troupe::cli {
namespace {

class SubmitVerb : public SharedVerb {
 public:
  SubmitVerb(Options& options, Where where) : SharedVerb(options, where) {
    add_connect();
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
    if (in_console()) {
      app_->add_flag("--follow", follows_, "Show progress until the job ends");
      app_->add_flag("--detach", detach_, "Print the job's ID and go, as without --follow");
      app_->get_option("--output")->default_str("");  // without it nothing is written here
    } else {
      app_->add_flag("--detach", detach_, "Print the job's ID and go; fetch with `troupe wait ID`");
    }
    app_->add_rivals(
        {"--detach", "--follow", "--output", "--fps", "--preview", "--timeout", "--show"});
    set_footer(in_console()
                   ? "Without --model the cluster's own model is taken. The job goes on when the "
                     "console is left; --follow or --output waits."
                   : "Without --model the cluster's own model is taken. Ctrl-C cancels the job.",
               {"troupe submit --prompt \"a green star\" --cfg 2 --pp 2 --output star.png",
                "troupe submit --prompt \"a cat\" --n 8 --dp 2 --output \"cat-{}.png\" --json",
                "id=$(troupe submit --prompt \"a dog\" --detach) && troupe wait $id"},
               "commands.md#submit");
  }

  bool shows_progress() const override { return true; }

  void check() override {
    settled_ = request_;
    wanted_ = results_;
    note_.clear();
    made_with_.clear();
    if (!from_.empty()) take_from_picture();
    take_prompts(settled_, "submit");
    settle(settled_);
    settle_output(*app_, settled_.request, wanted_);
    if (detach_)
      refuse_beside(*app_, "--detach",
                    {"--follow", "--output", "--fps", "--preview", "--show", "--timeout"},
                    ": `" + std::string(in_console() ? "follow JOB" : "troupe wait ID") +
                        "` follows the job and writes what it makes");
    writes_ = in_console() ? app_->count("--output") > 0 || app_->count("--save-latents") > 0 ||
                                 app_->count("--preview") > 0
                           : !detach_;
    if (in_console() && !writes_) {
      if (app_->count("--fps") > 0)
        throw UsageError("--fps needs --output: else no file is written");
      if (wanted_.show) throw UsageError("--show needs --output: else no picture comes here");
      if (app_->count("--timeout") > 0 && !follows_)
        throw UsageError("--timeout needs --follow or --output: else nobody waits");
    }
    writes_ ? check_results(*app_, wanted_, picture_count(settled_), report())
            : check_names(wanted_);
  }

 protected:
  int run_on(Connections& at) override {
    check_target();
    if (!note_.empty()) std::cerr << note_;
    if (writes_) check_outputs(wanted_, picture_count(settled_));
    Submission submission = make_submission(settled_);
    submission.detached = detach_ || in_console();
    ask_for_results(wanted_, submission.request);
    const SignalWatch& signals = at.signals();
    Client& client = at.client();
    warn_of_other_model(client, submission.model);
    if (!writes_) return leave(at, hand_in(client, submission));
    if (!video_option(wanted_).empty())
      check_video(wanted_,
                  submission.model.empty() ? take(client.status()).model : submission.model);
    wanted_.cancels = !in_console();
    return follow_job(
        client,
        [&](Client::OnProgress on_progress) {
          return accepted(client.submit(submission, std::move(on_progress)), submission);
        },
        wanted_, report(), signals);
  }

 private:
  /// Tells the number of a job that goes on by itself, and follows it if that is wanted.
  int leave(Connections& at, std::uint64_t job) {
    goes_on_ = fmt::format(
        "job {0} was accepted: `troupe wait {0}` fetches what it makes, `troupe cancel {0}` ends "
        "it",
        job);
    if (!json()) std::cout << (in_console() ? "job " : "") << job << std::endl;
    if (follows_) return show_progress(at.client(), job, wanted_, report(), at.signals());
    if (json()) print({{"job", job}});
    return kOk;
  }

  /// Warns where the picture that the request is taken from was made with a model of another name.
  void warn_of_other_model(Client& client, const std::string& given) const {
    if (made_with_.empty()) return;
    const std::string model = given.empty() ? take(client.status()).model : given;
    if (const auto own = spec::model_label(model); !model.empty() && own != made_with_)
      say("warning: " + from_ + " was made with the model " + made_with_ + ", and this is with " +
          own + (given.empty() ? "; --model names another" : ""));
  }

  /// Holds how often an option for pictures is given against how many there were.
  void check_count(const std::string& option, int recorded) const {
    const auto given = static_cast<int>(app_->count(option));
    if (given != 0 && recorded != 0 && given != recorded)
      throw std::runtime_error(fmt::format("was made with {} by {}, not with {}",
                                           counted(recorded, "picture"), option, given));
  }

  void take_from_picture() {
    const auto given = [&](const std::string& option) {
      return !option.empty() && app_->count(option) > 0;
    };
    const std::map<std::string, std::string> inputs = {{"init_image", "--init-image"},
                                                       {"mask_image", "--mask"},
                                                       {"images", "--image"},
                                                       {"last_image", "--last-image"},
                                                       {"control_images", "--control-image"},
                                                       {"controlnets", "--controlnet"},
                                                       {"init_latents", "--init-latents"},
                                                       {"prompt_embeds", "--prompt-embeds"}};
    std::set<std::string> brought;
    for (const auto& [field, option] : inputs)
      if (given(option)) brought.insert(field);
    ImageRequest& request = settled_.request;
    // A prompt takes the place of embeds.
    const bool own_prompts = !request.prompts.empty() || !settled_.bare_words.empty() ||
                             brought.contains("prompt_embeds");
    if (own_prompts) brought.insert("prompt_embeds");
    const ImageRequest made = naming("--from", [&] {
      const auto file = read_file(from_, models::kMaxPictureBytes);
      try {
        ImageRequest read;
        const auto recorded = wire::recorded_request(models::read_file_text(file), brought);
        const auto& fields = recorded.fields;
        check_count("--image", recorded.images);
        check_count("--control-image", recorded.control_images);
        wire::read_recorded(fields, read);
        made_with_ = on_one_line(fields.value("model", ""));
        if (read.images_per_prompt > 1 && !own_prompts && !given("--n") && !given("--seed"))
          note_ = fmt::format(
              "troupe: {} is number {}, counted from 0, of the {} pictures of one seed, which are "
              "all made again\n",
              from_, recorded.image, read.images_per_prompt);
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
             field.name != wire::kRequestFields.loras.name && !given(std::string(field.option));
    };
#define REQUEST_FIELD(type, member, initial, ...) \
  if (copied(wire::kRequestFields.member)) request.member = made.member;
#include "transport/wire/request_fields.def"
    // LoRAs of an option take the place of the recorded ones of its transformer alone.
    request.loras = made.loras;
    std::erase_if(request.loras, [&](const Lora& lora) {
      return given(std::string(lora.of_second ? wire::kJobOptions.second_lora
                                              : wire::kRequestFields.loras.option));
    });
    if (given("--prompt-embeds")) request.negative_prompt.reset();
    if (!given("--method")) settled_.method = request.method;
  }

  RequestOptions request_, settled_;
  ResultOptions results_, wanted_;
  bool writes_ = false;  // files, here, when the job has ended
  bool detach_ = false;
  bool follows_ = false;  // in the console
  std::string note_;      // about the picture that the request is taken from
  std::string from_;
  std::string made_with_;  // name of the model that made that picture
};

}  // namespace

std::unique_ptr<SharedVerb> make_submit(Options& options, Where where) {
  return std::make_unique<SubmitVerb>(options, where);
}

}  // namespace troupe::cli
