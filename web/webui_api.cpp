#include <algorithm>

#include "models/spec/sampler_alias.h"
#include "models/spec/scheduler_config.h"
#include "web/api.h"
#include "web/base64.h"

/// The subset of the AUTOMATIC1111 web UI's API that its clients use most. Source: its
/// modules/api/models.py.
namespace troupe::web {
namespace {

/// Its names for samplers of ours; ours are taken as well. Noise levels in a name are left out, as
/// those in `scheduler` are: the checkpoint says them.
std::string sampler_of(const std::string& name) {
  if (name == "Automatic") return "";
  const auto sampler = spec::sampler_without_levels(name);
  return sampler.empty() ? spec::sampler_of_alias(name) : sampler;
}

const std::map<std::string, std::string>& webui_names() {
  static const std::map<std::string, std::string> kNames = {{"cfg_scale", "guidance_scale"},
                                                            {"denoising_strength", "strength"}};
  return kNames;
}

/// Picture after picture, batch after batch, is one job: `batch_size` x `n_iter` pictures.
Submission parse_webui(const std::string& body, bool from_picture, std::uint64_t random) {
  auto document = parse_body(body);
  if (document.is_object()) {
    if (document.contains("sampler_name") && document.at("sampler_name").is_string()) {
      document["sampler"] = sampler_of(document.at("sampler_name"));
      document.erase("sampler_name");
    }
    if (document.contains("seed") && document.at("seed") == -1) document.erase("seed");
    // Its clients send it with every sampler. There most take no notice, and 1 is what the
    // ancestral ones do anyway.
    const auto sampler = document.value("sampler", nlohmann::json());
    const bool noisy = sampler == "euler-ancestral" && document.value("eta", nlohmann::json()) != 1;
    if (sampler != "ddim" && !noisy) document.erase("eta");
    // Without a picture they leave it in, with no meaning.
    if (!from_picture) document.erase("denoising_strength");
  }
  Fields fields(std::move(document), webui_names());
  Submission submission;
  ImageRequest& request = submission.request;
  request.seed = random;
  request.width = request.height = 512;
  request.guidance_scale = 7;
  request.prompts = {fields.text("prompt").value_or("")};
  const auto pictures = fields.whole("batch_size", 1, 16).value_or(1);
  const auto batches = fields.whole("n_iter", 1, 16).value_or(1);
  fields.read_request(request);
  need_pictures(request);
  request.images_per_prompt = static_cast<int>(pictures * batches);
  // As there: each picture can be made again alone, with the seed that the answer tells.
  if (request.picture_seeds.empty() && request.images_per_prompt > 1) {
    for (int picture = 0; picture < request.images_per_prompt; ++picture)
      request.picture_seeds.push_back(request.seed + static_cast<std::uint64_t>(picture));
  }
  fields.read_degrees(submission.parallelism);
  if (from_picture) {
    const auto images = fields.texts("init_images");
    if (!images || images->size() != 1)
      throw bad_field("init_images", "is not a list of one picture");
    request.init_image = png_of_field("init_images", images->front());
    if (const auto mask = fields.text("mask")) request.mask_image = png_of_field("mask", *mask);
    if (fields.whole("inpainting_mask_invert", 0, 1).value_or(0) != 0)
      throw bad_field("inpainting_mask_invert", "is 1, but what is white in the mask is painted");
  }
  if (const auto* settings = fields.any("override_settings"); settings && settings->is_object())
    if (settings->contains("sd_model_checkpoint") &&
        settings->at("sd_model_checkpoint").is_string())
      submission.model = settings->at("sd_model_checkpoint");
  // The rest of its many fields has no meaning here.
  return submission;
}

/// What its answers repeat of a request.
nlohmann::json parameters_json(const ImageRequest& request) {
  return {{"prompt", request.prompts[0]},
          {"negative_prompt", request.negative_prompt},
          {"steps", request.steps},
          {"seed", request.seed},
          {"cfg_scale", request.guidance_scale},
          {"width", request.width},
          {"height", request.height}};
}

nlohmann::json answer_json(const JobResult& result, const nlohmann::json& parameters,
                           const std::vector<std::uint64_t>& seeds, const std::string& sampler) {
  nlohmann::json images = nlohmann::json::array();
  for (const Picture& picture : result.pictures)
    images.push_back(base64(picture.png));
  nlohmann::json info = parameters;
  info["all_seeds"] = seeds;
  info["batch_size"] = result.pictures.size();
  info["sampler_name"] = sampler;
  return {{"images", std::move(images)}, {"parameters", parameters}, {"info", json_text(info)}};
}

/// The newest job of theirs that runs: what `progress` and `interrupt` are about.
JobPtr running_job(const Api& api, const Caller& caller) {
  const auto jobs = api.service.board().list(
      "", 1, [&](const Job& job) { return may_see(caller, job) && !job.ended(); });
  return jobs.empty() ? nullptr : jobs.front();
}

void paint_webui(Api& api, const std::shared_ptr<Request>& request, const ReplyPtr& reply,
                 Submission submission) {
  if (!submission.request.progress_interval) {
    submission.request.progress_interval = std::max(1, steps_done(submission.request) / 10);
    submission.request.progress_content = to_string(ProgressContent::preview);
  }
  const ImageRequest& asked = submission.request;
  const auto seeds = asked.picture_seeds.empty() ? std::vector{asked.seed} : asked.picture_seeds;
  const auto answer = [&api, reply, seeds, parameters = parameters_json(asked),
                       sampler = asked.sampler](const auto& result) {
    if (!result) return answer_error(reply, to_api_error(result.error()));
    api.service.work<std::string>(
        [kept = result.value(), parameters, seeds, sampler] {
          return json_text(answer_json(*kept, parameters, seeds, sampler));
        },
        [reply](Result<std::string> text) {
          if (!text) return answer_error(reply, to_api_error(text.error()));
          reply->send({.status = 200, .body = std::move(text.value())});
        });
  };
  submit_for(api, std::move(submission), {}, *request, reply,
             [&api, reply, answer](const JobPtr& job) {
               const auto listener = [&api, job, answer](const Job&, JobBoard::What what) {
                 if (what == JobBoard::What::end) api.service.with_result(job, answer);
               };
               follow_for(api, job, reply, listener, true);
             });
}

nlohmann::json progress_json(const JobPtr& job) {
  const double part = job && job->steps > 0 ? static_cast<double>(job->step) / job->steps : 0;
  nlohmann::json picture;
  if (job && !job->preview.empty()) picture = base64(job->preview);
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

}  // namespace

void add_webui_routes(Api& api) {
  for (const bool from_picture : {false, true}) {
    api.router.add({"POST", from_picture ? "/sdapi/v1/img2img" : "/sdapi/v1/txt2img", Access::user,
                    kMostPictureBody, [&api, from_picture](const auto& request, const auto& reply) {
                      parse_then<Submission>(
                          api, *request, reply,
                          [request = request, from_picture, seed = random_seed()] {
                            return parse_webui(request->body, from_picture, seed);
                          },
                          [&api, request, reply](Submission submission) {
                            paint_webui(api, request, reply, std::move(submission));
                          });
                    }});
  }
  const auto add = [&](const char* method, const char* path, auto handler) {
    api.router.add({method, path, Access::user,
                    method == std::string("POST") ? kMostPictureBody : 0,
                    [&api, handler](const auto& request, const auto& reply) {
                      reply->send(json_response(handler(api, *request)));
                    }});
  };
  add("GET", "/sdapi/v1/progress", [](Api& api, const Request& request) {
    return progress_json(running_job(api, *request.caller));
  });
  add("POST", "/sdapi/v1/interrupt", [](Api& api, const Request& request) {
    if (const auto job = running_job(api, *request.caller)) api.service.cancel(job);
    return nlohmann::json::object();
  });
  add("GET", "/sdapi/v1/options", [](Api& api, const Request&) {
    const auto models = api.service.models();
    return nlohmann::json{{"sd_model_checkpoint", models.empty() ? "" : models[0].id}};
  });
  // A request names its model itself; there is nothing to be set for all.
  add("POST", "/sdapi/v1/options", [](Api&, const Request&) { return nlohmann::json::object(); });
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
