#include "controller/plan/planner.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <optional>
#include <stdexcept>
#include <tuple>

#include "base/format.h"
#include "base/text.h"
#include "controller/plan/layout.h"
#include "controller/plan/traffic.h"

namespace troupe::plan {
namespace {

/// Ratio by which a mix may be slower that spares an actor.
constexpr double kWorthAnActor = 1.03;

/// Most actors that are tried.
constexpr int kMostActors = 1024;
/// Mixes that are planned to see whether they fit in memory: the quickest, then, while none of them
/// does, those that share K,V the widest. Many patches make long plans.
constexpr std::size_t kQuickestPlanned = 96;
constexpr std::size_t kLeastPlanned = 192;
constexpr std::size_t kMostPlanned = 1024;
constexpr std::size_t kPatchesPlanned = 1 << 16;

std::size_t most_planned(std::size_t patches, const Limits& limits) {
  return std::max(limits.candidates,
                  std::clamp(kPatchesPlanned / patches, kLeastPlanned, kMostPlanned));
}

/// Latent rows below which a decoder's share is mostly halo.
constexpr int kRowsPerDecoder = 8;

/// Returns the order of a candidate. Times that are equal to the nanosecond are equal.
auto order_of(const Candidate& candidate) {
  const auto& at = candidate.parallelism;
  return std::make_tuple(std::llround(candidate.cost.total() * 1e9), candidate.actors(), at.dp,
                         at.cfg, at.pp, at.ulysses, at.ring, at.tp);
}

/// Returns the number of shares in which actors keep K,V: ring ranks each keep all of their heads'.
int shares_of(const Candidate& candidate) {
  return candidate.actors() / candidate.parallelism.ring;
}

/// Calls `use` with every mix of at most `actors` that could suit the request.
template <class Use>
void for_each_mix(const Plan& alone, const spec::ModelSpec& model, int actors, const Use& use) {
  const int heads = static_cast<int>(model.transformer.num_attention_heads);
  const int rows = static_cast<int>(alone.token_rows);
  const int layers = static_cast<int>(model.transformer.num_layers);
  wire::Parallelism mix;
  for (mix.dp = 1; mix.dp <= std::min(actors, alone.picture_count()); ++mix.dp) {
    for (mix.cfg = 1; mix.cfg <= (alone.guidance ? 2 : 1); ++mix.cfg) {
      const int branches = mix.dp * mix.cfg;
      for (mix.pp = 1; mix.pp <= layers && branches * mix.pp <= actors; ++mix.pp) {
        const int stages = branches * mix.pp;
        for (mix.ring = 1; mix.ring <= rows && stages * mix.ring <= actors; ++mix.ring) {
          const int rings = stages * mix.ring;
          for (mix.tp = 1; mix.tp <= heads && rings * mix.tp <= actors; ++mix.tp) {
            const int most = std::min(heads / mix.tp, rows / mix.ring);
            for (mix.ulysses = 1; mix.ulysses <= most && rings * mix.tp * mix.ulysses <= actors;
                 ++mix.ulysses)
              use(mix);
          }
        }
      }
    }
  }
}

/// Returns the number of actors of a replica that hold enough rows to decode.
int decoders_of(const wire::Parallelism& mix, const Plan& alone) {
  const int replica = degrees_of(mix).world() / mix.dp;
  // Of a video's frames, which are decoded one by one.
  const auto rows = alone.request.height * alone.latent_width / alone.request.width;
  return std::clamp(static_cast<int>(rows) / kRowsPerDecoder, 1, replica);
}

/// Makes the plan with as many decoders as make_plan takes: all or one.
std::optional<Plan> accepted(const spec::ModelSpec& model, const wire::ImageRequest& request,
                             wire::Parallelism& mix, const Machine& machine, const Plan& alone) {
  for (;;) {
    try {
      auto plan = make_plan(model, request, mix, machine, &alone);
      if (plan.degrees == degrees_of(mix)) return plan;
      return std::nullopt;
    } catch (const std::invalid_argument&) {
      if (mix.vae == 1) return std::nullopt;
      mix.vae = 1;
    }
  }
}

std::string memory_text(std::uint64_t bytes) {
  char text[32];
  const bool large = bytes >= 10'000'000'000;
  std::snprintf(text, sizeof text, large ? "%.2f GB" : "%.2f MB",
                static_cast<double>(bytes) / (large ? 1e9 : 1e6));
  return text;
}

std::vector<Candidate> ranked(const Plan& alone, const spec::ModelSpec& model, int actors,
                              const Machine& machine) {
  const auto model_shape = shape_of(model, alone.request);
  const auto job_shape = shape_of(alone);
  std::vector<Candidate> all;
  std::map<int, std::vector<int>> stages;  // by pp
  const auto rates = rates_of(machine, job_shape.dtype);
  for_each_mix(alone, model, std::min(actors, kMostActors), [&](const wire::Parallelism& mix) {
    Candidate candidate;
    candidate.parallelism = mix;
    candidate.parallelism.vae = decoders_of(mix, alone);
    const auto degrees = degrees_of(mix);
    auto& sizes = stages[mix.pp];
    if (sizes.empty()) sizes = stage_sizes(model_shape, job_shape, mix.pp, {}, rates);
    auto& vae = candidate.parallelism.vae;
    candidate.cost = estimate_cost(model_shape, job_shape, degrees, vae, machine, {}, sizes);
    // A small picture is decoded sooner than it is shared out.
    auto unshared = candidate.cost;
    count_vae(unshared, model_shape, job_shape, degrees, 1, machine);
    if (unshared.around() <= candidate.cost.around()) vae = 1, candidate.cost = unshared;
    all.push_back(std::move(candidate));
  });
  std::sort(all.begin(), all.end(),
            [](const auto& a, const auto& b) { return order_of(a) < order_of(b); });
  return all;
}

std::uint64_t memory_limit(const Machine& machine, const Limits& limits) {
  return limits.memory > 0 ? limits.memory : machine.device.memory;
}

}  // namespace

int Candidate::actors() const {
  return degrees_of(parallelism).world();
}

std::string to_text(const wire::Parallelism& of) {
  std::string text;
  for (const auto& [name, degree] :
       {std::pair{"dp", of.dp}, std::pair{"cfg", of.cfg}, std::pair{"pp", of.pp},
        std::pair{"ulysses", of.ulysses}, std::pair{"ring", of.ring}, std::pair{"tp", of.tp}}) {
    if (degree > 1) text += fmt::format("{}{} {}", text.empty() ? "" : " × ", name, degree);
  }
  return text.empty() ? "one actor" : text;
}

Candidate judge(const wire::Parallelism& parallelism, const Plan& plan,
                const spec::ModelSpec& model, const Machine& machine, const Limits& limits) {
  Candidate candidate;
  candidate.parallelism = parallelism;
  candidate.parallelism.automatic = false;
  std::vector<int> stages;
  for (const auto& stage : plan.stages)
    stages.push_back(stage.blocks());
  candidate.cost = estimate_cost(shape_of(model, plan.request), shape_of(plan), plan.degrees,
                                 plan.vae_degree, machine, {}, stages);
  for (const auto& rank : predict_traffic(plan, model))
    candidate.sent = std::max(candidate.sent, rank.total());
  for (const auto& actor : plan.memory)
    candidate.memory = std::max(candidate.memory, actor.peak());
  const auto limit = memory_limit(machine, limits);
  if (limit > 0 && candidate.memory > limit) {
    candidate.refused =
        "memory: " + memory_text(candidate.memory) + " per actor, limit " + memory_text(limit);
  }
  return candidate;
}

std::vector<Candidate> choose_degrees(const spec::ModelSpec& model,
                                      const wire::ImageRequest& request, int actors,
                                      const Machine& machine, const Limits& limits) {
  if (actors < 1) {
    throw std::invalid_argument(
        fmt::format("[planner] actors is {}: at least 1 is needed", actors));
  }
  const Plan alone = make_plan(model, request, {});
  auto all = ranked(alone, model, actors, machine);
  const auto most = most_planned(alone.patches.size(), limits);
  std::vector<Candidate> chosen;
  std::size_t fitting = 0;
  for (std::size_t index = 0; index < std::min(all.size(), most); ++index) {
    if (fitting == limits.candidates) break;
    if (index == kQuickestPlanned && fitting == 0) {
      std::stable_sort(all.begin() + index, all.end(),
                       [](const auto& a, const auto& b) { return shares_of(a) > shares_of(b); });
    }
    auto& candidate = all[index];
    const auto plan = accepted(model, request, candidate.parallelism, machine, alone);
    if (!plan) continue;
    candidate = judge(candidate.parallelism, *plan, model, machine, limits);
    if (!candidate.refused.empty() && candidate.parallelism.vae == 1) {
      // A picture that is decoded sooner by one may not fit there.
      auto mix = candidate.parallelism;
      mix.vae = decoders_of(mix, alone);
      const auto shared = accepted(model, request, mix, machine, alone);
      if (shared && mix.vae > 1) {
        auto other = judge(mix, *shared, model, machine, limits);
        if (other.memory < candidate.memory) candidate = std::move(other);
      }
    }
    if (candidate.refused.empty()) ++fitting;
    chosen.push_back(std::move(candidate));
  }
  std::stable_sort(chosen.begin(), chosen.end(),
                   [](const auto& a, const auto& b) { return order_of(a) < order_of(b); });
  return chosen;
}

std::size_t count_mixes(const spec::ModelSpec& model, const wire::ImageRequest& request,
                        int actors) {
  std::size_t count = 0;
  for_each_mix(make_plan(model, request, {}), model, std::min(actors, kMostActors),
               [&](const wire::Parallelism&) { ++count; });
  return count;
}

const Candidate* best_of(const std::vector<Candidate>& candidates) {
  const Candidate* best = nullptr;
  double quickest = 0;
  for (const auto& candidate : candidates) {
    if (!candidate.refused.empty()) continue;
    if (!best) quickest = candidate.cost.total();
    if (candidate.cost.total() > quickest * kWorthAnActor) continue;
    if (!best || candidate.actors() < best->actors()) best = &candidate;
  }
  return best;
}

wire::Parallelism automatic_parallelism(const spec::ModelSpec& model,
                                        const wire::ImageRequest& request, int actors,
                                        const Machine& machine, const Limits& limits) {
  Limits some = limits;
  some.candidates = std::max<std::size_t>(limits.candidates, 1);
  const auto candidates = choose_degrees(model, request, actors, machine, some);
  if (const auto* best = best_of(candidates)) return best->parallelism;
  const auto nearest =
      std::min_element(candidates.begin(), candidates.end(),
                       [](const auto& a, const auto& b) { return a.memory < b.memory; });
  if (nearest == candidates.end()) {
    throw std::invalid_argument("[planner] no mix of degrees on up to " + counted(actors, "actor") +
                                " suits this request");
  }
  const bool all = candidates.size() < kLeastPlanned;
  throw std::invalid_argument("[planner] no mix of degrees on up to " + counted(actors, "actor") +
                              (all ? "" : ", of those looked at,") +
                              " fits in memory: " + to_text(nearest->parallelism) +
                              " comes nearest and needs " + memory_text(nearest->memory) +
                              " per actor, limit " + memory_text(memory_limit(machine, limits)));
}

}  // namespace troupe::plan
