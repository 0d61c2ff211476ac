#include "web/webui_call.h"

#include <algorithm>

#include "base/text.h"
#include "models/spec/sampler_alias.h"
#include "models/spec/scheduler_config.h"
#include "web/api_error.h"
#include "web/calls.h"
#include "web/webui_prompt.h"

namespace troupe::web {
namespace {

using nlohmann::json;

/// Its names for samplers of ours; ours are taken as well.
std::string sampler_of(const std::string& field, const json& value) {
  if (value == "Automatic" || value == "") return "";
  const std::string name = value.is_string() ? value.get<std::string>() : json_text(value);
  const auto without = spec::sampler_without_levels(name);
  const auto sampler = without.empty() ? spec::sampler_of_alias(name) : without;
  const auto known = spec::sampler_names();
  if (!value.is_string() || std::ranges::count(known, sampler) == 0)
    throw bad_field(field, "is " + json_text(short_name(name)) + ", not " + choices_text(known));
  return sampler;
}

/// Their names of fields, and values that say nothing, made ours.
void make_ours(json& document) {
  const auto given = [&](const char* name) {
    return document.contains(name) && !document.at(name).is_null() && document.at(name) != "";
  };
  const char* sampler_name = given("sampler_name") ? "sampler_name" : "sampler_index";
  if (given(sampler_name)) {
    if (given("sampler"))
      throw bad_field("sampler", std::string("does not go with ") + sampler_name);
    document["sampler"] = sampler_of(sampler_name, document.at(sampler_name));
  }
  if (given("seed") && document.at("seed") == -1) document.erase("seed");
  // Its clients send it with every sampler. There most take no notice, and 1 is what those that add
  // noise do anyway.
  const auto sampler = document.value("sampler", json());
  const bool noisy = (sampler == "euler-ancestral" || sampler == "sde-dpmsolver++") &&
                     document.value("eta", json()) != 1;
  if (given("eta") && document.at("eta").is_number() && sampler != "ddim" && !noisy)
    document.erase("eta");
}

void read_scripts(Fields& fields) {
  const json* scripts = fields.any("alwayson_scripts");
  if (!scripts || scripts->empty()) return;
  if (!scripts->is_object()) throw bad_field("alwayson_scripts", "is no object of scripts");
  for (const auto& [name, script] : scripts->items()) {
    const bool asks =
        !script.is_object() || (script.contains("args") && !script.at("args").empty());
    if (asks)
      throw bad_field("alwayson_scripts", "has " + json_text(short_name(name)) +
                                              " with args: no script is run here, leave it out");
  }
}

void read_mask(Fields& fields, WebuiCall& call) {
  const auto mask = fields.text("mask");
  if (!mask || mask->empty()) {
    // They describe a mask that is not there.
    for (const char* name : {"mask_blur", "mask_blur_x", "mask_blur_y", "inpainting_fill",
                             "inpaint_full_res", "inpainting_mask_invert"})
      fields.any(name);
    return;
  }
  call.submission.request.mask_image = picture_of_field("mask", *mask, models::AlphaUse::mask);
  std::string unsaid;
  for (const auto& [name, value] :
       {std::pair("mask_blur", "0"), {"inpainting_fill", "1"}, {"inpaint_full_res", "false"}}) {
    if (!fields.has(name)) unsaid += (unsaid.empty() ? "" : ", ") + std::string(name) + " " + value;
  }
  if (!unsaid.empty())
    call.warnings.push_back(
        "of the mask these hold, which the web UI has otherwise where nothing "
        "is said: " +
        unsaid);
}

}  // namespace

std::string model_of_settings(const json& settings, const std::string& within) {
  if (!settings.is_object())
    throw bad_field(within.empty() ? "body" : within, "is no object of settings");
  try {
    Fields fields(settings);
    const auto model = fields.text("sd_model_checkpoint").value_or("");
    fields.settle(kSettings);
    fields.refuse_rest();
    return model;
  } catch (const ApiError& error) {
    if (within.empty()) throw;
    throw ApiError(error.status, error.code, within + ": " + error.what(), within);
  }
}

WebuiCall parse_webui(const std::string& body, Call kind, std::uint64_t seed) {
  static const std::map<std::string, std::string> kNames = {{"cfg_scale", "guidance_scale"}};
  auto names = kNames;
  if (kind == kImg2Img) names["denoising_strength"] = "strength";
  auto document = parse_body(body);
  if (document.is_object()) make_ours(document);
  Fields fields(std::move(document), std::move(names));
  WebuiCall call;
  Submission& submission = call.submission;
  ImageRequest& request = submission.request;
  // What the web UI takes where nothing is said.
  request.seed = seed;
  request.width = request.height = 512;
  request.steps = 50;
  request.guidance_scale = 7;
  request.strength = 0.75;
  const bool cut_networks = fields.flag("disable_extra_networks").value_or(false);
  request.prompts = {words_of_prompt("prompt", fields.text("prompt").value_or(""),
                                     PromptKind::positive, cut_networks)};
  const auto pictures = fields.whole("batch_size", 1, 16).value_or(1);
  const auto batches = fields.whole("n_iter", 1, 16).value_or(1);
  fields.read_request(request);
  need_pictures(request);
  request.negative_prompt =
      words_of_prompt("negative_prompt", request.negative_prompt, PromptKind::negative);
  request.images_per_prompt = static_cast<int>(pictures * batches);
  // As there: each picture can be made again alone, with the seed that the answer tells.
  if (request.picture_seeds.empty() && request.images_per_prompt > 1) {
    for (int picture = 0; picture < request.images_per_prompt; ++picture)
      request.picture_seeds.push_back(request.seed + static_cast<std::uint64_t>(picture));
  }
  fields.read_degrees(submission.parallelism);
  if (kind == kImg2Img) {
    const auto images = fields.texts("init_images");
    if (!images || images->size() != 1)
      throw bad_field("init_images", "is not a list of one picture");
    request.init_image =
        picture_of_field("init_images", images->front(), models::AlphaUse::over_white);
    read_mask(fields, call);
  }
  if (const json* settings = fields.any("override_settings"))
    submission.model = model_of_settings(*settings, "override_settings");
  read_scripts(fields);
  call.send_images = fields.flag("send_images").value_or(true);
  // Taken above, under our names.
  for (const char* name : {"sampler_name", "sampler_index"})
    fields.any(name);
  fields.settle(kind);
  fields.refuse_rest();
  return call;
}

}  // namespace troupe::web
