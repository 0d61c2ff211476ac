#pragma once
#include <nlohmann/json_fwd.hpp>

#include "controller/plan/machine.h"

namespace troupe::plan {

/// Writes a machine's figures, in SI units, as a controller tells them (`troupe plan --connect`).
nlohmann::json to_json(const Machine& machine);

/// Reads a machine's figures. Throws std::invalid_argument naming the key that is missing or out of
/// place.
Machine machine_from_json(const nlohmann::json& json);

}  // namespace troupe::plan
