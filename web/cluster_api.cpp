#include <algorithm>

#include "base/format.h"
#include "base/numbers.h"
#include "transport/json/info_json.h"
#include "web/api.h"
#include "web/cluster_watchers.h"

namespace troupe::web {
namespace {

/// A number; of the second cluster on a text, NUMBER-CLUSTER.
nlohmann::json actor_id(std::uint32_t actor, std::size_t cluster) {
  if (cluster == 0) return actor;
  return fmt::format("{}-{}", actor, cluster + 1);
}

/// `operate`: the caller may see everybody's jobs, else not whose job the actor has.
nlohmann::json actor_json(const ActorInfo& actor, bool operate) {
  auto document = troupe::to_json(actor);
  if (!operate && !actor.doing.empty()) document["doing"] = "a job";
  return document;
}

/// "ok": all actors are there; "starting": some are not yet, and none is missing otherwise;
/// "degraded": some are lost, or a cluster is; "down": nothing can be painted.
std::string health_of(const std::vector<JobService::Cluster>& clusters) {
  std::size_t able = 0, starting = 0, lost = 0;
  for (const auto& cluster : clusters) {
    if (!cluster.info) {
      ++lost;
      continue;
    }
    for (const ActorInfo& actor : cluster.info->actors) {
      able += can_compute(actor.state);
      starting += actor.state == ActorState::starting;
      lost += actor.state == ActorState::dead;
    }
  }
  if (able == 0) return starting > 0 ? "starting" : "down";
  if (lost > 0) return "degraded";
  return starting > 0 ? "starting" : "ok";
}

nlohmann::json health_json(const JobService& service) {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& cluster : service.clusters()) {
    nlohmann::json one = {{"connected", cluster.info.has_value()}};
    if (cluster.info) {
      const auto& actors = cluster.info->actors;
      one["actors"] = actors.size();
      one["actors_ready"] = std::ranges::count_if(actors, can_compute, &ActorInfo::state);
      one["jobs_queued"] = cluster.info->jobs_queued;
      one["jobs_running"] = cluster.info->jobs_running;
    }
    list.push_back(std::move(one));
  }
  return {
      {"status", health_of(service.clusters())}, {"version", TROUPE_VERSION}, {"clusters", list}};
}

nlohmann::json models_json(const JobService& service) {
  nlohmann::json list = nlohmann::json::array();
  for (const ModelName& model : service.models())
    list.push_back({{"id", model.id}, {"object", "model"}, {"created", 0}, {"owned_by", "troupe"}});
  return list;
}

nlohmann::json cluster_json(const JobService& service, bool operate) {
  nlohmann::json actors = nlohmann::json::array(), failures = nlohmann::json::array();
  nlohmann::json clusters = nlohmann::json::array(), models = nlohmann::json::array();
  Hosts hosts;
  std::uint32_t queued = 0, running = 0, ended = 0;
  double uptime = 0;
  std::size_t index = 0;
  for (const auto& cluster : service.clusters()) {
    ++index;
    clusters.push_back({{"endpoint", cluster.link->target().endpoint},
                        {"connected", cluster.info.has_value()},
                        {"cause", cluster.why}});
    if (!cluster.info) continue;
    for (const ActorInfo& actor : cluster.info->actors) {
      actors.push_back(actor_json(actor, operate));
      if (index > 1) actors.back()["id"] = fmt::format("{}-{}", actor.id, index);
    }
    add_hosts(*cluster.info, hosts);
    queued += cluster.info->jobs_queued;
    running += cluster.info->jobs_running;
    ended += cluster.info->jobs_ended;
    uptime = std::max(uptime, cluster.info->uptime_seconds);
    if (operate)
      for (const auto& failure : cluster.info->recent_failures)
        failures.push_back(failure);
  }
  for (const ModelName& model : service.models())
    models.push_back(model.id);
  return {{"status", health_of(service.clusters())},
          {"hosts", troupe::to_json(hosts)},
          {"actors", std::move(actors)},
          {"jobs", {{"queued", queued}, {"running", running}, {"ended", ended}}},
          {"models", std::move(models)},
          {"clusters", std::move(clusters)},
          {"recent_failures", std::move(failures)},
          {"uptime_seconds", uptime},
          {"version", TROUPE_VERSION}};
}

/// Streams of what the clusters are and do. On the loop; lives as long as the gateway.
class Watching : public std::enable_shared_from_this<Watching> {
 public:
  explicit Watching(Api& api)
      : api_(api),
        clusters_(std::make_shared<ClusterWatchers>(
            [&api](bool operate) { return cluster_json(api.service, operate); })),
        pipelines_(std::make_shared<PipelineWatchers>(
            api.service.clusters().size(),
            [&api](nlohmann::json slice, const KeyHolder& caller) {
              return slice_seen(api.service.board(), std::move(slice), caller);
            })),
        slices_(api.service.clusters().size()) {}

  void status() {
    if (!clusters_->empty() || !pipelines_->empty()) api_.service.want_jobs();
    clusters_->update(JobService::now());
    ask_for_slices();
  }

  void add_cluster(const ReplyPtr& reply, bool operate) {
    clusters_->add(reply, operate, JobService::now());
    api_.service.want_jobs();
  }

  void add_pipeline(const ReplyPtr& reply, std::shared_ptr<const KeyHolder> caller) {
    if (pipelines_->empty()) slices_.assign(slices_.size(), {});
    pipelines_->add(reply, std::move(caller));
    api_.service.want_jobs();
    ask_for_slices();
  }

 private:
  /// Progress of asking for the slices of one cluster.
  struct Slices {
    bool asking = false;
    std::uint64_t after = 0;
  };

  /// Returns the slice with its job's id if the caller may see that job.
  static nlohmann::json slice_seen(const JobBoard& board, nlohmann::json slice,
                                   const KeyHolder& caller) {
    if (caller.operate) return slice;
    const JobPtr job = board.find(slice.at("job").get<std::string>());
    if (!job || !may_see(caller, *job)) slice["job"] = "of another client";
    return slice;
  }

  void ask_for_slices() {
    if (pipelines_->empty()) return;
    for (std::size_t i = 0; i < slices_.size(); ++i)
      if (!slices_[i].asking) ask(i);
  }

  void ask(std::size_t index) {
    slices_[index].asking = true;
    api_.service.ask<std::string>(
        index,
        [after = slices_[index].after](Inspector& inspector) { return inspector.slices(after); },
        [self = shared_from_this(), index](Result<std::string> text) {
          self->slices_[index].asking = false;
          if (text) self->came(index, nlohmann::json::parse(text.value(), nullptr, false));
        },
        "");
  }

  void came(std::size_t index, const nlohmann::json& document) {
    if (!document.is_object()) return;
    Slices& of = slices_[index];
    const auto last = document.value("last", std::uint64_t{0});
    const bool is_anew = last < of.after;
    of.after = last;
    const std::string& series = api_.service.clusters()[index].series;
    PipelineWatchers::Slices fresh;
    for (auto slice : document.value("slices", nlohmann::json::array())) {
      slice["actor"] = actor_id(slice.value("actor", 0u), index);
      slice["job"] = JobKey{index, series, slice.value("job", std::uint64_t{0})}.id();
      fresh.push_back(std::move(slice));
    }
    pipelines_->came(index, document.value("now", 0.0), std::move(fresh), is_anew);
  }

  Api& api_;
  std::shared_ptr<ClusterWatchers> clusters_;
  std::shared_ptr<PipelineWatchers> pipelines_;
  std::vector<Slices> slices_;  // of each cluster
};

/// The cluster and the number in it that an actor's id names.
std::pair<std::size_t, std::uint32_t> actor_of(const JobService& service, const std::string& id) {
  const std::size_t dash = id.find('-');
  const auto number = parse_number<std::uint32_t>(id.substr(0, dash));
  const auto cluster = dash == id.npos ? std::optional<std::size_t>(1)
                                       : parse_number<std::size_t>(id.substr(dash + 1));
  if (!number || !cluster || *cluster < 1 || *cluster > service.clusters().size())
    throw ApiError(404, ErrorCode::not_found, "there is no actor " + id);
  return {*cluster - 1, *number};
}

void kill_actor(Api& api, const std::shared_ptr<Request>& request, const ReplyPtr& reply) {
  const auto [cluster, number] = actor_of(api.service, request->params[0]);
  api.service.ask<std::string>(
      cluster,
      [number = number](Inspector& inspector) { return inspector.inject(number, Fault::kill); },
      [reply](Result<std::string> done) {
        if (!done) return answer_error(reply, to_api_error(done.error()));
        reply->send(json_response({{"done", done.value()}}));
      },
      asker_of(*request));
}

}  // namespace

void add_cluster_routes(Api& api) {
  const auto watching = std::make_shared<Watching>(api);
  api.service.on_status([watching] { watching->status(); });
  api.router.add({"GET", "/api/v1/cluster/events", Access::user, 0,
                  [watching](const auto& request, const auto& reply) {
                    watching->add_cluster(reply, request->caller->operate);
                  }});
  api.router.add({"GET", "/api/v1/pipeline/events", Access::user, 0,
                  [watching](const auto& request, const auto& reply) {
                    watching->add_pipeline(reply, request->caller);
                  }});
  api.router.add(
      {"POST", "/api/v1/actors/{}/kill", Access::operate, 1024,
       [&api](const auto& request, const auto& reply) { kill_actor(api, request, reply); }});
  const auto add = [&](const char* path, Access access, auto handler) {
    api.router.add(
        {"GET", path, access, 0, [&api, handler](const auto& request, const auto& reply) {
           reply->send(handler(api, *request));
         }});
  };
  add("/health", Access::open, [](Api& api, const Request&) {
    const auto document = health_json(api.service);
    return json_response(document, document.at("status") == "down" ? 503 : 200);
  });
  add("/v1/models", Access::user, [](Api& api, const Request&) {
    return json_response({{"object", "list"}, {"data", models_json(api.service)}});
  });
  add("/v1/models/{}", Access::user, [](Api& api, const Request& request) {
    for (const auto& model : models_json(api.service))
      if (model.at("id") == request.params[0]) return json_response(model);
    throw ApiError(404, HttpCode::model_not_found, "there is no model " + request.params[0],
                   "model");
  });
  add("/api/v1/cluster", Access::user, [](Api& api, const Request& request) {
    return json_response(cluster_json(api.service, request.caller->operate));
  });
  add("/api/v1/options", Access::user, [](Api& api, const Request&) {
    auto options = options_json();
    options["job"] = job_fields_json();
    options["models"] = models_json(api.service);
    bool first = true;
    for (auto& model : options["models"])
      model["default"] = std::exchange(first, false);
    return json_response(options);
  });
}

}  // namespace troupe::web
