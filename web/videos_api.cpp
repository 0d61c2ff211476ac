#include "base/format.h"
#include "base/numbers.h"
#include "models/image/frames.h"
#include "models/image/png_text.h"
#include "web/api.h"

/// OpenAI's videos, as MP4, or in a format that is asked for.
namespace troupe::web {
namespace {

constexpr std::string_view kPrefix = "video_";

nlohmann::json video_json(const Job& job) {
  const bool succeeded = job.state == JobState::succeeded;
  const std::string status = succeeded                        ? "completed"
                             : job.ended()                    ? "failed"
                             : job.state == JobState::running ? "in_progress"
                                                              : "queued";
  nlohmann::json video = {{"id", std::string(kPrefix) + job.id},
                          {"object", "video"},
                          {"model", job.model},
                          {"status", status},
                          {"progress", job.steps > 0 ? 100 * job.step / job.steps : 0},
                          {"created_at", static_cast<std::int64_t>(job.created_at)},
                          {"prompt", job.prompt},
                          {"seconds", number_text((job.frames - 1.0) / models::kFramesPerSecond)},
                          {"warnings", job.warnings},
                          {"completed_at", nullptr},
                          {"expires_at", nullptr},
                          {"error", nullptr}};
  if (job.ended()) video["completed_at"] = static_cast<std::int64_t>(job.created_at + job.seconds);
  if (job.ended() && !succeeded)
    video["error"] = {{"code", job.error ? to_string(job.error->code) : to_string(job.state)},
                      {"message", job.cause}};
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
  names["input_reference"] = "init_image";
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
