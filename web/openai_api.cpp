#include <sodium.h>

#include "base/format.h"
#include "base/numbers.h"
#include "models/image/frames.h"
#include "models/image/png_text.h"
#include "web/api.h"
#include "web/encodings.h"
#include "web/pictures.h"

/// OpenAI's images; and its videos, as MP4, or in a format that is asked for.
namespace troupe::web {
namespace {

/// Returns the counts of tokens that openai-python needs to be there; we do not count tokens.
nlohmann::json usage_json() {
  return {{"input_tokens", 0},
          {"output_tokens", 0},
          {"total_tokens", 0},
          {"input_tokens_details", {{"image_tokens", 0}, {"text_tokens", 0}}}};
}

/// Returns what a whole answer and the last event of a stream say of a picture.
nlohmann::json described(const std::string& png, const PictureKind& kind) {
  const auto size = models::png_size(png);
  return {{"size", fmt::format("{}x{}", size.width, size.height)},
          {"quality", "auto"},
          {"background", "opaque"},
          {"output_format", to_string(kind.format)},
          {"usage", usage_json()}};
}

using Warnings = std::vector<std::string>;  // of a job

std::string answer_text(nlohmann::json data, const JobResult& result, const PictureKind& kind,
                        const Warnings& warnings) {
  nlohmann::json answer = described(result.pictures.at(0).png, kind);
  answer["warnings"] = warnings;
  answer["created"] = static_cast<std::int64_t>(JobService::now());
  answer["data"] = std::move(data);
  return json_text(answer);
}

std::string whole_answer(const JobResult& result, const PictureKind& kind,
                         const Warnings& warnings) {
  nlohmann::json data = nlohmann::json::array();
  for (const Picture& picture : result.pictures)
    data.push_back({{"b64_json", base64(picture_file(picture.png, kind))}});
  return answer_text(std::move(data), result, kind, warnings);
}

/// Links to the pictures in the place of their bytes.
std::string linked_answer(Api& api, const JobPtr& job, const PictureKind& kind,
                          const std::string& base) {
  nlohmann::json data = nlohmann::json::array();
  for (std::size_t i = 0; i < job->result->pictures.size(); ++i) {
    std::string random(16, '\0');
    randombytes_buf(random.data(), random.size());
    const std::string name = fmt::format("{}-{}-{}", job->id, i, hex(random));
    api.links.add(name, {job, i, kind, 0}, JobService::now());
    data.push_back({{"url", base + "/v1/pictures/" + name}});
  }
  return answer_text(std::move(data), *job->result, kind, job->warnings);
}

std::string completed_events(const JobResult& result, const PictureKind& kind,
                             const std::string& name, const Warnings& warnings) {
  std::string text;
  for (const Picture& picture : result.pictures) {
    nlohmann::json event = described(picture.png, kind);
    event["type"] = name + ".completed";
    event["warnings"] = warnings;
    event["created_at"] = static_cast<std::int64_t>(JobService::now());
    event["b64_json"] = base64(picture_file(picture.png, kind));
    text += event_text(name + ".completed", json_text(event));
  }
  return text + event_text("", "[DONE]");
}

std::string partial_event(const Job& job, int index, const std::string& name) {
  const auto size = models::png_size(job.preview);
  return event_text(name + ".partial_image",
                    json_text({{"type", name + ".partial_image"},
                               {"b64_json", base64(job.preview)},
                               {"created_at", static_cast<std::int64_t>(JobService::now())},
                               {"size", fmt::format("{}x{}", size.width, size.height)},
                               {"quality", "auto"},
                               {"background", "opaque"},
                               {"output_format", "png"},
                               {"partial_image_index", index}}));
}

/// One request on its way. All on the loop.
struct Painting : std::enable_shared_from_this<Painting> {
  Painting(Api& api, const ImagesCall& call, ReplyPtr reply, std::string base)
      : api(api),
        kind(call.kind),
        name(call.edit ? "image_edit" : "image_generation"),
        detached(call.submission.detached),
        stream(call.stream),
        url(call.url),
        partial_images(call.partial_images),
        reply(std::move(reply)),
        base(std::move(base)) {}

  void accepted(const JobPtr& job) {
    if (stream) reply->begin(event_stream(), kHeartbeat);
    follow_for(
        api, job, reply,
        [self = shared_from_this(), job](const Job&, JobBoard::What what) {
          if (what == JobBoard::What::preview) self->preview(*job);
          if (what == JobBoard::What::end) self->ended(job);
        },
        !detached);
  }

  void preview(const Job& job) {
    if (!stream || partials >= partial_images || job.preview_step >= job.info.steps) return;
    reply->write(piece(partial_event(job, partials++, name)), true);
  }

  void ended(const JobPtr& job) {
    api.service.with_result(job, [self = shared_from_this(), job](const auto& result) {
      if (!result) return self->failed(to_api_error(result.error()));
      if (result.value()->pictures.empty())
        return self->failed({500, ErrorCode::failed, "job " + job->id + " has made no pictures"});
      self->succeeded(job);
    });
  }

  /// `job` has a result, with pictures.
  void succeeded(const JobPtr& job) {
    if (url && !stream)
      return reply->send({.status = 200, .body = linked_answer(api, job, kind, base)});
    if (is_small(*job->result))  // two wake-ups would take longer
      return succeeded(stream ? completed_events(*job->result, kind, name, job->warnings)
                              : whole_answer(*job->result, kind, job->warnings));
    api.service.work<std::string>(
        [result = job->result, kind = kind, stream = stream, name = name,
         warnings = job->warnings] {
          return stream ? completed_events(*result, kind, name, warnings)
                        : whole_answer(*result, kind, warnings);
        },
        [self = shared_from_this()](Result<std::string> text) {
          if (!text) return self->failed(to_api_error(text.error()));
          self->succeeded(std::move(text.value()));
        },
        job->caller);
  }

  void succeeded(std::string text) {
    if (!stream) return reply->send({.status = 200, .body = std::move(text)});
    reply->write(piece(std::move(text)), false);
    reply->end();
  }

  /// True if only base64 is to be encoded, and little of it.
  bool is_small(const JobResult& result) const {
    constexpr std::size_t kSmall = 256 << 10;
    std::size_t bytes = 0;
    for (const Picture& picture : result.pictures)
      bytes += picture.png.size();
    return kind.format == PictureFormat::png && bytes <= kSmall;
  }

  void failed(const ApiError& error) {
    if (!stream) return answer_error(reply, error);
    reply->write(piece(event_text("error", json_text(to_json(error)))), false);
    reply->end();
  }

  Api& api;
  const PictureKind kind;
  const std::string name;  // of its events
  const bool detached, stream, url;
  const int partial_images;
  const ReplyPtr reply;
  std::string base;  // of links
  int partials = 0;
};

void paint(Api& api, ImagesCall call, const std::shared_ptr<Request>& request,
           const ReplyPtr& reply) {
  const auto painting = std::make_shared<Painting>(api, call, reply, base_of(*request));
  submit_for(api, {std::move(call.submission), call.kind, std::move(call.words)}, *request, reply,
             [painting](const JobPtr& job) { painting->accepted(job); });
}

void add_images_route(Api& api, const char* path, bool edit) {
  api.router.add({"POST",
                  path,
                  Access::user,
                  kMostPictureBody,
                  [&api, edit](const std::shared_ptr<Request>& request, const ReplyPtr& reply) {
                    parse_then<ImagesCall>(
                        api, request, reply,
                        [request, edit, seed = random_seed()] {
                          Fields fields =
                              edit ? edit_fields(request->head.field("content-type"), request->body)
                                   : Fields::parse(request->body, other_names());
                          return parse_images(std::move(fields), edit, seed);
                        },
                        [&api, request, reply](ImagesCall call) {
                          paint(api, std::move(call), request, reply);
                        });
                  },
                  {},
                  edit ? Body::form : Body::json});
}

}  // namespace

void add_images_routes(Api& api) {
  add_images_route(api, "/v1/images/generations", false);
  add_images_route(api, "/v1/images/edits", true);
}

namespace {

constexpr std::string_view kPrefix = "video_";

nlohmann::json video_json(const Job& job) {
  const bool succeeded = job.info.state == JobState::succeeded;
  const std::string status = succeeded                             ? "completed"
                             : job.ended()                         ? "failed"
                             : job.info.state == JobState::running ? "in_progress"
                                                                   : "queued";
  nlohmann::json video = {
      {"id", std::string(kPrefix) + job.id},
      {"object", "video"},
      {"model", job.info.model},
      {"status", status},
      {"progress", job.info.steps > 0 ? 100 * job.info.step / job.info.steps : 0},
      {"created_at", static_cast<std::int64_t>(job.created_at)},
      {"prompt", job.info.prompt},
      {"seconds", number_text((job.frames - 1.0) / models::kFramesPerSecond)},
      {"warnings", job.warnings},
      {"completed_at", nullptr},
      {"expires_at", nullptr},
      {"error", nullptr}};
  if (job.ended())
    video["completed_at"] = static_cast<std::int64_t>(job.created_at + job.info.seconds);
  if (job.ended() && !succeeded)
    video["error"] = {{"code", job.error ? to_string(job.error->code) : to_string(job.info.state)},
                      {"message", job.info.cause}};
  if (job.result && !job.result->pictures.empty()) {
    const auto size = models::png_size(job.result->pictures[0].png);
    video["size"] = fmt::format("{}x{}", size.width, size.height);
  }
  return video;
}

JobPtr video_of(const Api& api, const Request& request, const std::string& id) {
  const JobPtr job = id.starts_with(kPrefix) ? api.service.job(id.substr(kPrefix.size())) : nullptr;
  if (job && job->is_video && may_see(*request.caller, *job)) return job;
  throw ApiError(404, ErrorCode::not_found, "there is no video " + id);
}

JobPtr video_of(const Api& api, const Request& request) {
  return video_of(api, request, request.params.at(0));
}

Fields video_fields(const Request& request) {
  auto names = other_names();
  names["input_reference"] = "images";
  const std::string& type = request.head.field("content-type");
  if (!type.starts_with("multipart/")) return Fields::parse(request.body, names);
  return form_fields(type, request.body, {"input_reference", "image"}, other_names());
}

void create(Api& api, const std::shared_ptr<Request>& request, const ReplyPtr& reply) {
  parse_then<VideoCall>(
      api, request, reply,
      [request, seed = random_seed()] { return parse_video(video_fields(*request), seed); },
      [&api, request, reply](VideoCall call) {
        const int frames = call.submission.request.num_frames;
        submit_for(api, {std::move(call.submission), {}, std::move(call.words)}, *request, reply,
                   [reply, frames](const JobPtr& job) {
                     job->is_video = true;
                     job->frames = frames;
                     reply->send(json_response(video_json(*job)));
                   });
      });
}

void list_videos(Api& api, const std::shared_ptr<Request>& request, const ReplyPtr& reply) {
  const auto& query = request->head.query;
  const std::size_t limit = asked_limit(*request, 20, 100);
  if (const auto order = query.find("order"); order != query.end() && order->second != "desc")
    throw bad_field("order", "is " + json_text(short_name(order->second)) +
                                 ": desc is there, the newest first");
  const auto after = query.find("after");
  const std::string before = after == query.end() ? "" : video_of(api, *request, after->second)->id;
  api.service.want_jobs();
  auto jobs = api.service.board().list(before, limit + 1, [&](const Job& one) {
    return one.is_video && may_see(*request->caller, one);
  });
  const bool has_more = jobs.size() > limit;
  if (has_more) jobs.pop_back();
  nlohmann::json rows = nlohmann::json::array();
  for (const auto& job : jobs)
    rows.push_back(video_json(*job));
  reply->send(
      json_response({{"object", "list"}, {"data", std::move(rows)}, {"has_more", has_more}}));
}

void remove(Api& api, const std::shared_ptr<Request>& request, const ReplyPtr& reply) {
  const JobPtr job = video_of(api, *request);
  if (!job->ended()) api.service.cancel(job, canceller_of(*request));
  // The job is a video no more; what it has painted goes, and is still the cluster's for a while.
  job->is_video = false;
  api.service.board().drop_result(job);
  api.clips.drop(job->id);
  reply->send(
      json_response({{"id", request->params[0]}, {"object", "video.deleted"}, {"deleted", true}}));
}

}  // namespace

void add_videos_routes(Api& api) {
  const auto add = [&](const char* method, const char* path, auto handler, std::size_t body = 0,
                       std::vector<std::string> query = {}, Body kind = Body::json) {
    api.router.add(
        {method, path, Access::user, body,
         [&api, handler](const auto& request, const auto& reply) { handler(api, request, reply); },
         std::move(query), kind});
  };
  add("POST", "/v1/videos", create, kMostPictureBody, {}, Body::json_or_form);
  add("GET", "/v1/videos", list_videos, 0, {"limit", "after", "order"});
  add("GET", "/v1/videos/{}", [](Api& api, const auto& request, const auto& reply) {
    reply->send(json_response(video_json(*video_of(api, *request))));
  });
  add("DELETE", "/v1/videos/{}", remove);
  add("GET", "/v1/videos/{}/content",
      [](Api& api, const auto& request, const auto& reply) {
        PictureKind usual{.format = PictureFormat::mp4};
        const auto& query = request->head.query;
        if (const auto variant = query.find("variant"); variant != query.end()) {
          if (query.contains("format"))
            throw bad_field("format", "does not go with variant: either says which file it is");
          if (variant->second == "thumbnail")
            usual.format = PictureFormat::webp;
          else if (variant->second != "video")
            throw bad_field("variant", "is " + json_text(short_name(variant->second)) +
                                           ": video and thumbnail, the first frame, are there");
        }
        const PictureKind kind = asked_kind(usual, *request);
        send_picture(api, video_of(api, *request), 0, kind, reply);
      },
      0, {"variant", "format", "quality"});
}

}  // namespace troupe::web
