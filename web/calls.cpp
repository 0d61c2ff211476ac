#include "web/calls.h"

#include <algorithm>
#include <array>

#include "base/format.h"
#include "base/numbers.h"
#include "base/text.h"
#include "models/image/clip_text.h"
#include "models/image/frames.h"
#include "models/spec/prompt_embeds.h"
#include "transport/json/recorded_request.h"
#include "transport/wire/request_limits.h"
#include "web/api_error.h"
#include "web/encodings.h"
#include "web/pictures.h"

namespace troupe::web {
namespace {

constexpr int kMostPictures = 10;  // of one of OpenAI's requests
constexpr int kMostPreviewSteps = 100'000;
constexpr std::size_t kMostEmbeds = std::size_t{1} << 25;  // values

/// Sets the prompts: texts, or embeds in their place, with which a text may be there, but says
/// nothing.
void read_prompts(Fields& fields, ImageRequest& request) {
  const auto prompts = fields.texts("prompts");
  const auto prompt = fields.texts("prompt");
  const auto embeds = fields.text("prompt_embeds");
  if (prompts && prompt) throw bad_field("prompts", "does not go with prompt");
  if (prompts || prompt) request.prompts = prompts ? *prompts : *prompt;
  if (!embeds) return;
  const std::string bytes = bytes_of_field("prompt_embeds", *embeds);
  try {
    auto file = spec::parse_prompt_embeds(bytes, "the file", kMostEmbeds, wire::kMaxPictures);
    for (auto& [name, tensor] : file.tensors)
      request.prompt_embeds[name] = {.shape = std::move(tensor.shape),
                                     .data = std::move(tensor.data)};
    // Beside texts that say something the rules of requests refuse them.
    if (std::ranges::all_of(request.prompts, [](const auto& text) { return text.empty(); }))
      request.prompts.assign(file.prompts, "");
  } catch (const std::runtime_error& error) {
    throw bad_field("prompt_embeds", without_rooms(error.what()));
  }
}

/// Throws for an unknown field before a missing prompt: the field may be the prompt's name,
/// misspelt.
void refuse_rest_or_no_prompt(const Fields& fields, const ImageRequest& request) {
  fields.refuse_rest();
  if (request.prompts.empty()) throw bad_field("prompt", "is missing");
}

/// Reads a list of pictures.
void read_pictures(Fields& fields, const char* name, std::size_t most,
                   std::vector<std::string>& pictures) {
  const auto images = fields.texts(name);
  if (!images) return;
  if (images->size() > most)
    throw bad_field(name,
                    fmt::format("has {} pictures: at most {} are taken", images->size(), most));
  for (const auto& image : *images)
    pictures.push_back(picture_of_field(name, image));
}

/// Reads what every kind of request has: the prompts, the table's fields, degrees, and how the job
/// stands among others.
void read_common(Fields& fields, Submission& submission) {
  ImageRequest& request = submission.request;
  read_prompts(fields, request);
  fields.read_request(request);
  fields.read_degrees(submission.parallelism);
  submission.model = fields.text("model").value_or("");
  submission.priority = static_cast<int>(
      fields.whole("priority", -wire::kMaxPriority, wire::kMaxPriority).value_or(0));
  submission.share = fields.text("share").value_or("");
  submission.elastic = fields.flag("elastic").value_or(false);
  submission.may_batch = fields.flag("may_batch").value_or(false);
  if (const auto image = fields.text("init_image"))
    request.init_image = picture_of_field("init_image", *image);
  if (const auto mask = fields.text("mask_image"))
    request.mask_image = picture_of_field("mask_image", *mask);
  request.images_as_taken = fields.has("image") || fields.has("image[]");
  read_pictures(fields, "images", wire::kMaxImages, request.images);
  read_pictures(fields, "control_images", wire::kMaxControlNets, request.control_images);
  if (const auto image = fields.text("last_image"))
    request.last_image = picture_of_field("last_image", *image);
  if (const auto latents = fields.text("init_latents")) {
    const std::string bytes = bytes_of_field("init_latents", *latents);
    try {
      request.init_latents = latents_from_npy(bytes);
    } catch (const std::runtime_error& error) {
      throw bad_field("init_latents", error.what());
    }
  }
}

/// Sets `output_compression`. With png OpenAI takes 100 alone, too.
void set_compression(PictureKind& kind, int percent) {
  if (kind.format == PictureFormat::png && percent != 100)
    throw bad_field("output_compression",
                    "does nothing to png, which loses nothing: leave it out, or give 100");
  kind.quality = std::max(1, percent);
}

void read_kind(Fields& fields, PictureKind& kind) {
  if (const auto name = fields.text("output_format"))
    kind.format = picture_format("output_format", *name);
  if (const auto quality = fields.whole("output_compression", 0, 100))
    set_compression(kind, static_cast<int>(*quality));
}

}  // namespace

std::string media_type_of(PictureFormat format) {
  return (clip_format(format) ? "video/" : "image/") + to_string(format);
}

std::optional<models::ClipFormat> clip_format(PictureFormat format) {
  if (format == PictureFormat::webm) return models::ClipFormat::webm;
  if (format == PictureFormat::mp4) return models::ClipFormat::mp4;
  return std::nullopt;
}

PictureFormat picture_format(const std::string& field, const std::string& name) {
  if (name == "jpg") return PictureFormat::jpeg;
  if (const auto format = parse_choice<PictureFormat>(name)) return *format;
  throw bad_field(field,
                  "is " + json_text(name) + ", not " + choices_text(choice_words<PictureFormat>()));
}

namespace {

JobCall read_job(Fields& fields) {
  JobCall call;
  read_common(fields, call.submission);
  read_kind(fields, call.kind);
  call.submission.detached = fields.flag("detached").value_or(true);
  ImageRequest& request = call.submission.request;
  request.want_latents = fields.flag("want_latents").value_or(false);
  if (const auto every = fields.whole("preview_every", 0, kMostPreviewSteps);
      every.value_or(0) > 0) {
    request.progress_interval = static_cast<int>(*every);
    request.progress_content = to_string(ProgressContent::preview);
  }
  if (clip_format(call.kind.format) && request.num_frames == 1)
    throw bad_field("output_format", "is " + to_string(call.kind.format) +
                                         ", which is for clips: one frame is a picture");
  refuse_rest_or_no_prompt(fields, request);
  return call;
}

/// Reads a call: what is wrong with it is told in the words of its client, which it then has.
template <class Read>
auto read_in_words(const FieldWords& words, Read&& read) {
  auto call = words.tell(read);
  call.words = words;
  return call;
}

}  // namespace

nlohmann::json job_fields_json() {
  nlohmann::json fields = nlohmann::json::array();
  const auto add = [&](const char* name, const char* type, const nlohmann::json& initial,
                       std::string_view option, const char* help) -> nlohmann::json& {
    return fields.emplace_back(nlohmann::json{
        {"name", name}, {"type", type}, {"default", initial}, {"option", option}, {"help", help}});
  };
  constexpr auto& kOptions = wire::kJobOptions;
  add("prompt", "string", {}, kOptions.prompt, "What is painted; also a list of texts");
  add("prompts", "list", nlohmann::json::array(), kOptions.prompt, "Several of them")["items"] =
      "string";
  add("prompt_embeds", "string", {}, kOptions.prompt_embeds,
      "Instead of prompts: base64 of a safetensors file");
  add("model", "string", {}, kOptions.model, "A name of GET /v1/models, or a folder");
  add("init_image", "string", {}, kOptions.init_image,
      "Picture to begin with: base64 of a PNG, JPEG or WebP file");
  add("mask_image", "string", {}, kOptions.mask_image,
      "With init_image: what is white is painted anew; base64 likewise");
  add("images", "list", nlohmann::json::array(), kOptions.images,
      "Pictures to edit, or a video's first frame, where the model takes them; base64 "
      "likewise")["items"] = "string";
  add("image", "list", nlohmann::json::array(), kOptions.images,
      "The same as images; where the model takes none, the only one is the init_image")["items"] =
      "string";
  add("last_image", "string", {}, kOptions.last_image,
      "With images: a video's last frame, where the model takes one; base64 likewise");
  add("control_images", "list", nlohmann::json::array(), kOptions.control_images,
      "Pictures of edges, depth, a pose, …, one for each ControlNet, or the one that the model "
      "takes; base64 likewise")["items"] = "string";
  add("init_latents", "string", {}, kOptions.init_latents,
      "Latents to begin with: base64 of a .npy file");
  add("want_latents", "boolean", false, "--save-latents", "The final latents can be fetched");
  nlohmann::json& priority = add("priority", "integer", 0, kOptions.priority, "Higher goes first");
  priority["least"] = -wire::kMaxPriority;
  priority["most"] = wire::kMaxPriority;
  add("share", "string", {}, kOptions.share, "Whose share the job counts for; default: the key's");
  add("elastic", "boolean", false, kOptions.elastic,
      "Goes on with fewer actors after a loss that is not made good");
  add("may_batch", "boolean", false, kOptions.may_batch,
      "May compute as one batch with other jobs");
  add("parallel", "string", {}, kOptions.automatic,
      "The controller picks the degrees")["choices"] = {"auto"};
  add("detached", "boolean", true, "", "Goes on when the gateway ends");
  nlohmann::json& previews = add("preview_every", "integer", 0, "--preview-every",
                                 "A preview every so many steps; 0: none");
  previews["least"] = 0;
  previews["most"] = kMostPreviewSteps;
  add("output_format", "string", to_string(PictureFormat::png), "--output",
      "Kind of file of the pictures")["choices"] = choice_words<PictureFormat>();
  nlohmann::json& quality =
      add("output_compression", "integer", PictureKind().quality, "", "Of all formats but png");
  quality["least"] = 0;
  quality["most"] = 100;
  return fields;
}

JobCall parse_job(const std::string& body) {
  Fields fields = Fields::parse(body, other_names());
  return read_in_words(fields.words(kJobs), [&] { return read_job(fields); });
}

Fields form_fields(const std::string& content_type, const std::string& body,
                   const std::vector<std::string>& images,
                   std::map<std::string, std::string> aliases) {
  // Beside those of the call's own: files, or texts of base64 as in JSON.
  constexpr std::array<std::string_view, 3> kPictureFields = {"init_image", "last_image",
                                                              "control_image"};
  nlohmann::json fields = nlohmann::json::object();
  std::string image_name;  // that of the first one, which all go by
  for (FormPart& part : parse_multipart(content_type, body)) {
    const bool is_mask = part.name == "mask";
    const bool is_image = std::ranges::count(images, part.name) > 0;
    if (is_image) {
      if (image_name.empty()) image_name = part.name;
      aliases[image_name] = "images";
      fields[image_name].push_back(base64(part.bytes));
      continue;
    }
    if (fields.contains(part.name)) throw bad_field(part.name, "is there more than once");
    if (is_mask) aliases[part.name] = "mask_image";
    if (is_mask) {
      try {
        part.bytes = taken_picture(std::move(part.bytes), models::AlphaUse::clear_parts);
      } catch (const std::runtime_error& error) {
        throw bad_field("mask", error.what());
      }
    }
    const bool is_file =
        !is_mask && !part.file.empty() && std::ranges::count(kPictureFields, part.name) > 0;
    if (!is_mask && !is_file && !is_utf8(part.bytes))
      throw bad_field("form", "the field " +
                                  (is_utf8(part.name) ? short_name(part.name) : "of another name") +
                                  " is not UTF-8 text");
    fields[part.name] = is_mask || is_file ? base64(part.bytes) : part.bytes;
  }
  return Fields(std::move(fields), std::move(aliases), true);
}

Fields edit_fields(const std::string& content_type, const std::string& body) {
  Fields fields = form_fields(content_type, body, {"image", "image[]"}, other_names());
  if (!fields.any("images")) throw bad_field("image", "is missing");
  return fields;
}

void read_size(Fields& fields, ImageRequest& request) {
  const auto size = fields.text("size");
  if (!size) return;
  if (request.width != 0 || request.height != 0)
    throw bad_field("size", "does not go with width and height");
  parse_size(*size, request.width, request.height);
}

namespace {

VideoCall read_video(Fields& fields, std::uint64_t seed) {
  VideoCall call;
  Submission& submission = call.submission;
  ImageRequest& request = submission.request;
  request.seed = seed;
  read_common(fields, submission);
  need_pictures(request);
  read_size(fields, request);
  // As there, 4 seconds where nothing is said; so a model of pictures is refused. OpenAI's clients
  // send a text.
  const auto* given = fields.any("seconds");
  if (given && request.num_frames != 0)
    throw bad_field("seconds", "does not go with num_frames: either says how long the clip is");
  if (request.images_per_prompt != 1)
    throw bad_field("n", "is " + std::to_string(request.images_per_prompt) +
                             ", but a video is one clip: POST /api/v1/jobs makes several");
  if (request.num_frames == 0) {
    const auto seconds = !given               ? std::optional(4.0)
                         : given->is_number() ? std::optional(given->get<double>())
                         : given->is_string() ? parse_number<double>(given->get<std::string>())
                                              : std::nullopt;
    if (!seconds || !(*seconds > 0 && *seconds <= 60))
      throw bad_field("seconds", "is not a number above 0, up to 60");
    request.num_frames = static_cast<int>(*seconds * models::kFramesPerSecond / 4) * 4 + 1;
  }
  if (request.num_frames == 1)
    throw bad_field(given ? "seconds" : "num_frames",
                    "makes one frame, which is a picture: POST /v1/images/generations makes them");
  submission.detached = fields.flag("detached").value_or(true);
  fields.settle(kVideos);
  refuse_rest_or_no_prompt(fields, submission.request);
  return call;
}

}  // namespace

VideoCall parse_video(Fields fields, std::uint64_t seed) {
  return read_in_words(fields.words(kVideos), [&] { return read_video(fields, seed); });
}

nlohmann::json parameters_of(const std::string& file, const std::set<std::string>& brought) {
  try {
    return wire::recorded_request(models::read_file_text(file), brought).fields;
  } catch (const wire::MissingInput& missing) {
    throw bad_field(missing.field, missing.what());
  } catch (const std::runtime_error& error) {
    throw ApiError(400, ErrorCode::bad_request, "the body: " + without_rooms(error.what()));
  }
}

const std::map<std::string, std::string>& other_names() {
  static const std::map<std::string, std::string> kNames = {
      {"num_inference_steps", "steps"},
      {"n", "images_per_prompt"},
      {"lora", "loras"},
      {"embedding", "embeddings"},
      {"image", "images"},
      {"control_image", "control_images"},
      {"controlnet", "controlnets"},
      {"controlnet_conditioning_scale", "control_scale"},
      {"control_guidance_start", "control_from"},
      {"control_guidance_end", "control_until"},
      {"patches", "num_pipeline_patch"},
      {"warmup", "warmup_steps"}};
  return kNames;
}

std::string bytes_of_field(const std::string& field, const std::string& base64) {
  auto bytes = from_base64(base64);
  if (!bytes) throw bad_field(field, "is no base64");
  return std::move(*bytes);
}

std::string picture_of_field(const std::string& field, const std::string& base64,
                             models::AlphaUse alpha) {
  std::string bytes = bytes_of_field(field, base64);
  try {
    return taken_picture(std::move(bytes), alpha);
  } catch (const std::runtime_error& error) {
    throw bad_field(field, error.what());
  }
}

void need_pictures(const ImageRequest& request) {
  if (request.output_type == to_string(OutputType::latent))
    throw bad_field("output_type",
                    "is latent, but the answer here is pictures: POST /api/v1/jobs takes it");
}

void take_one_frame(ImageRequest& request) {
  if (request.num_frames > 1)
    throw bad_field("num_frames", "is " + std::to_string(request.num_frames) +
                                      ", but the answer here is pictures: POST /v1/videos and "
                                      "/api/v1/jobs make clips");
  request.num_frames = 1;
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

namespace {

ImagesCall read_images(Fields& fields, bool edit, std::uint64_t seed) {
  ImagesCall call;
  call.edit = edit;
  ImageRequest& request = call.submission.request;
  request.seed = seed;
  const auto n = fields.whole("images_per_prompt", 1, kMostPictures);
  read_common(fields, call.submission);
  need_pictures(request);
  take_one_frame(request);
  if (request.prompts.size() > 1)
    throw request.prompt_embeds.empty()
        ? bad_field("prompt", "is a list: one text is taken here")
        : bad_field("prompt_embeds", "is of several prompts: one is taken here");
  request.images_per_prompt = static_cast<int>(n.value_or(1));
  read_size(fields, request);
  read_kind(fields, call.kind);
  if (clip_format(call.kind.format))
    throw bad_field("output_format",
                    "is " + to_string(call.kind.format) + ", which is for clips: /v1/videos");
  call.url = fields.choice("response_format", {"url", "b64_json"}).value_or("b64_json") == "url";
  call.stream = fields.flag("stream").value_or(false);
  call.partial_images = static_cast<int>(fields.whole("partial_images", 0, 3).value_or(0));
  if (call.partial_images > 0 && !call.stream)
    throw bad_field("partial_images", "needs \"stream\": true");
  if (call.partial_images > 0) {
    request.progress_count = call.partial_images;
    request.progress_content = to_string(ProgressContent::preview);
  }
  call.submission.detached = fields.flag("detached").value_or(false);
  fields.settle(edit ? kEdits : kGenerations);
  refuse_rest_or_no_prompt(fields, call.submission.request);
  return call;
}

}  // namespace

ImagesCall parse_images(Fields fields, bool edit, std::uint64_t seed) {
  return read_in_words(fields.words(edit ? kEdits : kGenerations),
                       [&] { return read_images(fields, edit, seed); });
}

}  // namespace troupe::web
