#include "web/job_service.h"

#include <boost/asio/post.hpp>
#include <cmath>
#include <limits>
#include <random>

#include "base/allowed_folders.h"
#include "base/format.h"
#include "base/numbers.h"
#include "base/text.h"
#include "models/spec/hub.h"
#include "models/spec/lora_spec.h"

namespace troupe::web {
namespace {

constexpr const char* kStartedAnew = "its cluster was started anew, without a journal of its jobs";

/// Returns how much a cluster that is there has to do, per actor.
double load_of(const JobService::Cluster& cluster) {
  const ClusterInfo& info = *cluster.info;
  double able = 0;
  for (const ActorInfo& actor : info.actors)
    able += can_compute(actor.state);
  return able == 0 ? std::numeric_limits<double>::max()
                   : (info.jobs_queued + info.jobs_running + cluster.handed_in) / able;
}

std::uint64_t random_key() {
  std::random_device random;
  return std::uint64_t{random()} << 32 | random() | 1;
}

/// Returns whether it takes long to check and copy what the request brings along.
bool is_heavy(const ImageRequest& request) {
  return !request.init_image.empty() || !request.images.empty() ||
         !request.control_images.empty() || request.init_latents || !request.prompt_embeds.empty();
}

/// Throws what the cluster would refuse the job for that comes after another one.
void check_next(Client& client, const Submission& before, const JobService::NextJob& next) {
  Submission submission = before;
  submission.request = next.request;
  submission.request.loras = before.request.loras;
  submission.request.embeddings = before.request.embeddings;
  submission.request.controlnets = before.request.controlnets;
  const auto error = client.check(submission);
  if (!error) return;
  const ApiError why = to_api_error(*error);
  throw ApiError(why.status, error->code, next.field + ": the job that it asks for: " + why.what(),
                 next.field);
}

/// Throws for a clip's kind of file where the model makes pictures, by asking the cluster for a
/// clip of it.
void check_makes_clips(Client& client, Submission submission, const PictureKind& kind) {
  submission.request.num_frames = 5;
  const auto error = client.check(submission);
  if (error && error->field == wire::kRequestFields.num_frames.name)
    throw bad_field("output_format", "is " + to_string(kind.format) +
                                         ", which is for clips: this model makes pictures, which "
                                         "png, jpeg and webp are for");
}

}  // namespace

void keep_paths(Submission& submission, const std::string& own, std::vector<std::string> folders) {
  if (!own.empty()) folders.push_back(own);
  const AllowedFolders allowed(folders);
  const auto keep = [](std::string& path, const std::optional<std::string>& found,
                       const char* field) {
    if (!found) throw bad_field(field, without_rooms(AllowedFolders::refusal(path)));
    path = *found;
  };
  if (submission.model != own) {
    keep(submission.model,
         allowed.resolve(spec::cached_model_folder_or_text(submission.model).string()), "model");
    if (const auto why = allowed.refusal_of_links(submission.model))
      throw bad_field("model", without_rooms(*why));
  }
  for (Lora& lora : submission.request.loras)
    keep(lora.path, allowed.resolve_file(lora.path, spec::kAdapterConfig), "loras");
  for (Embedding& embedding : submission.request.embeddings)
    keep(embedding.path, allowed.resolve_file(embedding.path), "embeddings");
  for (std::string& net : submission.request.controlnets) {
    keep(net,
         allowed.resolve(spec::cached_model_folder_or_text(net, spec::HubContent::part).string()),
         "controlnets");
    if (const auto why = allowed.refusal_of_links(net))
      throw bad_field("controlnets", without_rooms(*why));
  }
}

JobService::JobService(boost::asio::io_context& io, const std::vector<ClusterLink::Target>& targets,
                       OnCluster on_cluster, std::vector<std::string> allowed_models)
    : io_(io),
      on_cluster_(std::move(on_cluster)),
      allowed_models_(std::move(allowed_models)),
      clusters_(targets.size()) {
  for (std::size_t i = 0; i < targets.size(); ++i) {
    clusters_[i].why = "not connected yet to " + targets[i].endpoint;
    clusters_[i].link = std::make_unique<ClusterLink>(
        io, targets[i],
        ClusterLink::Handlers{
            .on_connected = [this, i](const std::string& series) { connected(i, series); },
            .on_status = [this, i](Result<ClusterInfo> info) { status(i, std::move(info)); },
            .on_jobs = [this, i](const auto& listing) { listed(i, listing); }});
  }
}

JobService::~JobService() {
  parsers_.end();
  workers_.end();
}

double JobService::now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

void JobService::want_jobs() {
  for (const Cluster& cluster : clusters_)
    cluster.link->want_jobs();
}

JobPtr JobService::job(const std::string& id) const {
  if (const JobPtr found = board_.find(id)) return found;
  const std::size_t dash = std::min(id.find('-'), id.size());
  const auto number = parse_number<std::uint64_t>(id.substr(0, dash));
  const std::string series = id.substr(dash);
  const Cluster* unknown = nullptr;
  for (const Cluster& cluster : clusters_) {
    const bool named = series == "-" + cluster.series || (series.empty() && clusters_.size() == 1);
    if (series.empty() && named && number)
      if (const JobPtr found = board_.find(JobKey{0, cluster.series, *number}.id())) return found;
    if (named && number && cluster.info && !cluster.answered.contains(*number)) {
      if (cluster.link->seek(*number))
        throw JobSought(static_cast<std::size_t>(&cluster - clusters_.data()));
    } else if (named && cluster.is_listed && (cluster.info || !number)) {
      throw ApiError(404, ErrorCode::not_found, "there is no job " + id);
    }
    if (named || cluster.series.empty()) unknown = &cluster;
  }
  if (unknown) {
    throw ApiError(503, ErrorCode::unreachable,
                   unknown->why.empty() ? "the cluster's jobs are not known here yet: try again"
                                        : unknown->why);
  }
  if (!number || series.size() != series_name("").size() + 1)
    throw ApiError(404, ErrorCode::not_found, "there is no job " + id);
  throw ApiError(410, ErrorCode::gone,
                 "job " + id +
                     " is of a cluster that is served here no more, or was started anew without a "
                     "journal of its jobs");
}

void JobService::when_told(const JobSought& sought, std::function<void()> then) {
  clusters_[sought.cluster].when_told.push_back(std::move(then));
}

void JobService::told(std::size_t cluster) {
  for (const auto& then : std::exchange(clusters_[cluster].when_told, {}))
    then();
}

void JobService::listed(std::size_t index, const ClusterLink::Listing& listing) {
  Cluster& cluster = clusters_[index];
  board_.listed(index, cluster.series, listing.jobs, now());
  if (listing.all_seen) board_.listed_all(index, cluster.series);
  cluster.is_listed = cluster.is_listed || listing.all_seen;
  if (listing.sought.empty()) return;
  cluster.answered.insert(listing.sought.begin(), listing.sought.end());
  told(index);
  cluster.answered.clear();
}

Result<JobService::Connection> JobService::connection_of(const JobKey& job) const {
  const Cluster& cluster = clusters_[job.cluster];
  const auto connection = cluster.link->connection();
  if (!connection) return Error{ErrorCode::unreachable, cluster.why};
  if (connection->series != job.series)
    return Error{ErrorCode::gone, job.id() + ": " + kStartedAnew};
  return connection;
}

void JobService::connected(std::size_t index, const std::string& series) {
  Cluster& cluster = clusters_[index];
  cluster.is_new = true;
  if (cluster.series == series) return;
  cluster.series = series;
  cluster.is_listed = false;
  board_.begin_series(index, series, {ErrorCode::lost, kStartedAnew}, now());
}

void JobService::status(std::size_t index, Result<ClusterInfo> info) {
  Cluster& cluster = clusters_[index];
  const std::string& endpoint = cluster.link->target().endpoint;
  if (info) {
    if (cluster.gone_since && cluster.was_there) on_cluster_(endpoint, "");
    if (cluster.gone_since) board_.set_unreachable(index, "", now());
    cluster.was_there = true;
    cluster.info = std::move(info.value());
    cluster.handed_in = 0;
    cluster.why.clear();
    cluster.gone_since.reset();
    if (std::exchange(cluster.is_new, false)) status_of_new(index);
    for (const auto& [id, job] : board_.all())
      if (job->key.cluster == index && job->cancel_owed) cancel(job, job->cancelled_by);
  } else {
    if (!cluster.gone_since && cluster.was_there) on_cluster_(endpoint, info.error().what);
    if (!cluster.gone_since) board_.set_unreachable(index, info.error().what, now());
    cluster.info.reset();
    cluster.why = info.error().what;
    status_of_gone(index);
    told(index);
  }
  for (const auto& action : on_status_)
    action();
}

/// Jobs whose end is not known here may go on, where the cluster keeps a journal.
void JobService::status_of_new(std::size_t cluster) {
  const auto connection = clusters_[cluster].link->connection();
  if (!connection) return;
  for (const auto& [id, job] : board_.all())
    if (job->key.cluster == cluster && job->key.series == connection->series && job->followed &&
        !job->ended())
      watch(job, connection);
}

/// Fails requests for results over a lost connection; jobs go on for as long as the cluster may
/// come back.
void JobService::status_of_gone(std::size_t index) {
  constexpr std::chrono::minutes kComesBack{10};
  Cluster& cluster = clusters_[index];
  const auto time = std::chrono::steady_clock::now();
  if (!cluster.gone_since) cluster.gone_since = time;
  if (time - *cluster.gone_since > kComesBack) {
    board_.lose(index,
                {ErrorCode::lost, fmt::format("the cluster has not come back within {} minutes: {}",
                                              kComesBack.count(), cluster.why)},
                now());
  }
  for (auto at = wanted_results_.begin(); at != wanted_results_.end();) {
    const JobPtr job = board_.find(at->first);
    if (job && job->key.cluster != index) {
      ++at;
      continue;
    }
    const auto waiting = std::move(at->second);
    at = wanted_results_.erase(at);
    // Each of them may ask for another result.
    for (const auto& then : waiting)
      boost::asio::post(io_, [then, why = cluster.why] {
        then(Error{ErrorCode::unreachable, why});
      });
  }
}

std::vector<ModelName> JobService::models() const {
  std::vector<std::string> folders;
  for (const Cluster& cluster : clusters_)
    if (cluster.info && !cluster.info->model.empty()) folders.push_back(cluster.info->model);
  return name_models(folders);
}

std::optional<std::size_t> JobService::choose(const std::string& asked, std::string& path) const {
  const auto models = this->models();
  // Who names no model gets the first cluster's, also while that cluster is away.
  if (asked.empty() && models.size() > 1 && !clusters_[0].info) return std::nullopt;
  path = asked;
  if (asked.empty() && !models.empty()) path = models[0].path;
  if (const auto name = spec::hub_name(asked)) path = spec::hub_text(*name);  // of a short one
  const std::string whole = path;
  for (const ModelName& model : models)
    if (model.id == asked || model.id == whole) path = model.path;
  const bool has_own = std::ranges::any_of(models, [&](const auto& m) { return m.path == path; });
  // Another folder than the clusters' own can be read by any of them.
  if (!has_own && path.find('/') == std::string::npos) return std::nullopt;
  std::optional<std::size_t> best;
  for (std::size_t i = 0; i < clusters_.size(); ++i) {
    const auto& info = clusters_[i].info;
    if (!info || (has_own && info->model != path)) continue;
    if (!best || load_of(clusters_[i]) < load_of(clusters_[*best])) best = i;
  }
  return best;
}

void JobService::submit(Submission submission, std::shared_ptr<const KeyHolder> caller,
                        const PictureKind& kind, OnSubmitted then, std::optional<NextJob> next) {
  const auto fail = [&](ApiError error) { then(std::move(error), nullptr); };
  const std::string asked = submission.model;
  const auto index = choose(asked, submission.model);
  if (!index) {
    for (const Cluster& cluster : clusters_)
      if (!cluster.info)
        return fail({503, ErrorCode::unreachable, "no cluster can paint: " + cluster.why});
    if (asked.empty())
      return fail(bad_field("model", "is missing, and no cluster has one of its own"));
    return fail({404, HttpCode::model_not_found,
                 json_text(asked) +
                     " is no model that is served here; GET /v1/models lists them, and others are "
                     "named by their whole path",
                 "model"});
  }
  if (!caller->share.empty()) submission.share = caller->share;
  submission.on_behalf_of = caller->name;
  if (caller->most_jobs > 0)
    for (const Cluster& cluster : clusters_)
      if (cluster.info && !cluster.is_listed)
        return fail(
            {503, ErrorCode::unreachable,
             "which jobs the key " + caller->name + " has is not known here yet: try again"});
  auto& submitting = submitting_[caller->name];
  if (caller->most_jobs > 0 && board_.open_jobs(caller->name) + submitting >= caller->most_jobs) {
    return fail({429, ErrorCode::overloaded,
                 fmt::format("the key {} has {} jobs that have not ended, which is its limit",
                             caller->name, caller->most_jobs)});
  }
  if (const double wait = rates_.ask(*caller, now()); wait > 0) {
    const int seconds = static_cast<int>(std::ceil(wait));
    ApiError error(429, ErrorCode::overloaded,
                   fmt::format("the key {} may hand in {} jobs a minute: wait {} s", caller->name,
                               static_cast<int>(caller->per_minute), seconds));
    error.retry_after_s = seconds;
    return fail(error);
  }
  const auto connection = clusters_[*index].link->connection();
  if (!connection) return fail({503, ErrorCode::unreachable, clusters_[*index].why});
  submission.key = random_key();
  ++clusters_[*index].handed_in;
  const auto handed = std::make_shared<Handed>(Handed{JobKey{*index, connection->series}, now(),
                                                      std::move(submission), caller, kind,
                                                      std::move(then), std::move(next)});
  ++submitting;
  const std::string& own = clusters_[*index].info->model;
  const bool is_here = clusters_[*index].link->target().endpoint.starts_with("ipc://");
  const auto& request = handed->submission.request;
  const bool has_paths = handed->submission.model != own || !request.loras.empty() ||
                         !request.embeddings.empty() || !request.controlnets.empty();
  std::function<void()> look;
  if (is_here && has_paths)
    look = [this, handed, own] { keep_paths(handed->submission, own, allowed_models_); };
  if (handed->next) {
    look = [look, connection, handed] {
      if (look) look();
      check_next(*connection->client, handed->submission, *handed->next);
    };
  }
  if (clip_format(kind.format) && request.num_frames == 0) {
    look = [look, connection, handed] {
      if (look) look();
      check_makes_clips(*connection->client, handed->submission, handed->kind);
    };
  }
  if (!look && !is_heavy(handed->submission.request)) return hand_in(connection, handed);
  hand_in_after(std::move(look), connection, handed);
}

void JobService::hand_in_after(std::function<void()> work, const Connection& connection,
                               const HandedPtr& handed) {
  const auto task = [this, work = std::move(work), connection, handed] {
    const auto fail = [&](Error why) {
      boost::asio::post(io_, [this, handed, why] { handed_in(*handed, why); });
    };
    try {
      if (work) work();
      hand_in(connection, handed);
    } catch (const ApiError& error) {
      fail({error.kind.value_or(ErrorCode::bad_request), error.what(), error.param});
    } catch (const std::exception& error) {
      fail({ErrorCode::failed, error.what()});
    }
  };
  if (!workers_.post(task, handed->caller->name))
    handed_in(*handed,
              Error{ErrorCode::overloaded, "too many jobs are being handed in: try again"});
}

void JobService::hand_in(const Connection& connection, const HandedPtr& handed) {
  // What the client's own thread holds must not be the last that keeps the client.
  connection->client->submit(
      handed->submission, progress_of(handed->key),
      [this, handed, weak = std::weak_ptr(connection)](const Result<std::uint64_t>& number) {
        boost::asio::post(io_, [this, handed, number, weak] {
          const auto connection = weak.lock();
          const bool lost = !number && number.error().code == ErrorCode::lost;
          if (lost && connection) return hand_in_again(connection, handed);
          handed_in(*handed, number);
        });
      });
}

/// Hands a job in again when nobody knows whether it was accepted; under the same key it is not
/// accepted twice.
void JobService::hand_in_again(const Connection& connection, const HandedPtr& handed) {
  work<std::uint64_t>(
      [this, connection, handed] {
        return connection->client->submit(handed->submission, progress_of(handed->key));
      },
      [this, handed](const Result<std::uint64_t>& number) {
        // The client may have found its controller again by itself: then no loss is seen, but all
        // that was watched over the lost link is watched no more.
        status_of_new(handed->key.cluster);
        handed_in(*handed, number);
      });
}

void JobService::handed_in(const Handed& handed, const Result<std::uint64_t>& number) {
  --submitting_[handed.caller->name];
  if (!number) return handed.then(to_api_error(number.error()), nullptr);
  const Submission& submission = handed.submission;
  JobKey key = handed.key;
  key.number = number.value();
  const JobPtr job = board_.submitted(key, handed.began);
  job->info.model = model_id(submission.model);
  job->info.share = submission.share;
  job->info.priority = submission.priority;
  job->info.prompt = submission.request.prompts[0];
  const auto& seeds = submission.request.picture_seeds;
  job->info.seed = seeds.empty() ? submission.request.seed : seeds[0];
  job->info.own_seeds = !seeds.empty();
  job->info.parallelism = submission.parallelism;
  if (job->info.steps == 0)
    job->info.steps = submission.request.steps;  // else the controller has told it
  job->caller = handed.caller->name;
  job->kind = handed.kind;
  // Where there is none, it is watched when there is one again.
  if (const auto connection = connection_of(key)) watch(job, connection.value());
  handed.then(std::nullopt, job);
}

Client::OnProgress JobService::progress_of(const JobKey& key) {
  return [this, key](const Progress& progress) {
    boost::asio::post(io_, [this, key, progress] {
      const JobKey own{key.cluster, key.series, progress.job};
      board_.progress(board_.submitted(own, now()), progress, now());
    });
  };
}

void JobService::watch(const JobPtr& job, const Connection& connection) {
  connection->client->watch(
      job->key.number,
      [this, key = job->key](const Progress& progress) {
        boost::asio::post(io_, [this, key, progress] {
          board_.progress(board_.add(key, now()), progress, now());
        });
      },
      [this, key = job->key](const Result<JobResult>& result) {
        const Outcome outcome =
            result ? Outcome(std::make_shared<const JobResult>(result.value())) : result.error();
        boost::asio::post(io_, [this, key, outcome] { ended(key, outcome); });
      });
}

void JobService::follow(const JobPtr& job) {
  if (job->followed || job->ended()) return;
  const auto connection = connection_of(job->key);
  if (!connection) return;
  job->followed = true;
  watch(job, connection.value());
}

void JobService::ended(const JobKey& key, const Outcome& outcome) {
  const JobPtr job = board_.add(key, now());
  // It may go on, and is watched again once there is a connection.
  const bool lost = !outcome && outcome.error().code == ErrorCode::lost;
  if (lost && !job->ended()) return;
  const auto connection = connection_of(key);
  if (!outcome && outcome.error().code == ErrorCode::not_fetched && !job->ended() && connection &&
      !std::exchange(job->watched_again, true))
    return watch(job, connection.value());
  board_.end(job, outcome, now());
  if (outcome && !job->result) board_.keep(job, outcome.value());
  const auto found = wanted_results_.find(job->id);
  if (found == wanted_results_.end()) return;
  const auto waiting = std::move(found->second);
  wanted_results_.erase(found);
  for (const auto& then : waiting) {
    if (outcome) {
      then(job->result);
    } else {
      then(outcome.error());
    }
  }
}

void JobService::with_result(const JobPtr& job, OnResult then) {
  if (job->result) return then(job->result);
  if (job->error) return then(*job->error);
  if (job->ended() && job->info.state != JobState::succeeded) {
    return then(
        Error{job->info.state == JobState::cancelled ? ErrorCode::cancelled : ErrorCode::failed,
              "job " + job->id + ": " + job->info.cause});
  }
  const auto connection = connection_of(job->key);
  if (!connection) return then(connection.error());
  auto& waiting = wanted_results_[job->id];
  waiting.push_back(std::move(then));
  if (waiting.size() == 1 && !(job->followed && !job->ended())) watch(job, connection.value());
}

void JobService::cancel(const JobPtr& job, std::string by,
                        std::function<void(std::optional<Error>)> then) {
  const std::string before = std::exchange(job->cancelled_by, std::move(by));
  const auto tell = [job, then, before](std::optional<Error> error) {
    if (error && then) job->cancelled_by = before;
    if (then) return then(std::move(error));
    static const std::set kLater = {ErrorCode::unreachable, ErrorCode::overloaded, ErrorCode::lost,
                                    ErrorCode::timeout};
    job->cancel_owed = error && !job->ended() && kLater.contains(error->code);
  };
  if (!then) job->cancel_owed = false;  // on its way
  const auto connection = connection_of(job->key);
  if (!connection) return tell(connection.error());
  work<std::string>([connection = connection.value(),
                     number = job->key.number] { return connection->client->cancel(number); },
                    [tell](const Result<std::string>& done) {
                      tell(done ? std::nullopt : std::optional(done.error()));
                    });
}

}  // namespace troupe::web
