#include <algorithm>

#include "models/spec/scheduler_config.h"
#include "web/api.h"
#include "web/base64.h"
#include "web/webui_call.h"

/// The subset of the AUTOMATIC1111 web UI's API that its clients use most. Source: its
/// modules/api/models.py.
namespace troupe::web {
namespace {

constexpr int kPreviews = 9;  // of a job that its clients ask after

/// Returns the fields of a request that the web UI's answers repeat.
nlohmann::json parameters_json(const ImageRequest& request) {
  return {{"prompt", request.prompts[0]},
          {"negative_prompt", request.negative_prompt.value_or("")},
          {"steps", request.steps},
          {"seed", request.seed},
          {"cfg_scale", request.guidance_scale.value()},
          {"width", request.width},
          {"height", request.height}};
}

/// Content of an answer beside the pictures.
struct Asked {
  nlohmann::json parameters;
  std::vector<std::uint64_t> seeds;
  std::string sampler;
  bool send_images = true;
  std::vector<std::string> warnings;  // the call's, then the job's
};

using Results = std::vector<std::shared_ptr<const JobResult>>;

std::string answer_text(const Results& results, const Asked& asked) {
  nlohmann::json images = nlohmann::json::array();
  std::size_t pictures = 0;
  for (const auto& result : results) {
    pictures += result->pictures.size();
    if (!asked.send_images) continue;
    for (const Picture& picture : result->pictures)
      images.push_back(base64(picture.png));
  }
  nlohmann::json info = asked.parameters;
  info["all_seeds"] = asked.seeds;
  info["batch_size"] = pictures;
  info["sampler_name"] = asked.sampler;
  info["warnings"] = asked.warnings;
  return json_text(
      {{"images", std::move(images)}, {"parameters", asked.parameters}, {"info", json_text(info)}});
}

/// Returns the caller's newest job that has not ended: `progress` and `interrupt` are about this
/// job.
JobPtr running_job(const Api& api, const Caller& caller) {
  const auto jobs = api.service.board().list(
      "", 1, [&](const Job& job) { return may_see(caller, job) && !job.ended(); });
  return jobs.empty() ? nullptr : jobs.front();
}

/// One request on its way: a job, then with the highres fix one for each of its pictures.
/// Everything happens on the loop.
struct WebuiPainting : std::enable_shared_from_this<WebuiPainting> {
  WebuiPainting(Api& api, std::shared_ptr<Request> request, ReplyPtr reply)
      : api(api), request(std::move(request)), reply(std::move(reply)) {}

  void begin(WebuiCall call) {
    const ImageRequest& image = call.submission.request;
    asked = {.parameters = parameters_json(image),
             .seeds = image.picture_seeds.empty() ? std::vector{image.seed} : image.picture_seeds,
             .sampler = image.sampler,
             .send_images = call.send_images,
             .warnings = std::move(call.warnings)};
    if (!call.second_pass) return hand_in(std::move(call.submission));
    second = call.submission;
    second->request = std::move(*call.second_pass);
    constexpr std::size_t kMostTexts = 256 << 10;  // in a picture's file
    // Three bytes a pixel, and what packing noise may add.
    picture_bytes = std::size_t{4} * image.width * image.height + kMostTexts;
    hand_in(std::move(call.submission), JobService::NextJob{second->request, "enable_hr"});
  }

  void hand_in(Submission submission, std::optional<JobService::NextJob> next = {}) {
    ImageRequest& image = submission.request;
    if (!image.progress_interval) {
      image.progress_count = kPreviews;
      image.progress_content = to_string(ProgressContent::preview);
    }
    submit_for(
        api, std::move(submission), {}, *request, reply,
        [self = shared_from_this()](const JobPtr& job) {
          const auto listener = [self, job](const Job&, JobBoard::What what) {
            if (what == JobBoard::What::end) self->ended(job);
          };
          follow_for(self->api, job, self->reply, listener, true);
        },
        picture_bytes, std::move(next));
  }

  void ended(const JobPtr& job) {
    for (const std::string& warning : job->warnings) {
      if (std::ranges::count(asked.warnings, warning) == 0) asked.warnings.push_back(warning);
    }
    api.service.with_result(job, [self = shared_from_this()](const auto& result) {
      if (!result) return answer_error(self->reply, to_api_error(result.error()));
      self->painted(result.value());
    });
  }

  void painted(std::shared_ptr<const JobResult> result) {
    if (second && !first) {
      first = std::move(result);
    } else {
      results.push_back(std::move(result));
    }
    if (!second || results.size() == first->pictures.size()) return answer();
    Submission next = *second;
    next.request.init_image = first->pictures[results.size()].png;
    next.request.seed = asked.seeds.at(results.size());
    // A request counts once for its key's limits, with its first job: what is painted is not lost.
    auto caller = std::make_shared<Caller>(*request->caller);
    caller->most_jobs = 0;
    caller->per_minute = 0;
    request->caller = std::move(caller);
    hand_in(std::move(next));
  }

  void answer() {
    api.service.work<std::string>(
        [results = std::move(results), asked = asked] { return answer_text(results, asked); },
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
  std::optional<Submission> second;        // each picture's second pass, but for picture and seed
  std::size_t picture_bytes = 0;           // that a second pass brings at most
  std::shared_ptr<const JobResult> first;  // of two passes
  Results results;
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
  const double part = job && job->steps > 0 ? static_cast<double>(job->step) / job->steps : 0;
  nlohmann::json picture;
  if (job && !job->preview.empty() && !skip_picture) picture = base64(job->preview);
  return {{"progress", part},
          {"eta_relative", job ? (job->steps - job->step) * job->seconds_per_step : 0},
          {"state",
           {{"skipped", false},
            {"interrupted", false},
            {"job", job ? job->id : ""},
            {"job_count", job ? 1 : 0},
            {"sampling_step", job ? job->step : 0},
            {"sampling_steps", job ? job->steps : 0}}},
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
  if (!call.second_model.empty() && model_id(call.second_model) != model_id(model)) {
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
    throw ApiError(404, "model_not_found",
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
    if (const auto job = running_job(api, *request.caller)) api.service.cancel(job);
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
