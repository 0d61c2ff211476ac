#include <algorithm>

#include "base/format.h"
#include "base/text.h"
#include "models/image/png_text.h"
#include "models/spec/scheduler_config.h"
#include "web/api.h"
#include "web/calls.h"
#include "web/encodings.h"
#include "web/webui_call.h"

/// The subset of the AUTOMATIC1111 web UI's API that its clients use most. Source: its
/// modules/api/models.py.
namespace troupe::web {
namespace {

const std::string kParameters = "parameters";  // keyword of the web UI's text in PNGs
constexpr int kPreviews = 9;                   // of a job that its clients ask after

/// Returns the fields of a request that the web UI's answers repeat.
nlohmann::json parameters_json(const ImageRequest& request) {
  return {{"prompt", request.prompts[0]},
          {"negative_prompt", request.negative_prompt.value_or("")},
          {"steps", request.steps},
          {"seed", request.seed},
          {"cfg_scale", request.guidance_scale.value()},
          {"sampler_name", request.sampler},
          {"width", request.width},
          {"height", request.height}};
}

/// Content of an answer beside the pictures.
struct Asked {
  WebuiCall call;  // without its jobs, with their warnings
  nlohmann::json parameters;
  std::vector<std::uint64_t> seeds;
};

/// Pictures of an answer.
struct Painted {
  std::shared_ptr<const JobResult> first;  // of two passes
  std::vector<std::shared_ptr<const JobResult>> results;
  std::string preview;  // of a job that was interrupted; "" = none
};

std::string parameters_of_file(const std::string& png) {
  for (const auto& [keyword, text] : models::read_png_text(png)) {
    if (keyword == kParameters) return text;
  }
  return "";
}

/// Returns a second pass's picture with the parameters that make both passes again.
std::string of_both_passes(const std::string& png, const std::string& first,
                           const WebuiCall& call) {
  auto texts = models::read_png_text(png);
  for (auto& [keyword, text] : texts) {
    if (keyword != kParameters) continue;
    text = parameters_of_second_pass(parameters_of_file(first), call.denoising_strength.value(),
                                     call.second_pass_says);
  }
  return models::set_png_text(png, texts);
}

/// Returns the pictures' files; the last may be the preview of one that was interrupted.
std::vector<std::string> files_of(const Painted& painted, const WebuiCall& call) {
  std::vector<std::string> files;
  for (const auto& result : painted.results) {
    for (const Picture& picture : result->pictures) {
      const std::size_t number = files.size();
      files.push_back(
          painted.first ? of_both_passes(picture.png, painted.first->pictures.at(number).png, call)
                        : picture.png);
    }
  }
  if (!painted.preview.empty()) files.push_back(painted.preview);
  return files;
}

/// Returns what the web UI's answer says of the pictures, with these `parameters` texts.
nlohmann::json info_json(const Asked& asked, const std::vector<std::string>& texts) {
  const std::string first = texts.empty() ? "" : texts[0];
  const std::size_t pictures = asked.seeds.size();
  nlohmann::json info = asked.parameters;
  if (!first.empty()) {  // else nothing was painted to its end
    int width = 0, height = 0;
    parse_size(setting_of(first, "Size"), width, height);
    info["width"] = width;
    info["height"] = height;
    info["sampler_name"] = setting_of(first, "Sampler");
    info["sd_model_name"] = setting_of(first, "Model");
  }
  info["all_seeds"] = asked.seeds;
  info["all_prompts"] = std::vector(pictures, asked.parameters.at("prompt"));
  info["all_negative_prompts"] = std::vector(pictures, asked.parameters.at("negative_prompt"));
  info["batch_size"] = asked.call.batch_size;
  info["denoising_strength"] = nullptr;
  if (asked.call.denoising_strength) info["denoising_strength"] = *asked.call.denoising_strength;
  info["extra_generation_params"] = nlohmann::json::object();
  for (const auto& [name, value] : asked.call.second_pass_says.items())
    info["extra_generation_params"][name] = value;
  info["index_of_first_image"] = 0;
  info["infotexts"] = texts;
  info["warnings"] = asked.call.warnings;
  return info;
}

std::string answer_text(const Painted& painted, const Asked& asked) {
  nlohmann::json images = nlohmann::json::array();
  std::vector<std::string> texts;
  for (const std::string& file : files_of(painted, asked.call)) {
    if (asked.call.send_images) images.push_back(base64(file));
    texts.push_back(parameters_of_file(file));
  }
  return json_text({{"images", std::move(images)},
                    {"parameters", asked.parameters},
                    {"info", json_text(info_json(asked, texts))}});
}

/// Returns the newest job of the caller's web UI calls that has not ended: `progress` and
/// `interrupt` are about this job, and never about those of other calls.
JobPtr running_job(const Api& api, const KeyHolder& caller) {
  const auto jobs = api.service.board().list(
      "", 1, [&](const Job& job) { return job.is_webui && may_see(caller, job) && !job.ended(); });
  return jobs.empty() ? nullptr : jobs.front();
}

/// One request on its way: a job, then with the highres fix one for each of its pictures.
/// Everything happens on the loop.
struct WebuiPainting : std::enable_shared_from_this<WebuiPainting> {
  WebuiPainting(Api& api, std::shared_ptr<Request> request, ReplyPtr reply)
      : api(api), request(std::move(request)), reply(std::move(reply)) {}

  void begin(WebuiCall call) {
    Submission submission = std::move(call.submission);
    if (call.second_pass) {
      second = submission;
      second->request = std::move(*call.second_pass);
    }
    const ImageRequest& image = submission.request;
    asked = {.call = std::move(call),
             .parameters = parameters_json(image),
             .seeds = image.picture_seeds.empty() ? std::vector{image.seed} : image.picture_seeds};
    if (!second) return hand_in(std::move(submission));
    constexpr std::size_t kMostTexts = 256 << 10;  // in a picture's file
    // Three bytes a pixel, and what packing noise may add.
    picture_bytes = std::size_t{4} * image.width * image.height + kMostTexts;
    hand_in(std::move(submission), JobService::NextJob{second->request, "enable_hr"});
  }

  void hand_in(Submission submission, std::optional<JobService::NextJob> next = {}) {
    ImageRequest& image = submission.request;
    if (!image.progress_interval) {
      image.progress_count = kPreviews;
      image.progress_content = to_string(ProgressContent::preview);
    }
    submit_for(api, {std::move(submission), {}, asked.call.words, picture_bytes, std::move(next)},
               *request, reply, [self = shared_from_this()](const JobPtr& job) {
                 const auto listener = [self, job](const Job&, JobBoard::What what) {
                   if (what == JobBoard::What::preview) self->preview = job->preview;
                   if (what == JobBoard::What::end) self->ended(job);
                 };
                 job->is_webui = true;
                 self->preview.clear();
                 follow_for(self->api, job, self->reply, listener, true);
               });
  }

  void ended(const JobPtr& job) {
    for (const std::string& ours : job->warnings) {
      const std::string warning = asked.call.words.in_words(ours);
      if (std::ranges::count(asked.call.warnings, warning) == 0)
        asked.call.warnings.push_back(warning);
    }
    api.service.with_result(job, [self = shared_from_this(), job](const auto& result) {
      if (result) return self->painted(*job, result.value());
      if (job->is_interrupted) return self->interrupted(*job);
      answer_error(self->reply, to_api_error(result.error()));
    });
  }

  /// Answers with what is there, as the web UI does.
  void interrupted(const Job& job) {
    asked.call.warnings.push_back(
        fmt::format("interrupted at step {} of {}: {}", job.info.step, job.info.steps,
                    preview.empty() ? "nothing was to be seen yet"
                                    : "the last picture is the newest preview, small and rough"));
    answer();
  }

  void painted(const Job& job, std::shared_ptr<const JobResult> result) {
    preview.clear();
    if (second && !first) {
      first = std::move(result);
    } else {
      results.push_back(std::move(result));
    }
    if (!second || results.size() == first->pictures.size()) return answer();
    if (job.is_interrupted) return interrupted(job);
    Submission next = *second;
    next.request.init_image = first->pictures[results.size()].png;
    next.request.seed = asked.seeds.at(results.size());
    // A request counts once for its key's limits, with its first job: what is painted is not lost.
    auto caller = std::make_shared<KeyHolder>(*request->caller);
    caller->most_jobs = 0;
    caller->per_minute = 0;
    request->caller = std::move(caller);
    hand_in(std::move(next));
  }

  void answer() {
    api.service.work<std::string>(
        [painted = Painted{std::move(first), std::move(results), std::move(preview)},
         asked = asked] { return answer_text(painted, asked); },
        [reply = reply](Result<std::string> text) {
          if (!text) return answer_error(reply, to_api_error(text.error()));
          reply->send({.status = 200, .body = std::move(text.value())});
        },
        asker_of(*request));
  }

  Api& api;
  const std::shared_ptr<Request> request;  // without its body
  const ReplyPtr reply;
  Asked asked;
  std::string preview;                     // the newest one of the job that runs
  std::optional<Submission> second;        // each picture's second pass, but for picture and seed
  std::size_t picture_bytes = 0;           // that a second pass brings at most
  std::shared_ptr<const JobResult> first;  // of two passes
  std::vector<std::shared_ptr<const JobResult>> results;
};

/// Returns whether a request's ?skip_current_image= says yes, by the words that the web UI takes.
bool skips_picture(const Request& request) {
  static const std::map<std::string, bool> kWords = {{"true", true}, {"false", false},
                                                     {"True", true}, {"False", false},
                                                     {"1", true},    {"0", false}};
  const auto given = request.head.query.find("skip_current_image");
  if (given == request.head.query.end()) return false;
  const auto word = kWords.find(given->second);
  if (word == kWords.end()) throw bad_field("skip_current_image", "is neither true nor false");
  return word->second;
}

nlohmann::json progress_json(const JobPtr& job, bool skip_picture) {
  const double part =
      job && job->info.steps > 0 ? static_cast<double>(job->info.step) / job->info.steps : 0;
  nlohmann::json picture;
  if (job && !job->preview.empty() && !skip_picture) picture = base64(job->preview);
  return {{"progress", part},
          {"eta_relative", job ? (job->info.steps - job->info.step) * job->seconds_per_step : 0},
          {"state",
           {{"skipped", false},
            {"interrupted", false},
            {"job", job ? job->id : ""},
            {"job_count", job ? 1 : 0},
            {"sampling_step", job ? job->info.step : 0},
            {"sampling_steps", job ? job->info.steps : 0}}},
          {"current_image", picture},
          {"textinfo", nullptr}};
}

nlohmann::json models_of_webui(const JobService& service) {
  nlohmann::json list = nlohmann::json::array();
  for (const ModelName& model : service.models())
    list.push_back({{"title", model.id}, {"model_name", model.id}, {"filename", model.path}});
  return list;
}

/// The models that callers have set for their requests that name none.
using ChosenModels = std::map<std::string, std::string>;

/// The model of a caller's requests that name none: the one that is set, else the first.
std::string usual_model(const JobService& service, const std::string& chosen) {
  if (!chosen.empty()) return chosen;
  const auto models = service.models();
  return models.empty() ? "" : models[0].id;
}

void begin_painting(Api& api, const std::shared_ptr<Request>& request, const ReplyPtr& reply,
                    WebuiCall call, const std::string& chosen) {
  auto& model = call.submission.model;
  if (model.empty()) model = usual_model(api.service, chosen);
  if (!call.second_model.empty() &&
      last_name(model_id(call.second_model)) != last_name(model_id(model))) {
    throw bad_field("hr_checkpoint_name", "is " + json_text(short_name(call.second_model)) +
                                              ", but one model paints a picture, here " +
                                              json_text(model_id(model)) + ": leave it out");
  }
  std::make_shared<WebuiPainting>(api, request, reply)->begin(std::move(call));
}

/// The settings that hold, as GET /sdapi/v1/options tells them.
nlohmann::json settings_json(const JobService& service, const std::string& chosen) {
  nlohmann::json settings;
  for (const CallField& field : kCallFields) {
    if ((field.calls & kSettings) != 0 && field.treatment == Treatment::refused)
      settings[std::string(field.name)] = nlohmann::json::parse(field.passing).at(0);
  }
  settings["sd_model_checkpoint"] = usual_model(service, chosen);
  return settings;
}

void choose_model(const JobService& service, const std::string& caller, const std::string& model,
                  ChosenModels& chosen) {
  if (model.empty()) return;
  const auto models = service.models();
  if (std::ranges::none_of(models, [&](const auto& one) { return model == one.id; })) {
    throw ApiError(404, HttpCode::model_not_found,
                   "sd_model_checkpoint: " + json_text(short_name(model)) +
                       " is no model that is served here; GET /sdapi/v1/sd-models lists them",
                   "sd_model_checkpoint");
  }
  chosen[caller] = model;
}

}  // namespace

void add_webui_routes(Api& api) {
  const auto chosen = std::make_shared<ChosenModels>();
  for (const Call kind : {kTxt2Img, kImg2Img}) {
    api.router.add({"POST", kind == kImg2Img ? "/sdapi/v1/img2img" : "/sdapi/v1/txt2img",
                    Access::user, kMostPictureBody,
                    [&api, kind, chosen](const auto& request, const auto& reply) {
                      parse_then<WebuiCall>(
                          api, request, reply,
                          [request = request, kind, seed = random_seed()] {
                            return parse_webui(request->body, kind, seed);
                          },
                          [&api, request, reply, chosen](WebuiCall call) {
                            begin_painting(api, request, reply, std::move(call),
                                           (*chosen)[request->caller->name]);
                          });
                    }});
  }
  const auto add = [&](const char* method, const char* path, auto handler,
                       std::vector<std::string> query = {}) {
    constexpr std::size_t kMostIgnored = 1024;  // of a body
    api.router.add({method, path, Access::user, method == std::string("POST") ? kMostIgnored : 0,
                    [&api, handler](const auto& request, const auto& reply) {
                      reply->send(json_response(handler(api, *request)));
                    },
                    std::move(query)});
  };
  add("GET", "/sdapi/v1/progress",
      [](Api& api, const Request& request) {
        return progress_json(running_job(api, *request.caller), skips_picture(request));
      },
      {"skip_current_image"});
  add("POST", "/sdapi/v1/interrupt", [](Api& api, const Request& request) {
    if (const auto job = running_job(api, *request.caller)) {
      job->is_interrupted = true;
      api.service.cancel(job, canceller_of(request));
    }
    return nlohmann::json::object();
  });
  add("GET", "/sdapi/v1/options", [chosen](Api& api, const Request& request) {
    return settings_json(api.service, (*chosen)[request.caller->name]);
  });
  constexpr std::size_t kMostSettings = std::size_t{1} << 20;
  api.router.add({"POST", "/sdapi/v1/options", Access::user, kMostSettings,
                  [&api, chosen](const std::shared_ptr<Request>& request, const ReplyPtr& reply) {
                    parse_then<std::string>(
                        api, request, reply,
                        [request] { return model_of_settings(parse_body(request->body), ""); },
                        [&api, chosen, request, reply](const std::string& model) {
                          choose_model(api.service, request->caller->name, model, *chosen);
                          reply->send(json_response(nlohmann::json::object()));
                        });
                  }});
  add("GET", "/sdapi/v1/samplers", [](Api&, const Request&) {
    nlohmann::json list = nlohmann::json::array();
    for (const auto& name : spec::sampler_names())
      list.push_back({{"name", name},
                      {"aliases", nlohmann::json::array()},
                      {"options", nlohmann::json::object()}});
    return list;
  });
  add("GET", "/sdapi/v1/sd-models",
      [](Api& api, const Request&) { return models_of_webui(api.service); });
  // Requests name LoRAs by their files.
  add("GET", "/sdapi/v1/loras", [](Api&, const Request&) { return nlohmann::json::array(); });
}

}  // namespace troupe::web
