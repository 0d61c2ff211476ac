#include "transport/json/info_json.h"

namespace troupe {

namespace {

/// Returns the bytes; null for 0, which means that they are not known, as for actors of other
/// hosts.
nlohmann::json known_bytes(std::uint64_t bytes) {
  return bytes == 0 ? nlohmann::json() : nlohmann::json(bytes);
}

}  // namespace

nlohmann::json to_json(const ActorInfo& actor) {
  nlohmann::json groups = nlohmann::json::array();
  for (const GroupInfo& group : actor.groups)
    groups.push_back({{"axis", group.axis}, {"ranks", group.ranks}, {"rank", group.rank_in_group}});
  return {{"id", actor.id},
          {"incarnation", actor.incarnation},
          {"state", to_string(actor.state)},
          {"host", actor.host},
          {"pid", actor.pid},
          {"device", actor.device},
          {"local_rank", actor.local_rank},
          {"groups", std::move(groups)},
          {"doing", actor.doing},
          {"restarts", actor.restarts},
          {"memory_bytes", known_bytes(actor.memory_bytes)}};
}

nlohmann::json to_json(const JobInfo& job) {
  nlohmann::json batch, degrees, steps;
  if (job.batch != 0) batch = {{"number", job.batch}, {"with_jobs", job.with_jobs}};
  if (!job.parallelism.automatic) {
#define DEGREE_FIELD(name, option, most, help) degrees[#name] = job.parallelism.name;
#include "transport/wire/degree_fields.def"
  }
  if (job.steps > 0) steps = job.steps;
  return {{"id", job.id},
          {"state", to_string(job.state)},
          {"prompt", job.prompt},
          {"model", job.model},
          {"pictures", job.pictures},
          {"seed", job.seed},
          {"own_seeds", job.own_seeds},
          {"degrees", std::move(degrees)},
          {"step", job.step},
          {"steps", std::move(steps)},
          {"seconds", job.seconds},
          {"queue_position", job.queue_position},
          {"cause", job.cause},
          {"priority", job.priority},
          {"share", job.share},
          {"batch", std::move(batch)},
          {"not_batched", job.not_batched}};
}

void add_hosts(const ClusterInfo& cluster, Hosts& hosts) {
  hosts[cluster.host].has_controller = true;
  for (const ActorInfo& actor : cluster.actors) {
    HostInfo& host = hosts[actor.host];
    ++host.actors;
    host.ready += can_compute(actor.state);
    host.restarts += actor.restarts;
    host.memory_bytes += actor.memory_bytes;
    host.devices.insert(actor.device);
  }
}

nlohmann::json to_json(const Hosts& hosts) {
  nlohmann::json list = nlohmann::json::array();
  for (const auto& [name, host] : hosts)
    list.push_back({{"name", name},
                    {"actors", host.actors},
                    {"ready", host.ready},
                    {"restarts", host.restarts},
                    {"memory_bytes", known_bytes(host.memory_bytes)},
                    {"devices", host.devices},
                    {"controller", host.has_controller}});
  return list;
}

}  // namespace troupe
