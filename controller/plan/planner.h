#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "controller/plan/cost_model.h"
#include "controller/plan/machine.h"
#include "controller/plan/plan.h"

namespace troupe::plan {

/// Limits that a choice of degrees has to keep within.
struct Limits {
  std::uint64_t memory = 0;     // bytes an actor; 0 = the machine's, if that is known
  std::size_t candidates = 12;  // number of mixes that fit which are wanted
};

/// One mix of degrees for a request. The request itself is the same for all.
struct Candidate {
  wire::Parallelism parallelism;
  JobCost cost;
  std::uint64_t sent = 0;    // bytes that the busiest rank sends in the whole job
  std::uint64_t memory = 0;  // peak bytes of the fullest actor
  std::string refused;       // "" = it can run; else why not: too much memory

  int actors() const;
};

/// Returns "cfg 2 × pp 4"; "one actor" where nothing is split.
std::string to_text(const wire::Parallelism& parallelism);

/// Same as make_plan, but for a machine: where its speeds were measured, stages are split by the
/// seconds that their blocks take on it, not by FLOPs; and what many pictures take long for is cut
/// into parts (block_cost.h). `same`: a plan of the same request and model for another mesh, whose
/// schedule is taken.
Plan make_plan(const spec::ModelSpec& model, const wire::ImageRequest& request,
               const wire::Parallelism& parallelism, const Machine& machine,
               const Plan* same = nullptr);

/// Predicts what a plan takes, sends and needs.
Candidate judge(const wire::Parallelism& parallelism, const Plan& plan,
                const spec::ModelSpec& model, const Machine& machine, const Limits& limits = {});

/// Returns mixes of degrees on at most `actors` actors that make_plan accepts for this request, the
/// quickest first; equally quick ones by fewer actors, then by smaller dp, cfg, pp, ulysses, ring,
/// tp. The first `limits.candidates` that fit in memory, with those between them that do not; where
/// memory is so short that hundreds do not, not all are looked at. At most 1,024 actors are used.
/// Degrees alone differ: method, patches, warm-up and everything else are the request's. Throws
/// std::invalid_argument what make_plan refuses in the request, and when `actors` is below 1.
std::vector<Candidate> choose_degrees(const spec::ModelSpec& model,
                                      const wire::ImageRequest& request, int actors,
                                      const Machine& machine, const Limits& limits = {});

/// Returns how many mixes choose_degrees begins with. Throws as it does.
std::size_t count_mixes(const spec::ModelSpec& model, const wire::ImageRequest& request,
                        int actors);

/// Returns, of candidates as choose_degrees sorts them, the one of fewest actors among those that
/// are predicted within 3 % of the quickest, far inside of what predictions are worth. Null where
/// none can run.
const Candidate* best_of(const std::vector<Candidate>& candidates);

/// Returns the degrees that `--parallel auto` stands for, with `automatic` unset: best_of. Throws
/// std::invalid_argument as choose_degrees does, and when no mix fits in memory, naming the one
/// that comes nearest, what it needs and what is there.
wire::Parallelism automatic_parallelism(const spec::ModelSpec& model,
                                        const wire::ImageRequest& request, int actors,
                                        const Machine& machine, const Limits& limits = {});

}  // namespace troupe::plan
