#pragma once
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "controller/plan/planner.h"
#include "controller/plan/traffic.h"

namespace troupe::plan {

/// Reasons for a plan's degrees, which `troupe plan --explain` prints before the plan.
struct Explanation {
  Machine machine;
  int actors = 1;                     // how many there are
  std::vector<Candidate> candidates;  // quickest first
  std::size_t mixes = 1;              // number of mixes that the candidates were chosen from
  Plan plan;                          // of the mix that was picked
  std::vector<RankTraffic> traffic;   // its bytes, by world rank
  /// Cost with offload: the same mix with all blocks in memory, and the plan's own by the same
  /// measure.
  struct Offloaded {
    Candidate own, kept;
    double slower() const { return own.cost.total() / kept.cost.total(); }
  };
  std::optional<Offloaded> offloaded = {};
};

/// Explains the degrees asked for; where they are automatic, says what was picked among which.
/// Throws as choose_degrees, automatic_parallelism and make_plan do.
Explanation explain(const spec::ModelSpec& model, const wire::JobSpec& job, int actors,
                    const Machine& machine, const Limits& limits = {});

std::string to_text(const Explanation& explanation, const spec::ModelSpec& model);
nlohmann::json to_json(const Explanation& explanation, const spec::ModelSpec& model);

}  // namespace troupe::plan
