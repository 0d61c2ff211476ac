#include "web/api.h"

#include <algorithm>
#include <random>

namespace troupe::web {
namespace {

constexpr const char* kClientIsGone = "the gateway, because its client went away";

}  // namespace

Response json_response(const nlohmann::json& document, int status) {
  return {.status = status, .body = json_text(document), .fields = {{"Cache-Control", "no-store"}}};
}

Response error_response(const ApiError& error) {
  Response response = json_response(to_json(error), error.status);
  if (error.status == 401) response.fields.emplace_back("WWW-Authenticate", "Bearer");
  if (error.status == 429 || error.status == 503)
    response.fields.emplace_back("Retry-After", std::to_string(error.retry_after_s));
  return response;
}

void answer_error(const ReplyPtr& reply, const ApiError& error) {
  reply->send(error_response(error));
}

std::string canceller_of(const Request& request) {
  const std::string& key = request.caller->name;
  return request.head.method + " " + request.head.path_text() +
         (key.empty() ? "" : " with the key " + key);
}

std::uint64_t random_seed() {
  static std::mt19937_64 random{std::random_device()()};
  return random() >> 33;
}

std::string base_of(const Request& request) {
  // TLS ends here, or at a proxy that says so.
  const std::string& proto = request.head.field("x-forwarded-proto");
  return (request.head.secure || proto == "https" ? "https://" : "http://") +
         request.head.field("host");
}

std::size_t bytes_brought(const ImageRequest& request) {
  std::size_t bytes = request.init_image.size() + request.mask_image.size();
  bytes += request.last_image.size();
  for (const auto& image : request.images)
    bytes += image.size();
  for (const auto& image : request.control_images)
    bytes += image.size();
  if (request.init_latents) bytes += request.init_latents->data.size() * sizeof(float);
  for (const auto& [name, tensor] : request.prompt_embeds)
    bytes += tensor.data.size() * sizeof(float);
  return bytes;
}

bool may_see(const KeyHolder& caller, const Job& job) {
  return caller.operate || job.caller == caller.name;
}

JobPtr job_of(const Api& api, const Request& request) {
  const JobPtr job = api.service.job(request.params.at(0));
  if (may_see(*request.caller, *job)) return job;
  throw ApiError(404, ErrorCode::not_found, "there is no job " + request.params.at(0));
}

void submit_for(Api& api, HandIn handed, const Request& request, const ReplyPtr& reply,
                std::function<void(const JobPtr&)> then) {
  // What a picture was made into may be larger than the body was.
  constexpr std::size_t kCopies = 2;  // here, and at the client until the cluster has fetched it
  const std::size_t next_bytes = handed.next_bytes;
  const std::size_t bytes = bytes_brought(handed.submission.request);
  if (!request.memory->resize(kCopies * std::max(next_bytes, bytes)))
    return answer_error(reply, {503, ErrorCode::overloaded,
                                "there is no room for what the job begins with: try again when "
                                "other requests are done with"});
  const auto gone = std::make_shared<bool>(false);
  reply->on_gone([gone] { *gone = true; });
  const bool detached = handed.submission.detached;
  api.service.submit(
      std::move(handed.submission), request.caller, handed.kind,
      [&api, reply, gone, detached, next_bytes, words = std::move(handed.words),
       memory = request.memory,
       then = std::move(then)](std::optional<ApiError> error, const JobPtr& job) {
        memory->resize(kCopies * next_bytes);
        if (error) return answer_error(reply, words.in_words(*error));
        if (*gone && !detached) return api.service.cancel(job, kClientIsGone);
        then(job);
      },
      std::move(handed.next));
}

void follow_for(const Api& api, const JobPtr& job, const ReplyPtr& reply,
                JobBoard::Listener listener, bool cancel_when_gone) {
  auto& service = api.service;
  if (job->ended()) return listener(*job, JobBoard::What::end);
  const auto number = std::make_shared<std::uint64_t>(0);
  *number = service.board().listen(job->id, [&service, number, listener = std::move(listener)](
                                                const Job& seen, JobBoard::What what) {
    // What the listener holds must outlive its removal.
    const auto call = listener;
    if (what == JobBoard::What::end) service.board().unlisten(seen.id, *number);
    call(seen, what);
  });
  reply->on_gone([&service, job, number, cancel_when_gone] {
    service.board().unlisten(job->id, *number);
    if (cancel_when_gone && !job->ended()) service.cancel(job, kClientIsGone);
  });
}

}  // namespace troupe::web
