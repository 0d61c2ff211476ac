#include <algorithm>
#include <deque>
#include <sstream>

#include "base/format.h"
#include "base/numbers.h"
#include "base/suggest.h"
#include "transport/json/recorded_request.h"
#include "web/api.h"
#include "web/encodings.h"
#include "web/pictures.h"

namespace troupe::web {
namespace {

nlohmann::json links_of(const Job& job) {
  const std::string self = "/api/v1/jobs/" + job.id;
  return {{"self", self},
          {"events", self + "/events"},
          {"cancel", self + "/cancel"},
          {"report", self + "/report"},
          {"timeline", self + "/timeline"},
          {"pictures", self + "/pictures"}};
}

void hand_in(Api& api, JobCall call, const std::shared_ptr<Request>& request,
             const ReplyPtr& reply) {
  submit_for(api, {std::move(call.submission), call.kind, std::move(call.words)}, *request, reply,
             [reply](const JobPtr& job) {
               Response response = json_response({{"id", job->id},
                                                  {"state", to_string(job->info.state)},
                                                  {"queue_position", job->info.queue_position},
                                                  {"warnings", job->warnings},
                                                  {"links", links_of(*job)}},
                                                 202);
               response.fields.emplace_back("Location", "/api/v1/jobs/" + job->id);
               reply->send(std::move(response));
             });
}

void submit(Api& api, const std::shared_ptr<Request>& request, const ReplyPtr& reply) {
  parse_then<JobCall>(
      api, request, reply, [request] { return parse_job(request->body); },
      [&api, request, reply](JobCall call) { hand_in(api, std::move(call), request, reply); });
}

void list(Api& api, const std::shared_ptr<Request>& request, const ReplyPtr& reply) {
  const auto& query = request->head.query;
  const std::size_t limit = asked_limit(*request, 50, 500);
  const auto before = query.find("before");
  const std::string after = before == query.end() ? "" : api.service.job(before->second)->id;
  api.service.want_jobs();
  auto jobs = api.service.board().list(
      after, limit + 1, [&](const Job& job) { return may_see(*request->caller, job); });
  nlohmann::json rows = nlohmann::json::array();
  for (std::size_t i = 0; i < std::min(limit, jobs.size()); ++i)
    rows.push_back(to_json(*jobs[i]));
  nlohmann::json next;
  if (jobs.size() > limit) next = jobs[limit - 1]->id;
  reply->send(json_response({{"jobs", std::move(rows)}, {"next", std::move(next)}}));
}

void cancel(Api& api, const std::shared_ptr<Request>& request, const ReplyPtr& reply) {
  const JobPtr job = job_of(api, *request);
  const auto over = [job] {
    return ApiError(409, HttpCode::ended,
                    "job " + job->id + " has ended: " + to_string(job->info.state));
  };
  if (job->ended()) throw over();
  api.service.cancel(job, canceller_of(*request), [job, reply, over](std::optional<Error> error) {
    if (error && job->ended()) return answer_error(reply, over());
    if (error) return answer_error(reply, to_api_error(*error));
    reply->send(json_response(to_json(*job)));
  });
}

/// Streams of jobs' events. What happens to a job is written down once, however many watch it, and
/// a few of them are told at each round of the loop. On the loop.
class JobStreams : public std::enable_shared_from_this<JobStreams> {
 public:
  explicit JobStreams(JobService& service) : service_(service) {}

  /// Begins a stream with what is known.
  void add(const JobPtr& job, const ReplyPtr& reply) {
    reply->begin(event_stream(), kHeartbeat);
    reply->write(event_of(*job), !job->ended());
    if (job->ended()) return reply->end();
    if (!job->preview.empty()) reply->write(preview_of(*job), true);
    StreamsPtr& of = streams_[job->id];
    if (!of) {
      of = std::make_shared<Streams>();
      of->listener = service_.board().listen(
          job->id, [self = shared_from_this()](const Job& seen, JobBoard::What what) {
            self->tell(seen, what);
          });
    }
    const auto number = ++last_;
    of->watchers[number] = {reply, of->told()};
    reply->on_gone([self = shared_from_this(), id = job->id, of, number] {
      of->watchers.erase(number);
      if (of->watchers.empty() && !of->has_ended) self->forget(id);
    });
  }

 private:
  static constexpr std::size_t kToldAtOnce = 16;   // watchers at a round
  static constexpr std::size_t kMostWaiting = 16;  // events; who is further behind loses the oldest

  struct Watcher {
    ReplyPtr reply;
    std::uint64_t next;  // number of the event that it is told next
  };
  /// Watchers of one job.
  struct Streams {
    std::uint64_t listener = 0;
    std::deque<Piece> recent;  // events
    std::uint64_t first = 0;   // number of the first of these
    std::map<std::uint64_t, Watcher> watchers;
    std::uint64_t told_last = 0;  // the watcher, in this pass over them
    bool is_waiting = false;      // for a round
    bool has_ended = false;       // the last event is the job's end

    std::uint64_t told() const { return first + recent.size(); }
  };
  using StreamsPtr = std::shared_ptr<Streams>;

  static Piece event_of(const Job& job) {
    return piece(
        event_text(job.ended() ? to_string(job.info.state) : "progress", json_text(to_json(job))));
  }
  static Piece preview_of(const Job& job) {
    return piece(event_text("preview", json_text({{"step", job.preview_step},
                                                  {"steps", job.info.steps},
                                                  {"b64_png", base64(job.preview)}})));
  }
  void tell(const Job& job, JobBoard::What what) {
    service_.want_jobs();  // they say whether it is paused
    const StreamsPtr of = streams_.at(job.id);
    of->recent.push_back(what == JobBoard::What::preview ? preview_of(job) : event_of(job));
    if (of->recent.size() > kMostWaiting) {
      of->recent.pop_front();
      ++of->first;
    }
    of->has_ended = what == JobBoard::What::end;
    if (of->has_ended) forget(job.id);
    if (!std::exchange(of->is_waiting, true)) wait(of);
  }
  void wait(const StreamsPtr& of) {
    waiting_.push_back(of);
    if (waiting_.size() == 1) service_.post([self = shared_from_this()] { self->tell_some(); });
  }
  /// Tells the next watchers of the job that has waited longest.
  void tell_some() {
    const StreamsPtr of = waiting_.front();
    std::vector<std::uint64_t> next;
    for (auto at = of->watchers.upper_bound(of->told_last);
         at != of->watchers.end() && next.size() < kToldAtOnce; ++at)
      next.push_back(at->first);
    for (const auto number : next)
      tell_one(*of, number);
    of->told_last = next.size() < kToldAtOnce ? 0 : next.back();
    waiting_.pop_front();
    of->is_waiting = of->told_last > 0 || std::ranges::any_of(of->watchers, [&](const auto& one) {
                       return one.second.next < of->told();
                     });
    if (of->is_waiting) {
      waiting_.push_back(of);
    } else {
      of->first = of->told();
      of->recent.clear();
    }
    if (!waiting_.empty()) service_.post([self = shared_from_this()] { self->tell_some(); });
  }
  void tell_one(Streams& of, std::uint64_t number) {
    const auto at = of.watchers.find(number);
    if (at == of.watchers.end()) return;
    const ReplyPtr reply = at->second.reply;
    const auto skipped = std::max(at->second.next, of.first) - of.first;
    at->second.next = of.told();
    if (of.has_ended) of.watchers.erase(at);
    // Who falls behind is cut off, and then no more among the watchers.
    for (auto event = of.recent.begin() + static_cast<std::ptrdiff_t>(skipped);
         event != of.recent.end(); ++event)
      reply->write(*event, !(of.has_ended && *event == of.recent.back()));
    if (of.has_ended) reply->end();
  }
  void forget(const std::string& id) {
    service_.board().unlisten(id, streams_.at(id)->listener);
    streams_.erase(id);
  }

  JobService& service_;
  std::map<std::string, StreamsPtr> streams_;  // by their jobs' ids; of those that have not ended
  std::deque<StreamsPtr> waiting_;             // for rounds
  std::uint64_t last_ = 0;
};

void picture(Api& api, const std::shared_ptr<Request>& request, const ReplyPtr& reply) {
  const JobPtr job = job_of(api, *request);
  const auto number = parse_number<std::size_t>(request->params.at(1));
  if (!number)
    throw ApiError(404, ErrorCode::not_found, "a picture is named by its number, from 0 on");
  send_picture(api, job, *number, asked_kind(job->kind, *request), reply);
}

/// Sends the picture of a link. Anybody who knows the link may fetch it.
void linked_picture(Api& api, const std::shared_ptr<Request>& request, const ReplyPtr& reply) {
  const auto link = api.links.find(request->params.at(0), JobService::now());
  const JobPtr job = link ? link->job.lock() : nullptr;
  if (!job || api.service.board().find(job->id) != job)
    throw ApiError(404, ErrorCode::not_found, "there is no such picture, or no more");
  send_picture(api, job, link->picture, link->kind, reply);
}

/// Calls `then` with the result of a job that has succeeded.
void with_result(Api& api, const std::shared_ptr<Request>& request, const ReplyPtr& reply,
                 std::function<void(const JobResult&)> then) {
  const JobPtr job = job_of(api, *request);
  if (job->info.state != JobState::succeeded) {
    throw ApiError(409, job->ended() ? HttpCode::ended : HttpCode::not_ended,
                   "job " + job->id + " has no result: it is " + to_string(job->info.state));
  }
  api.service.with_result(job, [reply, then = std::move(then)](const auto& result) {
    if (!result) return answer_error(reply, to_api_error(result.error()));
    try {
      then(*result.value());
    } catch (const ApiError& error) {
      answer_error(reply, error);
    }
  });
}

void report(Api& api, const std::shared_ptr<Request>& request, const ReplyPtr& reply) {
  with_result(api, request, reply, [reply](const JobResult& result) {
    reply->send({.status = 200, .body = result.report});
  });
}

void latents(Api& api, const std::shared_ptr<Request>& request, const ReplyPtr& reply) {
  with_result(api, request, reply, [reply](const JobResult& result) {
    if (!result.latents)
      throw ApiError(404, HttpCode::no_latents,
                     "the request did not ask for latents: \"want_latents\": true");
    reply->send(
        {.status = 200, .type = "application/octet-stream", .body = npy_file(*result.latents)});
  });
}

void timeline(Api& api, const std::shared_ptr<Request>& request, const ReplyPtr& reply) {
  const JobPtr job = job_of(api, *request);
  api.service.ask_of<std::string>(
      *job, [number = job->key.number](Inspector& inspector) { return inspector.timeline(number); },
      [reply](Result<std::string> text) {
        if (!text) return answer_error(reply, to_api_error(text.error()));
        reply->send({.status = 200, .body = std::move(text.value())});
      },
      asker_of(*request));
}

/// Answers with what the controller and the actors have written lately, under their names.
void logs(Api& api, const std::shared_ptr<Request>& request, const ReplyPtr& reply) {
  constexpr std::uint32_t kLines = 200;
  constexpr std::size_t kMostBytes = 4 << 20;  // of a cluster of many actors not all
  const JobPtr job = job_of(api, *request);
  std::vector<std::int64_t> actors = {-1};
  if (const auto& info = api.service.clusters()[job->key.cluster].info)
    for (const ActorInfo& actor : info->actors)
      actors.push_back(actor.id);
  api.service.ask_of<std::string>(
      *job,
      [actors](Inspector& inspector) -> Result<std::string> {
        std::string text;
        for (const auto actor : actors) {
          if (text.size() > kMostBytes) {
            text += fmt::format("\nactor {} and those after it are left out here\n", actor);
            break;
          }
          const auto log = inspector.logs(actor, 0, kLines);
          if (!log && (actor < 0 || log.error().code == ErrorCode::lost)) return log.error();
          text += actor < 0 ? "controller\n" : fmt::format("\nactor {}\n", actor);
          for (const auto& line : log ? log.value().lines : std::vector{log.error().what})
            text += "  " + line + "\n";
        }
        return text;
      },
      [reply](Result<std::string> text) {
        if (!text) return answer_error(reply, to_api_error(text.error()));
        reply->send(
            {.status = 200, .type = "text/plain; charset=utf-8", .body = std::move(text.value())});
      },
      asker_of(*request));
}

void parameters(Api& api, const std::shared_ptr<Request>& request, const ReplyPtr& reply) {
  std::set<std::string> brought;
  if (const auto given = request->head.query.find("bring"); given != request->head.query.end()) {
    std::istringstream names(given->second);
    const std::vector<std::string> inputs(wire::kRecordedInputs.begin(),
                                          wire::kRecordedInputs.end());
    for (std::string name; std::getline(names, name, ',');) {
      if (std::ranges::count(inputs, name) == 0) throw bad_field("bring", not_one_of(name, inputs));
      brought.insert(name);
    }
  }
  parse_then<nlohmann::json>(
      api, request, reply, [request, brought] { return parameters_of(request->body, brought); },
      [reply](const nlohmann::json& body) { reply->send(json_response(body)); });
}

void send_file(const ReplyPtr& reply, PictureFormat format, std::string bytes) {
  reply->send({.status = 200,
               .type = media_type_of(format),
               .body = std::move(bytes),
               .fields = {{"Cache-Control", "private, max-age=3600"}}});
}

}  // namespace

std::size_t asked_limit(const Request& request, std::size_t usual, std::size_t most) {
  const auto given = request.head.query.find("limit");
  if (given == request.head.query.end()) return usual;
  const auto number = parse_number<std::size_t>(given->second);
  if (!number || *number < 1 || *number > most)
    throw bad_field("limit", fmt::format("is not a whole number from 1 to {}", most));
  return *number;
}

PictureKind asked_kind(PictureKind kind, const Request& request) {
  const auto& query = request.head.query;
  if (const auto format = query.find("format"); format != query.end())
    kind.format = picture_format("format", format->second);
  if (const auto quality = query.find("quality"); quality != query.end()) {
    const auto number = parse_number<int>(quality->second);
    if (!number || *number < 1 || *number > 100)
      throw bad_field("quality", "is not a whole number from 1 to 100");
    if (kind.format == PictureFormat::png)
      throw bad_field("quality", "does nothing to png, which loses nothing: leave it out");
    kind.quality = *number;
  }
  return kind;
}

void send_picture(Api& api, const JobPtr& job, std::size_t number, const PictureKind& kind,
                  const ReplyPtr& reply) {
  if (!job->ended())
    throw ApiError(409, HttpCode::not_ended,
                   "job " + job->id + " has no pictures yet: it is " + to_string(job->info.state));
  const auto clip = clip_format(kind.format);
  const ClipFiles::Key key{job->id, number, clip.value_or(models::ClipFormat::apng), kind.quality};
  if (const auto file = clip ? api.clips.find(key) : nullptr)
    return send_file(reply, kind.format, *file);
  api.service.with_result(job, [&api, job, reply, kind, number, clip, key](const auto& result) {
    if (!result) return answer_error(reply, to_api_error(result.error()));
    const auto kept = result.value();
    if (number >= kept->pictures.size()) {
      return answer_error(reply, {404, ErrorCode::not_found,
                                  fmt::format("job {} has {} pictures, numbered from 0", job->id,
                                              kept->pictures.size())});
    }
    if (clip && models::clip_of(kept->pictures[number].png).frames == 1) {
      return answer_error(reply, bad_field("format", "is " + to_string(kind.format) +
                                                         ", which is for clips: this is a picture, "
                                                         "which png, jpeg and webp are for"));
    }
    if (clip) {
      const auto asked = api.clips.make(
          key, job->caller, kept, [reply, kind](const Result<ClipFiles::File>& file) {
            if (file) return send_file(reply, kind.format, *file.value());
            const bool full = file.error().code == ErrorCode::overloaded;
            answer_error(reply, full ? ApiError(503, ErrorCode::overloaded, file.error().what)
                                     : to_api_error(file.error()));
          });
      return reply->on_gone([&api, asked] { api.clips.leave(asked); });
    }
    api.service.work<std::string>(
        [kept, number, kind] { return picture_file(kept->pictures[number].png, kind); },
        [reply, kind](Result<std::string> file) {
          if (!file) return answer_error(reply, to_api_error(file.error()));
          send_file(reply, kind.format, std::move(file.value()));
        },
        job->caller);
  });
}

void add_jobs_routes(Api& api) {
  const auto add = [&](const char* method, const char* path, auto handler, std::size_t body = 0,
                       std::vector<std::string> query = {}, Body kind = Body::json) {
    api.router.add(
        {method, path, Access::user, body,
         [&api, handler](const auto& request, const auto& reply) { handler(api, request, reply); },
         std::move(query), kind});
  };
  add("POST", "/api/v1/jobs", submit, kMostPictureBody);
  add("GET", "/api/v1/jobs", list, 0, {"limit", "before"});
  add("GET", "/api/v1/jobs/{}", [](Api& api, const auto& request, const auto& reply) {
    api.service.want_jobs();  // they say whether it is paused
    reply->send(json_response(to_json(*job_of(api, *request))));
  });
  add("POST", "/api/v1/jobs/{}/cancel", cancel, 1024);
  const auto streams = std::make_shared<JobStreams>(api.service);
  add("GET", "/api/v1/jobs/{}/events", [streams](Api& api, const auto& request, const auto& reply) {
    const JobPtr job = job_of(api, *request);
    api.service.follow(job);
    streams->add(job, reply);
  });
  add("GET", "/api/v1/jobs/{}/pictures", [](Api& api, const auto& request, const auto& reply) {
    reply->send(json_response({{"pictures", to_json(*job_of(api, *request)).at("pictures")}}));
  });
  add("GET", "/api/v1/jobs/{}/pictures/{}", picture, 0, {"format", "quality"});
  add("GET", "/api/v1/jobs/{}/report", report);
  add("GET", "/api/v1/jobs/{}/latents", latents);
  add("GET", "/api/v1/jobs/{}/timeline", timeline);
  add("POST", "/api/v1/parameters", parameters, kMostPictureBody, {"bring"}, Body::file);
  const auto add_other = [&](const char* path, Access access, auto handler) {
    api.router.add(
        {"GET", path, access, 0, [&api, handler](const auto& request, const auto& reply) {
           handler(api, request, reply);
         }});
  };
  add_other("/api/v1/jobs/{}/logs", Access::operate, logs);
  add_other("/v1/pictures/{}", Access::open, linked_picture);
}

}  // namespace troupe::web
