#include "transport/json/info_json.h"

namespace troupe {

nlohmann::json known_bytes(std::uint64_t bytes) {
  return bytes == 0 ? nlohmann::json() : nlohmann::json(bytes);
}

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

}  // namespace troupe
