#include <algorithm>

#include "web/api.h"

namespace troupe::web {
namespace {

bool can_paint(const ActorInfo& actor) {
  return actor.state == "ready" || actor.state == "busy";
}

nlohmann::json actor_json(const ActorInfo& actor) {
  nlohmann::json groups = nlohmann::json::array();
  for (const GroupInfo& group : actor.groups)
    groups.push_back({{"axis", group.axis}, {"ranks", group.ranks}, {"rank", group.rank_in_group}});
  return {{"id", std::to_string(actor.id)},
          {"host", actor.host},
          {"device", actor.device},
          {"state", actor.state},
          {"doing", actor.doing},
          {"memory_bytes", actor.memory_bytes},
          {"groups", std::move(groups)},
          {"restarts", actor.restarts},
          {"pid", actor.pid}};
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
      able += can_paint(actor);
      starting += actor.state == "starting";
      lost += actor.state == "dead";
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
      one["actors_ready"] = std::ranges::count_if(actors, can_paint);
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
  std::vector<std::string> hosts;
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
      actors.push_back(actor_json(actor));
      if (index > 1) actors.back()["id"] = std::to_string(actor.id) + "-" + std::to_string(index);
      if (std::ranges::find(hosts, actor.host) == hosts.end()) hosts.push_back(actor.host);
    }
    queued += cluster.info->jobs_queued;
    running += cluster.info->jobs_running;
    ended += cluster.info->jobs_ended;
    uptime = std::max(uptime, cluster.info->uptime_seconds);
    if (operate)
      for (const auto& failure : cluster.info->recent_failures)
        failures.push_back(failure);
  }
  for (const ModelName& model : service.models())
    models.push_back({{"id", model.id}, {"path", model.path}});
  return {{"status", health_of(service.clusters())},
          {"hosts", hosts},
          {"actors", std::move(actors)},
          {"jobs", {{"queued", queued}, {"running", running}, {"ended", ended}}},
          {"models", std::move(models)},
          {"clusters", std::move(clusters)},
          {"recent_failures", std::move(failures)},
          {"uptime_seconds", uptime},
          {"version", TROUPE_VERSION}};
}

}  // namespace

void add_cluster_routes(Api& api) {
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
    throw ApiError(404, "model_not_found", "there is no model " + request.params[0], "model");
  });
  add("/api/v1/cluster", Access::user, [](Api& api, const Request& request) {
    return json_response(cluster_json(api.service, request.caller->operate));
  });
  add("/api/v1/options", Access::user, [](Api& api, const Request&) {
    auto options = options_json();
    options["models"] = models_json(api.service);
    return json_response(options);
  });
}

}  // namespace troupe::web
