// What comes over HTTP: targets, JSON bodies, forms, pictures to begin with, the file of keys.
#include <algorithm>
#include <filesystem>

#include "models/image/load_picture.h"
#include "models/image/picture_file.h"
#include "tests/fuzz/targets/all.h"
#include "tests/support/text.h"
#include "web/api_error.h"
#include "web/api_keys.h"
#include "web/calls.h"
#include "web/encodings.h"
#include "web/http_message.h"
#include "web/pictures.h"
#include "web/webui_call.h"

namespace troupe::fuzz {
namespace {

const std::string kForm = "multipart/form-data; boundary=b";

const std::string& small_picture() {
  static const std::string kPng = testing::read_all(fixtures() / "expected" / "demo_small.png");
  return kPng;
}

}  // namespace

void run_http_body(std::string_view bytes) {
  const std::string body(bytes);
  refusable([&] {
    const auto call = web::parse_job(body);
    require(!call.submission.request.prompts.empty(), "a job has a prompt");
  });
  refusable([&] {
    const auto call = web::parse_images(web::Fields::parse(body, web::other_names()), false, 1);
    require(call.submission.request.images_per_prompt <= 10, "pictures are bounded");
    require(call.partial_images <= 3, "partial images are bounded");
  });
  refusable([&] { web::parse_video(web::Fields::parse(body, web::other_names()), 1); });
  for (const web::Call call : {web::kTxt2Img, web::kImg2Img})
    refusable([&] { web::parse_webui(body, call, 1); });
}

std::vector<std::string> seeds_http_body() {
  return {
      R"({"prompt": "a", "steps": 3, "seed": 5, "loras": [{"path": "/l", "scale": 0.5}], "cfg": 2})",
      R"({"prompts": ["a", "b"], "refill_steps": [1, 2], "parallel": "auto", "init_image": "AAAA"})",
      R"({"prompt": "a", "n": 2, "size": "64x64", "stream": true, "partial_images": 1, "lora": "/l"})",
      R"({"prompt": "\\(a\\) [b:0.5] (c:1.2) <lora:d:1> # e", "enable_hr": true, "hr_upscaler": "None", "styles": []})",
      R"({"prompt": "a", "seconds": "4", "guidance_scale": 1e3, "output_format": "webp"})"};
}

void run_http_form(std::string_view bytes) {
  refusable([&] {
    std::size_t sum = 0;
    for (const auto& part : web::parse_multipart(kForm, bytes))
      sum += part.bytes.size();
    require(sum <= bytes.size(), "a form's parts are parts of it");
  });
  refusable([&] { web::parse_images(web::edit_fields(kForm, std::string(bytes)), true, 1); });
  // The header's value itself.
  refusable([&] {
    web::parse_multipart("multipart/form-data;" + std::string(bytes), "--b\r\n\r\n\r\n--b--");
  });
}

std::vector<std::string> seeds_http_form() {
  return {
      "--b\r\nContent-Disposition: form-data; name=\"prompt\"\r\n\r\na\r\n--b\r\n"
      "Content-Disposition: form-data; name=\"image\"; filename=\"i.png\"\r\n\r\n" +
          small_picture().substr(0, 4000) + "\r\n--b--\r\n",
      " boundary=\"b\"; x=y", "--b--"};
}

void run_http_target(std::string_view bytes) {
  web::RequestHead head;
  if (web::parse_target(bytes, head)) {
    require(bytes.starts_with('/'), "a target is a path");
    require(head.path.size() <= bytes.size() && head.query.size() <= bytes.size(),
            "no more is made");
  }
  web::foreign(std::string(bytes), std::string(bytes), "", true, {});
  refusable([&] { web::ApiKeys::parse(bytes).find("Bearer a"); });
}

std::vector<std::string> seeds_http_target() {
  return {"/api/v1/jobs/3%2f/pictures/0?format=webp&quality=8+0&x", "[::1]:80",
          "a sha256:" + std::string(64, '0') + " share=b jobs=2 per-minute=3 role=operate\n# c\n"};
}

void run_http_picture(std::string_view bytes) {
  for (const auto alpha : {models::AlphaUse::dropped, models::AlphaUse::over_white,
                           models::AlphaUse::mask, models::AlphaUse::clear_parts}) {
    refusable([&] {
      const auto header = models::read_picture_header(bytes);
      // What is small is decoded.
      if (std::uint64_t{header.coded_width} * header.coded_height > 1 << 16) return;
      const auto pixels = models::load_picture(bytes, alpha);
      require(pixels.rgb.size() == std::size_t{3} * pixels.width * pixels.height,
              "three bytes a pixel");
      require(models::load_picture(models::write_png(pixels)).rgb == pixels.rgb,
              "what is written is read");
    });
  }
  refusable([&] {
    const auto request = web::parameters_of(std::string(bytes));
    require(request.is_object(), "a request is an object");
  });
}

std::vector<std::string> seeds_http_picture() {
  std::vector<std::string> seeds = {small_picture()};
  for (const auto& entry : std::filesystem::directory_iterator(fixtures() / "pictures"))
    seeds.push_back(testing::read_all(entry.path()));
  std::ranges::sort(seeds);
  return seeds;
}

}  // namespace troupe::fuzz
