#pragma once
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "web/api_error.h"
#include "web/clip_files.h"
#include "web/http_message.h"
#include "web/job_service.h"
#include "web/router.h"

namespace troupe::web {

/// Links to pictures that whoever knows them may fetch, for a while: what OpenAI's "url" answers
/// are. Pure; `now` in seconds. The names come in, because they must not be guessed.
class PictureLinks {
 public:
  struct Link {
    std::weak_ptr<Job> job;  // dead when it is forgotten: another one may get its number
    std::size_t picture = 0;
    PictureKind kind;
    double until = 0;
  };
  static constexpr double kSeconds = 3600;
  static constexpr std::size_t kMost = 10'000;  // the oldest go first

  void add(const std::string& name, Link link, double now) {
    link.until = now + kSeconds;
    if (links_.insert_or_assign(name, std::move(link)).second) order_.push_back(name);
    while (links_.size() > kMost) {
      links_.erase(order_.front());
      order_.pop_front();
    }
  }
  std::optional<Link> find(const std::string& name, double now) const {
    const auto found = links_.find(name);
    if (found == links_.end() || found->second.until < now || found->second.job.expired())
      return std::nullopt;
    return found->second;
  }

 private:
  std::map<std::string, Link> links_;
  std::deque<std::string> order_;
};

/// Objects that the parts of the API are made of. They live as long as the gateway.
struct Api {
  JobService& service;
  Router& router;
  PictureLinks& links;
  ClipFiles& clips;
};

/// Bytes of a request's body that may have a picture in it.
inline constexpr std::size_t kMostPictureBody = std::size_t{96} << 20;

Response json_response(const nlohmann::json& document, int status = 200);
Response error_response(const ApiError& error);
/// Sends an error as the answer, also one that a handler of a later answer throws.
void answer_error(const ReplyPtr& reply, const ApiError& error);

/// Returns who asks, for the cause of what a call ends: the call, and the key's name where keys are
/// asked for.
std::string canceller_of(const Request& request);
/// Returns for whom workers work: the key's name, or where no key is asked for the client's
/// address.
inline std::string asker_of(const Request& request) {
  return request.caller->name.empty() ? request.head.peer : request.caller->name;
}

/// Parses a request on a worker, since nobody can know beforehand how long that takes, and calls
/// `then` with the result. The body is dropped then. ApiErrors are answered.
template <class T>
void parse_then(Api& api, const std::shared_ptr<Request>& request, const ReplyPtr& reply,
                std::function<T()> parse, std::function<void(T)> then) {
  using Outcome = std::variant<T, ApiError>;
  api.service.parse<Outcome>(
      [parse = std::move(parse)]() -> Outcome {
        try {
          return parse();
        } catch (const ApiError& error) {
          return error;
        }
      },
      [request, reply, then = std::move(then)](Result<Outcome> outcome) {
        request->body = {};
        if (!outcome) return answer_error(reply, to_api_error(outcome.error()));
        if (auto* error = std::get_if<ApiError>(&outcome.value()))
          return answer_error(reply, *error);
        try {
          then(std::move(std::get<T>(outcome.value())));
        } catch (const ApiError& error) {
          answer_error(reply, error);
        }
      },
      asker_of(*request));
}

/// Returns the job of a route's {}, if the caller may see it; else throws ApiError 404.
JobPtr job_of(const Api& api, const Request& request);
bool may_see(const KeyHolder& caller, const Job& job);

/// Returns the bytes of pictures, latents and embeds that come with the request.
std::size_t bytes_brought(const ImageRequest& request);

/// Job that is to be handed in for a request.
struct HandIn {
  Submission submission;
  PictureKind kind;
  FieldWords words;            // in which refusals are told
  std::size_t next_bytes = 0;  // that jobs after it bring
  std::optional<JobService::NextJob> next = {};
};
/// Hands a job in for the request and calls `then`; refusals are answered. The job is cancelled
/// instead where its client has gone meanwhile, unless it is detached. Memory for what it brings is
/// taken until it is handed in, and while the request is held that for its `next_bytes`.
void submit_for(Api& api, HandIn handed, const Request& request, const ReplyPtr& reply,
                std::function<void(const JobPtr&)> then);

/// Ends the request's job with its client, unless it is detached: cancels when the client goes.
/// Listens for as long as the job has not ended and the client is there.
void follow_for(const Api& api, const JobPtr& job, const ReplyPtr& reply,
                JobBoard::Listener listener, bool cancel_when_gone);

/// Handlers of each part: docs/http.md lists the calls.
void add_jobs_routes(Api& api);     // /api/v1/jobs…
void add_images_routes(Api& api);   // /v1/images/…
void add_cluster_routes(Api& api);  // /health, /v1/models, /api/v1/cluster…
void add_webui_routes(Api& api);    // /sdapi/v1/…
void add_videos_routes(Api& api);   // /v1/videos…

/// Returns the number of rows that a request's ?limit= asks for, else `usual`. Throws ApiError.
std::size_t asked_limit(const Request& request, std::size_t usual, std::size_t most);
/// Returns the kind of picture that a request's ?format= and ?quality= ask for, else `usual`.
/// Throws ApiError.
PictureKind asked_kind(PictureKind usual, const Request& request);
/// Sends a picture of a job as a file of that kind.
void send_picture(Api& api, const JobPtr& job, std::size_t number, const PictureKind& kind,
                  const ReplyPtr& reply);
/// Returns a seed of 31 bits: the same number in every language.
std::uint64_t random_seed();
/// Returns "http://HOST" as the client called this place.
std::string base_of(const Request& request);

}  // namespace troupe::web
