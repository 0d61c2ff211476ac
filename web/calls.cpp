#include "web/calls.h"

#include <algorithm>

#include "base/parse_number.h"
#include "web/api_error.h"
#include "web/base64.h"
#include "web/latents_npy.h"

namespace troupe::web {
namespace {

constexpr int kMostPictures = 10;  // of one of OpenAI's requests

/// What every kind of request has: the prompts, the table's fields, degrees, and how the job stands
/// among others.
void read_common(Fields& fields, Submission& submission) {
  ImageRequest& request = submission.request;
  const auto prompts = fields.texts("prompts");
  const auto prompt = fields.texts("prompt");
  if (prompts && prompt) throw bad_field("prompts", "does not go with prompt");
  if (!prompts && !prompt) throw bad_field("prompt", "is missing");
  request.prompts = prompts ? *prompts : *prompt;
  fields.read_request(request);
  fields.read_degrees(submission.parallelism);
  submission.model = fields.text("model").value_or("");
  submission.priority = static_cast<int>(fields.whole("priority", -100, 100).value_or(0));
  submission.share = fields.text("share").value_or("");
  submission.elastic = fields.flag("elastic").value_or(false);
  submission.may_batch = fields.flag("may_batch").value_or(false);
  if (const auto image = fields.text("init_image")) {
    const auto bytes = from_base64(*image);
    if (!bytes) throw bad_field("init_image", "is no base64");
    request.init_image = *bytes;
  }
  if (const auto latents = fields.text("init_latents")) {
    const auto bytes = from_base64(*latents);
    if (!bytes) throw bad_field("init_latents", "is no base64");
    try {
      request.init_latents = latents_from_npy(*bytes);
    } catch (const std::runtime_error& error) {
      throw bad_field("init_latents", error.what());
    }
  }
}

void read_kind(Fields& fields, PictureKind& kind) {
  if (const auto name = fields.text("output_format"))
    kind.format = picture_format("output_format", *name);
  if (const auto quality = fields.whole("output_compression", 0, 100))
    kind.quality = std::max(1, static_cast<int>(*quality));
}

}  // namespace

const char* name_of(PictureFormat format) {
  return format == PictureFormat::png ? "png" : format == PictureFormat::jpeg ? "jpeg" : "webp";
}

const char* media_type_of(PictureFormat format) {
  return format == PictureFormat::png    ? "image/png"
         : format == PictureFormat::jpeg ? "image/jpeg"
                                         : "image/webp";
}

PictureFormat picture_format(const std::string& field, const std::string& name) {
  for (const auto format : {PictureFormat::png, PictureFormat::jpeg, PictureFormat::webp})
    if (name == name_of(format)) return format;
  throw bad_field(field, "is " + json_text(name) + ", not png, jpeg or webp");
}

JobCall parse_job(const std::string& body) {
  Fields fields = Fields::parse(body);
  JobCall call;
  read_common(fields, call.submission);
  read_kind(fields, call.kind);
  call.submission.detached = fields.flag("detached").value_or(true);
  ImageRequest& request = call.submission.request;
  request.want_latents = fields.flag("want_latents").value_or(false);
  if (const auto every = fields.whole("preview_every", 0, 100000); every.value_or(0) > 0) {
    request.progress_interval = static_cast<int>(*every);
    request.progress_content = to_string(ProgressContent::preview);
  }
  fields.refuse_rest();
  return call;
}

const std::map<std::string, std::string>& other_names() {
  static const std::map<std::string, std::string> kNames = {{"num_inference_steps", "steps"},
                                                            {"n", "images_per_prompt"},
                                                            {"lora", "loras"},
                                                            {"patches", "num_pipeline_patch"},
                                                            {"warmup", "warmup_steps"}};
  return kNames;
}

void parse_size(const std::string& text, int& width, int& height) {
  if (text == "auto") return;
  const std::size_t cross = text.find('x');
  const auto number = [&](const std::string& part) { return parse_number<int>(part).value_or(0); };
  width = cross == text.npos ? 0 : number(text.substr(0, cross));
  height = cross == text.npos ? 0 : number(text.substr(cross + 1));
  if (width < 1 || height < 1 || width > wire::kMaxPixels || height > wire::kMaxPixels)
    throw bad_field("size", "is " + json_text(text.substr(0, 40)) +
                                ", not \"auto\" or WIDTHxHEIGHT in pixels, as in \"1024x768\"");
}

ImagesCall parse_images(Fields fields, bool edit, std::uint64_t seed) {
  ImagesCall call;
  call.edit = edit;
  ImageRequest& request = call.submission.request;
  request.seed = seed;
  const auto n = fields.whole("images_per_prompt", 1, kMostPictures);
  read_common(fields, call.submission);
  if (request.prompts.size() > 1) throw bad_field("prompt", "is a list: one text is taken here");
  request.images_per_prompt = static_cast<int>(n.value_or(1));
  if (const auto size = fields.text("size")) {
    if (request.width != 0 || request.height != 0)
      throw bad_field("size", "does not go with width and height");
    parse_size(*size, request.width, request.height);
  }
  read_kind(fields, call.kind);
  call.url = fields.choice("response_format", {"url", "b64_json"}).value_or("b64_json") == "url";
  call.stream = fields.flag("stream").value_or(false);
  call.partial_images = static_cast<int>(fields.whole("partial_images", 0, 3).value_or(0));
  if (call.partial_images > 0 && !call.stream)
    throw bad_field("partial_images", "needs \"stream\": true");
  if (call.partial_images > 0) {
    request.progress_interval = std::max(1, request.steps / (call.partial_images + 1));
    request.progress_content = to_string(ProgressContent::preview);
  }
  call.submission.detached = fields.flag("detached").value_or(false);
  // They ask for nothing that a diffusion model has, or for what it does anyway.
  fields.ignore({"user", "quality", "style", "background", "moderation", "input_fidelity"});
  fields.refuse_rest();
  return call;
}

}  // namespace troupe::web
