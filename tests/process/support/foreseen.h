#pragma once
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "controller/plan/traffic.h"
#include "models/spec/model_spec.h"
#include "troupe/client.h"

namespace troupe::testing {

/// The submission's model, with its ControlNets.
spec::ModelSpec model_of(const Submission& submission);
/// The plan that a controller makes of a submission.
plan::Plan plan_of(const Submission& submission);

/// Facts that are known of a job's ranks before it runs.
struct Foreseen {
  explicit Foreseen(const Submission& submission);

  spec::ModelSpec model;
  plan::Plan plan;
  std::vector<plan::RankTraffic> traffic;  // by rank
};

using BytesByRole = std::map<std::string, std::uint64_t>;

/// Returns what one of a report's actors sent, by role of group.
BytesByRole sent_by(const nlohmann::json& actor);

/// CHECK that every rank of a job's report has, to the byte, what was foreseen of it: the weights
/// that it keeps, its K,V, what it sent by role of group and, of a U-Net, by kind of layer.
void check_weights(const nlohmann::json& report, const Foreseen& foreseen);
void check_kv(const nlohmann::json& report, const Foreseen& foreseen);
void check_sent(const nlohmann::json& report, const Foreseen& foreseen);
void check_sent_by_layer(const nlohmann::json& report, const Foreseen& foreseen);

}  // namespace troupe::testing
