#include "web/job_service.h"

#include <boost/asio/post.hpp>
#include <cmath>
#include <limits>
#include <set>

#include "base/format.h"

namespace troupe::web {
namespace {

/// How much a cluster has to do, by actor.
double load_of(const ClusterInfo& info) {
  double able = 0;
  for (const ActorInfo& actor : info.actors)
    able += actor.state == "ready" || actor.state == "busy";
  return able == 0 ? std::numeric_limits<double>::max()
                   : (info.jobs_queued + info.jobs_running) / able;
}

}  // namespace

JobService::JobService(boost::asio::io_context& io, const std::vector<ClusterLink::Target>& targets)
    : io_(io), clusters_(targets.size()) {
  for (std::size_t i = 0; i < targets.size(); ++i) {
    clusters_[i].why = "not connected yet to " + targets[i].endpoint;
    clusters_[i].link = std::make_unique<ClusterLink>(
        io, targets[i],
        ClusterLink::Handlers{
            .on_connected = [this, i] { clusters_[i].is_new = true; },
            .on_status = [this, i](Result<ClusterInfo> info) { status(i, std::move(info)); },
            .on_jobs = [this, i](std::vector<JobInfo> jobs) { board_.listed(i, jobs, now()); }});
  }
}

JobService::~JobService() {
  workers_.end();
}

double JobService::now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void JobService::want_jobs() {
  for (const Cluster& cluster : clusters_)
    cluster.link->want_jobs();
}

void JobService::status(std::size_t index, Result<ClusterInfo> info) {
  Cluster& cluster = clusters_[index];
  if (info) {
    cluster.info = std::move(info.value());
    cluster.why.clear();
    cluster.gone_since.reset();
    if (std::exchange(cluster.is_new, false)) status_of_new(index);
    for (const auto& [id, job] : board_.all())
      if (job->cluster == index && job->cancel_owed) cancel(job);
  } else {
    cluster.info.reset();
    cluster.why = info.error().what;
    status_of_gone(index);
  }
  for (const auto& action : on_status_)
    action();
}

/// Jobs whose end is not known here may go on, where the cluster keeps a journal.
void JobService::status_of_new(std::size_t cluster) {
  constexpr double kSame = 5;  // seconds that two readings of one start may differ by
  const double started = now() - clusters_[cluster].info->uptime_seconds;
  if (std::abs(std::exchange(clusters_[cluster].started, started) - started) > kSame)
    board_.forget_ended(cluster);
  const auto client = clusters_[cluster].link->client();
  if (!client) return;
  for (const auto& [id, job] : board_.all())
    if (job->cluster == cluster && job->followed && !job->ended()) watch(job, client);
}

/// Nobody waits for what a lost connection was asked for; jobs go on for as long as the cluster may
/// come back.
void JobService::status_of_gone(std::size_t index) {
  constexpr std::chrono::minutes kComesBack{10};
  Cluster& cluster = clusters_[index];
  const auto time = std::chrono::steady_clock::now();
  if (!cluster.gone_since) cluster.gone_since = time;
  if (time - *cluster.gone_since > kComesBack) {
    board_.lose(index,
                {"lost", fmt::format("the cluster has not come back within {} minutes: {}",
                                     kComesBack.count(), cluster.why)},
                now());
  }
  for (auto at = wanted_results_.begin(); at != wanted_results_.end();) {
    const JobPtr job = board_.find(at->first);
    if (job && job->cluster != index) {
      ++at;
      continue;
    }
    const auto waiting = std::move(at->second);
    at = wanted_results_.erase(at);
    // Each of them may ask for another result.
    for (const auto& then : waiting)
      boost::asio::post(io_, [then, why = cluster.why] { then(Error{"unreachable", why}); });
  }
}

std::vector<ModelName> JobService::models() const {
  std::vector<ModelName> models;
  for (const Cluster& cluster : clusters_) {
    if (!cluster.info || cluster.info->model.empty()) continue;
    const std::string& path = cluster.info->model;
    const bool there = std::ranges::any_of(models, [&](const auto& m) { return m.path == path; });
    if (!there) models.push_back({model_id(path), path});
  }
  return models;
}

std::optional<std::size_t> JobService::choose(const std::string& model, std::string& path) const {
  const bool is_folder = model.find('/') != std::string::npos;
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < clusters_.size(); ++i) {
    const auto& info = clusters_[i].info;
    if (!info || (model.empty() && info->model.empty())) continue;
    const bool own = model.empty() || info->model == model || model_id(info->model) == model;
    if (!own && !is_folder) continue;
    if (best && load_of(*clusters_[*best].info) <= load_of(*info)) continue;
    best = i;
    path = own ? info->model : model;
  }
  return best;
}

void JobService::submit(Submission submission, std::shared_ptr<const Caller> caller,
                        const PictureKind& kind, OnSubmitted then) {
  const auto fail = [&](ApiError error) { then(std::move(error), nullptr); };
  const std::string asked = submission.model;
  const auto index = choose(asked, submission.model);
  if (!index) {
    for (const Cluster& cluster : clusters_)
      if (!cluster.info) return fail({503, "unreachable", "no cluster can paint: " + cluster.why});
    if (asked.empty())
      return fail(bad_field("model", "is missing, and no cluster has one of its own"));
    return fail({404, "model_not_found",
                 json_text(asked) + " is no model that is served here; GET /v1/models lists them",
                 "model"});
  }
  if (!caller->share.empty()) submission.share = caller->share;
  auto& submitting = submitting_[caller->name];
  if (caller->most_jobs > 0 && board_.open_jobs(caller->name) + submitting >= caller->most_jobs) {
    return fail({429, "overloaded",
                 fmt::format("the key {} has {} jobs that have not ended, which is its limit",
                             caller->name, caller->most_jobs)});
  }
  if (const double wait = rates_.ask(*caller, now()); wait > 0) {
    return fail(
        {429, "overloaded",
         fmt::format("the key {} may hand in {} jobs a minute: wait {} s", caller->name,
                     static_cast<int>(caller->per_minute), static_cast<int>(std::ceil(wait)))});
  }
  const auto client = clusters_[*index].link->client();
  if (!client) return fail({503, "unreachable", clusters_[*index].why});
  ++submitting;
  const bool begun = workers_.post([this, client, index = *index, caller, kind, then,
                                    submission = std::move(submission)] {
    const double began = now();
    const auto number = client->submit(submission, [this, index](const Progress& progress) {
      boost::asio::post(io_, [this, index, progress] {
        board_.progress(board_.submitted(index, progress.job, now()), progress, now());
      });
    });
    boost::asio::post(io_,
                      [this, index, number, began, kind, caller, then, model = submission.model,
                       share = submission.share, priority = submission.priority,
                       prompt = submission.request.prompts[0], steps = submission.request.steps] {
                        --submitting_[caller->name];
                        if (!number) return then(to_api_error(number.error()), nullptr);
                        const JobPtr job = board_.submitted(index, number.value(), began);
                        job->model = model_id(model);
                        job->share = share;
                        job->priority = priority;
                        job->prompt = prompt;
                        job->steps = steps;
                        job->caller = caller->name;
                        job->kind = kind;
                        then(std::nullopt, job);
                      });
    if (!number) return;
    client->watch(number.value(), nullptr, [this, index, job = number.value()](const auto& result) {
      boost::asio::post(io_, [this, index, job, result] { ended(index, job, result); });
    });
  });
  if (begun) return;
  --submitting;
  then(ApiError(429, "overloaded", "too many jobs are being handed in: try again"), nullptr);
}

void JobService::watch(const JobPtr& job, const std::shared_ptr<Client>& client) {
  const auto index = job->cluster;
  client->watch(
      job->number,
      [this, index](const Progress& progress) {
        boost::asio::post(io_, [this, index, progress] {
          board_.progress(board_.add(index, progress.job, now()), progress, now());
        });
      },
      [this, index, number = job->number](const Result<JobResult>& result) {
        boost::asio::post(io_, [this, index, number, result] { ended(index, number, result); });
      });
}

void JobService::follow(const JobPtr& job) {
  if (job->followed || job->ended()) return;
  const auto client = clusters_[job->cluster].link->client();
  if (!client) return;
  job->followed = true;
  watch(job, client);
}

void JobService::ended(std::size_t cluster, std::uint64_t number, const Result<JobResult>& result) {
  const JobPtr job = board_.add(cluster, number, now());
  // It may go on, and is watched again once there is a connection.
  const bool lost = !result && result.error().code == "lost";
  if (lost && !job->ended()) return;
  const auto client = clusters_[cluster].link->client();
  if (!result && result.error().code == "not_fetched" && !job->ended() && client &&
      !std::exchange(job->watched_again, true))
    return watch(job, client);
  board_.end(job, result, now());
  if (result && !job->result) board_.keep(job, std::make_shared<const JobResult>(result.value()));
  const auto found = wanted_results_.find(job->id);
  if (found == wanted_results_.end()) return;
  const auto waiting = std::move(found->second);
  wanted_results_.erase(found);
  for (const auto& then : waiting) {
    if (result) {
      then(job->result);
    } else {
      then(result.error());
    }
  }
}

void JobService::with_result(const JobPtr& job, OnResult then) {
  if (job->result) return then(job->result);
  if (job->error) return then(*job->error);
  if (job->ended() && job->state != "succeeded") {
    return then(Error{job->state, "job " + job->id + ": " + job->cause});
  }
  const auto client = clusters_[job->cluster].link->client();
  if (!client) return then(Error{"unreachable", clusters_[job->cluster].why});
  auto& waiting = wanted_results_[job->id];
  waiting.push_back(std::move(then));
  if (waiting.size() == 1 && !(job->followed && !job->ended())) watch(job, client);
}

void JobService::cancel(const JobPtr& job, std::function<void(std::optional<Error>)> then) {
  const auto tell = [job, then](std::optional<Error> error) {
    if (then) return then(std::move(error));
    static const std::set<std::string> kLater = {"unreachable", "overloaded", "lost", "timeout"};
    job->cancel_owed = error && !job->ended() && kLater.contains(error->code);
  };
  if (!then) job->cancel_owed = false;  // on its way
  const auto client = clusters_[job->cluster].link->client();
  if (!client) return tell(Error{"unreachable", clusters_[job->cluster].why});
  const bool begun = workers_.post([this, client, number = job->number, tell] {
    const auto done = client->cancel(number);
    boost::asio::post(
        io_, [tell, error = done ? std::nullopt : std::optional(done.error())] { tell(error); });
  });
  if (!begun) tell(Error{"overloaded", "too much is being done: try again"});
}

}  // namespace troupe::web
