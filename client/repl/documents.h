#pragma once
#include <nlohmann/json.hpp>

#include "client/cli/json.h"
#include "troupe/actor.h"
#include "troupe/inspect.h"

namespace troupe::repl {

// What commands print under `--json`, as the fields of the C++ API are called.
nlohmann::json to_json(const MailboxInfo& mailbox);
nlohmann::json to_json(const TensorsInfo& tensors);
nlohmann::json to_json(const TensorValues& values);
nlohmann::json to_json(const ActorClassInfo& one);
nlohmann::json to_json(const UserActorInfo& actor);

}  // namespace troupe::repl
