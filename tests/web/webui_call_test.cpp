#include "web/webui_call.h"

#include <algorithm>

#include "tests/support/doctest.h"
#include "tests/support/text.h"
#include "web/api_error.h"
#include "web/calls.h"
#include "web/encodings.h"

using namespace troupe;
using namespace troupe::testing;
using namespace troupe::web;
using nlohmann::json;

namespace {

// One gray pixel.
constexpr const char* kPng =
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklE"
    "QVR42mNoAAAAggCB2kUIOwAAAABJRU5ErkJggg==";

/// A body with everything that its call needs.
json body_of(Call call, json fields = json::object()) {
  fields["prompt"] = "a";
  if (call == kImg2Img) fields["init_images"] = {kPng};
  return fields;
}

/// Parses a body as a call of another server's API.
void parse_as(Call call, const json& body) {
  if (call == kSettings) {
    model_of_settings(body, "");
  } else if (call == kTxt2Img || call == kImg2Img) {
    parse_webui(body.dump(), call, 7);
  } else {
    auto names = other_names();
    names.insert({"mask", "mask_image"});
    if (call == kVideos) names["input_reference"] = "images";
    Fields fields(body, std::move(names));
    if (call == kJobs) {
      parse_job(body.dump());
    } else if (call == kVideos) {
      parse_video(std::move(fields), 7);
    } else {
      parse_images(std::move(fields), call == kEdits, 7);
    }
  }
}

/// The field that is named in a refusal, or "".
std::string refused_field(Call call, const json& body) {
  try {
    parse_as(call, body);
  } catch (const ApiError& error) {
    CHECK(error.status == 400);
    return error.param;
  }
  return "";
}

/// Returns what a client of the call is told of a field that the cluster finds at fault.
ApiError told(Call call, const json& given, const std::string& field, const std::string& what) {
  std::set<std::string> names;
  for (const auto& [name, value] : given.items())
    names.insert(name);
  const auto& others =
      call == kTxt2Img || call == kImg2Img ? std::map<std::string, std::string>() : other_names();
  return FieldWords(call, names, others)
      .in_words(to_api_error({ErrorCode::bad_request, what, field}));
}

constexpr Call kEachCall[] = {kTxt2Img, kImg2Img, kSettings, kGenerations, kEdits, kVideos};

}  // namespace

TEST_CASE("whatever part of a submission is refused, it is called by a field that the call has") {
  for (const Call call : {kTxt2Img, kImg2Img, kGenerations, kEdits, kVideos, kJobs}) {
    for (std::size_t i = 1; i < kNamesOf<wire::JobField>.size(); ++i) {
      const auto field = static_cast<wire::JobField>(i);
      const std::string word = FieldWords(call, {}, {}).of(field);
      CAPTURE(call);
      CAPTURE(to_string(field));
      CAPTURE(word);
      // No call takes a list of lists: whoever knows the field says so of it.
      const json body =
          body_of(call, {{word.empty() ? to_string(field) : word, json::array({json::array()})}});
      std::string code;
      try {
        parse_as(call, body);
      } catch (const ApiError& error) {
        code = error.code;
      }
      CHECK((code == "unknown_field") == word.empty());
    }
  }
}

TEST_CASE(
    "a refusal has the words of the call's client, those that it used where it had a choice") {
  const std::string steps_left = " is 0.1: of 4 steps none is left";
  const auto of_webui =
      told(kImg2Img, {{"denoising_strength", 0.1}}, "strength", "`strength`" + steps_left);
  CHECK(of_webui.param == "denoising_strength");
  CHECK(of_webui.what() == "denoising_strength" + steps_left);
  CHECK(told(kImg2Img, {{"strength", 0.1}}, "strength", "`strength`" + steps_left).what() ==
        "strength" + steps_left);
  CHECK(told(kTxt2Img, {}, "guidance_scale", "`guidance_scale` is 1").param == "cfg_scale");
  CHECK(told(kTxt2Img, {}, "steps", "`steps` is 4, but `guidance_scale` is 3").what() ==
        std::string("steps is 4, but `cfg_scale` is 3"));
  CHECK(told(kGenerations, {{"size", ""}}, "width", "`width` is 9").what() ==
        std::string("size: width is 9"));
  CHECK(told(kGenerations, {{"width", 9}}, "width", "`width` is 9").param == "width");
  CHECK(told(kGenerations, {{"num_inference_steps", 9}}, "steps", "`steps` is 9").what() ==
        std::string("num_inference_steps is 9"));
  CHECK(told(kVideos, {{"num_frames", 9}}, "num_frames", "`num_frames` is 9").param ==
        "num_frames");
  CHECK(told(kVideos, {{"seconds", 1}}, "num_frames", "`num_frames` is 9").what() ==
        std::string("seconds: num_frames is 9"));
  CHECK(told(kVideos, {}, "num_frames", "`num_frames` is 65").what() ==
        std::string("seconds: none are given, which is 4: num_frames is 65"));
  CHECK(told(kJobs, {{"prompts", 1}}, "prompts", "prompt 0 is no text").param == "prompts");
  CHECK(told(kEdits, {}, "prompts", "prompt 0 is no text").param == "prompt");
  // What a call finds wrong itself, too.
  const std::string form =
      "--b\r\nContent-Disposition: form-data; name=\"image\"\r\n\r\nGIF89a\r\n--b--";
  const std::string refusal = message_of(
      [&] { parse_images(edit_fields("multipart/form-data; boundary=b", form), true, 7); });
  CHECK(refusal == "image: is a GIF: PNG, JPEG and WebP are taken");
}

TEST_CASE("every field of call_fields.def is taken, harmless or refused, as its line says") {
  const json nonsense = json::array({json::array({"nonsense"})});
  for (const CallField& field : kCallFields) {
    for (const Call call : kEachCall) {
      if ((field.calls & call) == 0) continue;
      const std::string name(field.name);
      CAPTURE(name);
      const auto with = [&](const json& value) {
        json body = call == kSettings ? json::object() : body_of(call);
        // Fields of a mask say nothing without one.
        if (name.starts_with("mask_") || name.starts_with("inpaint")) body["mask"] = kPng;
        if (name.starts_with("hr_") || (call == kTxt2Img && name == "denoising_strength")) {
          body["enable_hr"] = true;
          body["hr_upscaler"] = "Lanczos";
        }
        body[name] = value;
        return body;
      };
      if (field.treatment == Treatment::harmless) {
        CHECK(refused_field(call, with(nonsense)) == "");
        continue;
      }
      CHECK(refused_field(call, with(nonsense)) == name);
      if (field.treatment == Treatment::taken) continue;
      for (const json& value : json::parse(field.passing))
        CHECK(refused_field(call, with(value)) == "");
      CHECK(refused_field(call, with(nullptr)) == "");
      CHECK(has(message_of([&] { parse_as(call, with(nonsense)); }), std::string(field.says)));
    }
  }
}

TEST_CASE("the web UI's fields that are not done here are refused by name, others pass") {
  const std::pair<json, const char*> kWrong[] = {
      {{{"enable_hr", "yes"}}, "enable_hr"},
      {{{"enable_hr", true}}, "hr_upscaler"},
      {{{"enable_hr", true}, {"hr_upscaler", "Latent"}}, "hr_upscaler"},
      {{{"enable_hr", true}, {"hr_upscaler", "None"}, {"hr_resize_x", 800}, {"hr_resize_y", 900}},
       "hr_resize_y"},
      {{{"enable_hr", true}, {"hr_upscaler", "None"}, {"hr_prompt", "(a:2)"}}, "hr_prompt"},
      {{{"tiling", true}}, "tiling"},
      {{{"styles", {"photo"}}}, "styles"},
      {{{"sampler_index", "Heun"}}, "sampler_index"},
      {{{"sampler_name", "nonesuch"}, {"sampler_index", "Euler"}}, "sampler_name"},
      {{{"sampler_name", 3}}, "sampler_name"},
      {{{"scheduler", "Turbo"}}, "scheduler"},
      {{{"scheduler", "Karras"}}, "scheduler"},
      {{{"sampler_name", "DDIM"}, {"scheduler", "Karras"}}, "scheduler"},
      {{{"sampler_name", "Euler"}, {"sampler", "ddim"}}, "sampler"},
      {{{"subseed_strength", 0.5}}, "subseed_strength"},
      {{{"alwayson_scripts", {{"ControlNet", {{"args", {1}}}}}}}, "alwayson_scripts"},
      {{{"alwayson_scripts", {{"ControlNet", true}}}}, "alwayson_scripts"},
      {{{"override_settings", {{"CLIP_stop_at_last_layers", 2}}}}, "override_settings"},
      {{{"override_settings", {{"clip_skip", 2}}}}, "override_settings"},
      {{{"override_settings", 3}}, "override_settings"},
      {{{"batch_sise", 2}}, "batch_sise"},
      {{{"eta", "much"}}, "eta"},
      {{{"seed", "any"}}, "seed"},
      {{{"n_iter", 17}}, "n_iter"}};
  for (const auto& [fields, name] : kWrong)
    CHECK(refused_field(kTxt2Img, body_of(kTxt2Img, fields)) == name);
  CHECK(has(message_of([] {
              parse_as(kTxt2Img, {{"prompt", "a"}, {"restore_face", true}});
            }),
            "did you mean restore_faces?"));
  CHECK(has(message_of([] {
              parse_as(kTxt2Img, {{"alwayson_scripts", {{"ADetailer", {{"args", {true}}}}}}});
            }),
            "\"ADetailer\""));
  const json kFine = {{"enable_hr", false},
                      {"hr_scale", 2},
                      {"tiling", nullptr},
                      {"styles", json::array()},
                      {"subseed", 99},
                      {"s_noise", 1.0},
                      {"s_churn", 0},
                      {"restore_faces", false},
                      {"alwayson_scripts", {{"ControlNet", {{"args", json::array()}}}}},
                      {"override_settings", {{"CLIP_stop_at_last_layers", 1}, {"sd_vae", "None"}}},
                      {"seed", -1},
                      {"eta", 1.0}};
  CHECK(refused_field(kTxt2Img, body_of(kTxt2Img, kFine)) == "");
}

TEST_CASE("units of the web UI's ControlNet extension are control pictures") {
  const std::string pixel =
      "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mNoAAAAggCB2kUIOwAAAABJRU5ErkJggg="
      "=";
  const auto body = [&](const json& units) {
    return json{{"prompt", "a"}, {"alwayson_scripts", {{"ControlNet", {{"args", units}}}}}};
  };
  const json first = {{"image", pixel},
                      {"model", "org/canny"},
                      {"weight", 0.5},
                      {"guidance_start", 0.1},
                      {"guidance_end", 0.75},
                      {"module", "none"},
                      {"resize_mode", "Crop and Resize"}};
  const json units =
      json::array({first, {{"enabled", false}}, {{"input_image", {{"image", pixel}}}}});
  const auto request = parse_webui(body(units).dump(), kTxt2Img, 7).submission.request;
  CHECK(request.control_images.size() == 2);
  CHECK(request.controlnets == std::vector<std::string>{"org/canny"});
  CHECK(request.control_scale == std::vector{0.5, 1.0});
  CHECK(request.control_from == std::vector{0.1, 0.0});
  CHECK(request.control_until == std::vector{0.75, 1.0});
  const auto plain =
      parse_webui(body(json::array({{{"image", pixel}, {"weight", 1}}})).dump(), kTxt2Img, 7);
  CHECK(plain.submission.request.control_scale.empty());
  CHECK(plain.submission.request.control_until.empty());
  auto twice = body(units);
  twice["control_scale"] = 2;
  CHECK(
      has(message_of([&] { parse_webui(twice.dump(), kTxt2Img, 7); }), "leave out control_scale"));
  auto large = body(units);
  large["enable_hr"] = true;
  large["hr_upscaler"] = "Lanczos";
  CHECK(has(message_of([&] { parse_webui(large.dump(), kTxt2Img, 7); }), "enable_hr"));
  const auto refused = [&](const char* name, const json& value) {
    auto unit = first;
    unit[name] = value;
    return message_of([&] { parse_webui(body(json::array({unit})).dump(), kTxt2Img, 7); });
  };
  CHECK(has(refused("mask", {{"a", 1}}), "mask is a list or an object"));
  CHECK(has(refused("module", "canny"), "controlnet's unit 1: module is \"canny\""));
  CHECK(has(refused("control_mode", 2), "control_mode is 2"));
  CHECK(has(refused("mask", "abc"), "mask"));
  CHECK(has(refused("colour", 1), "\"colour\" is no field of it"));
  CHECK(has(refused("image", 1), "image is not a text"));
  auto wide = body(json::array({first}));
  wide["width"] = 768;
  CHECK(has(message_of([&] { parse_webui(wide.dump(), kTxt2Img, 7); }), "other proportions"));
}

TEST_CASE("the web UI's requests: its names, and its defaults where nothing is said") {
  const auto plain = parse_webui("{}", kTxt2Img, 7).submission.request;
  CHECK(plain.steps == 50);
  CHECK(plain.width == 512);
  CHECK(plain.guidance_scale == 7);
  CHECK(plain.seed == 7);
  CHECK(plain.sampler == "");
  const auto largest = R"({"seed": 18446744073709551615})";
  CHECK(parse_webui(largest, kTxt2Img, 7).submission.request.seed == ~std::uint64_t{0});
  CHECK(parse_webui(R"({"seed": -1})", kTxt2Img, 7).submission.request.seed == 7);
  // An empty one is none, as there: SDXL's text is zeros then.
  CHECK_FALSE(plain.negative_prompt);
  CHECK_FALSE(
      parse_webui(R"({"negative_prompt": ""})", kTxt2Img, 7).submission.request.negative_prompt);
  const auto full = parse_webui(R"({"prompt": "a", "sampler_index": "Euler a", "cfg_scale": 3,
    "batch_size": 2, "n_iter": 3, "seed": 5, "send_images": false,
    "override_settings": {"sd_model_checkpoint": "m"}})",
                                kTxt2Img, 7);
  CHECK(full.submission.request.sampler == "euler-ancestral");
  CHECK(full.submission.request.guidance_scale == 3);
  CHECK(full.submission.request.images_per_prompt == 6);
  CHECK(full.submission.request.picture_seeds == std::vector<std::uint64_t>{5, 6, 7, 8, 9, 10});
  CHECK(full.submission.model == "m");
  CHECK_FALSE(full.send_images);
  // sampler_name goes first; one that says nothing is none.
  const auto sampler = [](const char* body) {
    return parse_webui(body, kTxt2Img, 7).submission.request.sampler;
  };
  CHECK(sampler(R"({"sampler_name": "DDIM", "sampler_index": "Euler"})") == "ddim");
  CHECK(sampler(R"({"sampler_name": "", "sampler_index": "Euler"})") == "euler");
  CHECK(sampler(R"({"sampler_name": "Automatic"})") == "");
  CHECK(sampler(R"({"sampler_name": "DPM++ 2M", "scheduler": "Karras"})") == "dpmsolver++-karras");
  CHECK(sampler(R"({"sampler_name": "DPM++ 2M Karras", "scheduler": "beta"})") ==
        "dpmsolver++-karras");
  CHECK(sampler(R"({"sampler_index": "Euler", "scheduler": "automatic"})") == "euler");
  const auto strength = [](json fields) {
    return parse_webui(body_of(kImg2Img, std::move(fields)).dump(), kImg2Img, 7)
        .submission.request.strength;
  };
  CHECK(strength({}) == 0.75);
  // Without a picture to begin with, a strength would be refused.
  for (const json& fields : {json(json::object()), json{{"denoising_strength", 0.5}}})
    CHECK(!parse_webui(body_of(kTxt2Img, fields).dump(), kTxt2Img, 7).submission.request.strength);
  CHECK(strength({{"denoising_strength", 0.5}}) == 0.5);
}

TEST_CASE("the web UI's highres fix is a second pass, from the first one's pictures") {
  const auto second = [](json fields) {
    fields["enable_hr"] = true;
    fields["hr_upscaler"] = "Lanczos";
    fields["steps"] = 9;
    fields["batch_size"] = 2;
    fields["width"] = 640;
    fields["sampler_name"] = "DPM++ 2M";
    fields["scheduler"] = "Karras";
    const auto call = parse_webui(body_of(kTxt2Img, std::move(fields)).dump(), kTxt2Img, 7);
    CHECK(call.submission.request.width == 640);
    CHECK(call.submission.request.sampler == "dpmsolver++-karras");
    return call.second_pass.value();
  };
  const auto plain = second({{"hr_sampler_name", "Use same sampler"}, {"hr_second_pass_steps", 0}});
  CHECK(plain.width == 1280);
  CHECK(plain.height == 1024);
  CHECK(plain.strength == 0.75);
  CHECK(plain.steps == 12);
  CHECK(plain.sampler == "dpmsolver++-karras");
  CHECK(plain.prompts == std::vector<std::string>{"a"});
  CHECK(plain.images_per_prompt == 1);
  const auto own = second({{"hr_scale", 1.5},
                           {"denoising_strength", 0.4},
                           {"hr_second_pass_steps", 5},
                           {"hr_sampler_name", "Euler"},
                           {"hr_prompt", "b"},
                           {"hr_negative_prompt", "c"}});
  CHECK(own.width == 960);
  CHECK(own.height == 768);
  CHECK(own.steps == 12);
  CHECK(own.strength.value() == doctest::Approx(5.0 / 12));
  CHECK(own.sampler == "euler-karras");
  CHECK(own.prompts == std::vector<std::string>{"b"});
  CHECK(own.negative_prompt == "c");
  CHECK(second({{"hr_scheduler", "Automatic"}}).sampler == "dpmsolver++");
  CHECK(second({{"hr_resize_x", 1000}}).height == 800);
  CHECK(second({{"hr_resize_y", 1024}, {"hr_resize_x", 1280}}).width == 1280);
  CHECK(second({{"hr_resize_y", 768}}).width == 960);
  CHECK_FALSE(parse_webui(R"({"hr_scale": 3})", kTxt2Img, 7).second_pass);
}

TEST_CASE("the second pass computes every step that is asked for, the last of a longer schedule") {
  // The web UI's rule: the schedule has int(asked / min(strength, 0.999)) steps.
  for (const double strength : {0.05, 0.3, 0.4, 0.75, 0.9, 0.999, 1.0}) {
    for (int asked = 1; asked <= 150; ++asked) {
      CAPTURE(strength);
      CAPTURE(asked);
      const json body = {{"enable_hr", true},
                         {"hr_upscaler", "None"},
                         {"hr_second_pass_steps", asked},
                         {"denoising_strength", strength}};
      const auto pass = parse_webui(body.dump(), kTxt2Img, 7).second_pass.value();
      CHECK(pass.steps == static_cast<int>(asked / std::min(strength, 0.999)));
      CHECK(static_cast<int>(std::min<double>(pass.steps * pass.strength.value(), pass.steps)) ==
            asked);
    }
  }
  // Models that predict a flow round the steps down that are left out.
  const auto plain =
      parse_webui(R"({"enable_hr": true, "hr_upscaler": "None", "steps": 20})", kTxt2Img, 7)
          .second_pass.value();
  CHECK(plain.steps == 26);
  CHECK(26 - static_cast<int>(26 - 26 * plain.strength.value()) == 20);
}

TEST_CASE("a picture of two passes says how both were made, as the web UI writes it") {
  const std::string first =
      "a\nSteps: 4, Sampler: euler, CFG scale: 7, Seed: 3, Size: 64x64, Model: m, Version: troupe";
  const auto said = [&](json fields) {
    fields.update({{"prompt", "a"}, {"enable_hr", true}, {"hr_upscaler", "Lanczos"}});
    const auto call = parse_webui(fields.dump(), kTxt2Img, 7);
    return parameters_of_second_pass(first, call.denoising_strength.value(), call.second_pass_says);
  };
  const std::string begin =
      "a\nSteps: 4, Sampler: euler, CFG scale: 7, Seed: 3, Size: 64x64, Model: m, Denoising "
      "strength: ";
  CHECK(said({{"denoising_strength", 0.5}}) ==
        begin + "0.5, Hires upscale: 2, Hires upscaler: Lanczos, Version: troupe");
  CHECK(said({{"hr_resize_x", 768},
              {"hr_second_pass_steps", 7},
              {"hr_sampler_name", "DDIM"},
              {"hr_prompt", "b, c"},
              {"hr_negative_prompt", "d"}}) ==
        begin +
            "0.75, Hires resize: 768x0, Hires sampler: ddim, Hires steps: 7, Hires prompt: \"b, "
            "c\", Hires negative prompt: d, Hires upscaler: Lanczos, Version: troupe");
  CHECK(setting_of(first, "Sampler") == "euler");
  CHECK(setting_of(first, "Steps") == "4");
  CHECK(setting_of(first, "Version") == "troupe");
  CHECK(setting_of(first, "Hires steps").empty());
  CHECK_FALSE(parse_webui("{}", kTxt2Img, 7).denoising_strength);
}

TEST_CASE("the second pass's size is whole latents") {
  const auto size = [](json fields) {
    fields["enable_hr"] = true;
    fields["hr_upscaler"] = "None";
    const auto pass = parse_webui(fields.dump(), kTxt2Img, 7).second_pass.value();
    return std::pair(pass.width, pass.height);
  };
  CHECK(size({{"hr_scale", 1.1}}) == std::pair(560, 560));
  CHECK(size({{"hr_resize_x", 1001}, {"height", 768}}) == std::pair(1000, 1496));
  CHECK(size({{"hr_resize_y", 1001}}) == std::pair(1000, 1000));
}

TEST_CASE("what a second pass cannot do is refused before the first one") {
  const std::pair<json, const char*> kWrong[] = {
      {{{"denoising_strength", 0}}, "denoising_strength"},
      {{{"denoising_strength", 1e-9}}, "denoising_strength"},
      {{{"width", 4096}, {"hr_scale", 8}}, "hr_scale"},
      {{{"hr_resize_x", 7}}, "hr_resize_x"},
      {{{"hr_resize_y", 16384}, {"width", 1024}}, "hr_resize_y"},
      {{{"hr_resize_x", 16384}, {"height", 1024}}, "hr_resize_x"},
      {{{"width", 0}}, "width"},
      {{{"height", 0}}, "height"},
      {{{"timesteps", {900, 500}}}, "timesteps"},
      {{{"sigmas", {9.5, 1}}}, "sigmas"},
      {{{"hr_scheduler", "Turbo"}}, "hr_scheduler"},
      {{{"hr_scheduler", "Karras"}}, "hr_scheduler"},
      {{{"sampler_name", "DDIM"}, {"hr_scheduler", "Karras"}}, "hr_scheduler"},
      {{{"hr_sampler_name", "DDIM"}, {"hr_scheduler", "Karras"}}, "hr_scheduler"},
      {{{"sampler_name", "Euler"}, {"scheduler", "Karras"}, {"hr_sampler_name", "DDIM"}},
       "hr_scheduler"},
      {{{"hr_sampler_name", "nonesuch"}}, "hr_sampler_name"}};
  for (auto [fields, name] : kWrong) {
    CAPTURE(name);
    fields["enable_hr"] = true;
    fields["hr_upscaler"] = "None";
    CHECK(refused_field(kTxt2Img, body_of(kTxt2Img, fields)) == name);
  }
}

TEST_CASE("the second pass's own prompt, sampler and model") {
  const auto parsed = [](json fields) {
    fields["enable_hr"] = true;
    fields["hr_upscaler"] = "None";
    return parse_webui(fields.dump(), kTxt2Img, 7);
  };
  const auto cut = parsed({{"disable_extra_networks", true}, {"hr_prompt", "b <lora:x:1>"}});
  CHECK(cut.second_pass->prompts == std::vector<std::string>{"b "});
  CHECK(parsed({{"sampler", "euler"}, {"hr_scheduler", "Karras"}}).second_pass->sampler ==
        "euler-karras");
  // Which model is the first pass's may be known to the gateway alone.
  CHECK(parsed({{"hr_checkpoint_name", "m"}}).second_model == "m");
  CHECK(parsed({{"hr_checkpoint_name", "Use same checkpoint"}}).second_model == "");
}

TEST_CASE("eta is left to the plan, unless the named sampler makes nothing of it") {
  const auto parsed = [](const json& sampler, double eta) {
    json body = {{"eta", eta}};
    if (!sampler.is_null()) body["sampler_name"] = sampler;
    return parse_webui(body.dump(), kTxt2Img, 7);
  };
  const auto eta = [&](const json& sampler, double given) {
    return parsed(sampler, given).submission.request.eta;
  };
  for (const char* name : {"Euler", "DPM++ 2M Karras", "UniPC", "LCM", "PLMS", "flow-euler"})
    CHECK(eta(name, 1) == 0);
  for (const char* name : {"Euler a", "DPM++ 2M SDE Karras", "ddpm"}) {
    CHECK(eta(name, 1) == 0);
    for (const double other : {0.0, 0.5})
      CHECK(has(message_of([&] { eta(name, other); }), "takes 1 alone"));
  }
  CHECK(eta("DDIM", 1) == 1);
  CHECK(eta(nullptr, 1) == 1);
  CHECK(eta("Automatic", 1) == 1);
  CHECK(parsed("Euler", 1).warnings.empty());
  CHECK(has(parsed("Euler", 0.3).warnings.at(0), "eta is 0.3"));
}

TEST_CASE("a mask of the web UI's") {
  const auto parsed = [](json fields) {
    return parse_webui(body_of(kImg2Img, std::move(fields)).dump(), kImg2Img, 7);
  };
  // Without a mask, also an empty one, its fields say nothing.
  for (const json& none : {json(""), json()}) {
    const auto call = parsed({{"mask", none}, {"inpainting_fill", 0}, {"mask_blur", 4}});
    CHECK(call.submission.request.mask_image.empty());
    CHECK(call.warnings.empty());
  }
  for (const json& plain : {json(false), json(0)})
    CHECK_FALSE(parsed({{"mask", kPng}, {"inpainting_mask_invert", plain}})
                    .submission.request.mask_image.empty());
  // What the web UI does unasked, and is not done here, is said.
  CHECK(has(parsed({{"mask", kPng}, {"mask_blur", 0}}).warnings.at(0),
            "inpainting_fill 1, inpaint_full_res false"));
  CHECK(parsed({{"mask", kPng}, {"mask_blur", 0}, {"inpainting_fill", 1}, {"inpaint_full_res", 0}})
            .warnings.empty());
  for (const char* name : {"mask_blur", "inpainting_fill", "inpainting_mask_invert"})
    CHECK(refused_field(kImg2Img, body_of(kImg2Img, {{"mask", kPng}, {name, 4}})) == name);
}

TEST_CASE("a prompt in the web UI's syntax gives its words, or is refused by name") {
  const auto words = [](const char* prompt, PromptKind kind = PromptKind::positive) {
    return words_of_prompt("prompt", prompt, kind);
  };
  // The prompts that pass, with the words that the web UI's own parser makes of them.
  const std::pair<const char*, const char*> kFine[] = {
      {"normal text", "normal text"},
      {"\\(literal\\]", "(literal]"},
      {"a \\\\ b \\c", "a \\ b c"},
      {"([a])", "a"},
      {"(a:1)", "a"},
      {"(a: +1.0 )", "a"},
      {"a) b] :1.4)", "a) b] :1.4)"},
      {"3:4, a|b, <3, <a b:c>, sand AND5 HAND", "3:4, a|b, <3, <a b:c>, sand AND5 HAND"},
      {"()[]", ""},
      {"", ""},
      {"a # aside\nb", "a \nb"},
      {"# aside", "\n"},
      {"(", ""}};
  for (const auto& [prompt, plain] : kFine) {
    CAPTURE(prompt);
    CHECK(words(prompt) == plain);
  }
  const std::pair<const char*, const char*> kRefused[] = {
      {"a (red:1.4) ball", "\"red\" in brackets"},
      {"a (b)", "weighs these words"},
      {"(unbalanced", "weighs these words"},
      {"[unbalanced", "weighs these words"},
      {"a [b]", "weighs these words"},
      {"((a:0.5):1.2.3)", "weighs these words"},
      {"(a:-1)", "weighs these words"},
      {"[a:b:0.5]", "take turns"},
      {"[a:3]", "take turns"},
      {"[a::.25]", "take turns"},
      {"([a:b: 3])", "take turns"},
      {"[red|blue]", "take turns"},
      {"a AND b", "composes prompts"},
      {"a BREAK b", "begins another chunk"},
      {"<lora:x:0.8> a", "name its file: \"loras\""},
      {"a <hypernet:x:1>", "\"<hypernet:x:1>\""}};
  for (const auto& [prompt, why] : kRefused) {
    CAPTURE(prompt);
    const std::string what = message_of([&] { words(prompt); });
    CAPTURE(what);
    CHECK(what.starts_with("prompt: has "));
    CHECK(has(what, why));
  }
  // In a negative prompt these are words.
  CHECK(words("a AND <lora:x:1>", PromptKind::negative) == "a AND <lora:x:1>");
  CHECK(words_of_prompt("prompt", "a<lora:x:1> b <y:z>", PromptKind::positive, true) == "a b ");
  CHECK(refused_field(kTxt2Img, {{"negative_prompt", "(bad:1.2)"}}) == "negative_prompt");
}
