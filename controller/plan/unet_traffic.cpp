#include "controller/plan/unet_traffic.h"

#include <algorithm>

#include "controller/plan/encoders.h"
#include "controller/plan/unet_shares.h"

namespace troupe::plan {
namespace {

using Bytes = std::uint64_t;
using Kind = spec::UNetSite::Kind;

const char* name_of(Kind kind) {
  return kind == Kind::conv ? "convolution" : kind == Kind::norm ? "group norm" : "attention";
}

/// Time when a step's layer is told: gathered at once (of this step), told for the next step, or
/// neither.
enum class Telling { now, later, never };

Telling telling_of(const Plan& plan, const spec::UNetSite& site, bool first, int step) {
  if (plan.patches.size() < 2 || plan.request.exchange == PatchExchange::naive)
    return Telling::never;
  if (plan.is_whole(step)) return Telling::now;
  if (site.kind == Kind::conv && first) return Telling::now;
  if (site.kind == Kind::norm && plan.request.group_norm == GroupNormMoments::synchronous)
    return Telling::now;
  if (site.kind == Kind::norm && plan.request.group_norm == GroupNormMoments::separate)
    return Telling::never;
  const bool last = step + 1 == plan.request.steps;
  return plan.request.exchange == PatchExchange::stale && !last ? Telling::later : Telling::never;
}

/// Bytes that a rank tells other patches in one step.
struct Told {
  Bytes sent = 0;  // with what lies between them in a buffer
  std::map<std::string, Bytes> by_layer;
};

Told told_in(const Plan& plan, const UNetShares& shares, int rank, int step) {
  const auto at = mesh::Mesh(plan.degrees).coordinates(rank);
  const Bytes batch =
      Bytes(plan.images[at.dp].end - plan.images[at.dp].begin) * plan.branches_per_actor();
  const auto own = patches_of(plan, mesh::sequence_rank(plan.degrees, at));
  const Bytes others = plan.degrees.sp() - 1;
  Told told;
  for (std::size_t i = 0; others > 0 && i < shares.sites().size(); ++i) {
    const auto& site = shares.sites()[i];
    const auto telling = telling_of(plan, site, i == 0, step);
    if (telling == Telling::never) continue;
    for (int patch = own.begin; patch < own.end; ++patch) {
      const Bytes bytes = shares.bytes(site, patch, batch);
      told.sent += others * (telling == Telling::later ? aligned(bytes) : bytes);
      told.by_layer[name_of(site.kind)] += others * bytes;
    }
  }
  return told;
}

/// Steps of a kind, in which the same is told: named by the first of each kind.
struct StepKind {
  const char* name;
  int first = -1;
  int count = 0;
};

std::vector<StepKind> step_kinds(const Plan& plan) {
  StepKind kinds[] = {{"synchronous"}, {"stale"}, {"last"}};
  for (int step = 0; step < plan.request.steps; ++step) {
    auto& kind = kinds[plan.is_whole(step) ? 0 : step + 1 < plan.request.steps ? 1 : 2];
    if (kind.count++ == 0) kind.first = step;
  }
  std::vector<StepKind> present(std::begin(kinds), std::end(kinds));
  std::erase_if(present, [](const auto& kind) { return kind.count == 0; });
  return present;
}

RankTraffic traffic_of(const Plan& plan, const spec::ModelSpec& model, const UNetShares& shares,
                       int rank) {
  const mesh::Mesh mesh(plan.degrees);
  const auto at = mesh.coordinates(rank);
  const Bytes images = plan.images[at.dp].end - plan.images[at.dp].begin;
  const int sequence = mesh::sequence_rank(plan.degrees, at);
  RankTraffic traffic;
  for (const auto& kind : step_kinds(plan)) {
    const auto told = told_in(plan, shares, rank, kind.first);
    traffic.sent["stage"] += kind.count * told.sent;
    for (const auto& [layer, bytes] : told.by_layer)
      traffic.by_layer[layer] += kind.count * bytes;
  }
  const auto& rows = plan.micro_steps.front().of_rank[sequence];
  traffic.sent["cfg"] = Bytes(plan.request.steps) * (plan.degrees.cfg - 1) * images *
                        plan.latent_channels * (rows.end - rows.begin) * plan.latent_width * 4;
  if (plan.request.guidance_rescale > 0 && plan.guidance)
    traffic.sent["stage"] += Bytes(plan.request.steps) * rescale_bytes(plan, at, 1);
  const Bytes listeners = plan.degrees.world() / plan.degrees.dp - 1;
  if (rank == plan.decode_rank(at.dp) && plan.request.init_image_bytes > 0)
    traffic.sent["caption"] += listeners * encoded_picture_bytes(plan, at.dp);
  traffic.sent["caption"] += caption_bytes(plan, model, rank);
  std::erase_if(traffic.sent, [](const auto& entry) { return entry.second == 0; });
  std::erase_if(traffic.by_layer, [](const auto& entry) { return entry.second == 0; });
  return traffic;
}

}  // namespace

std::vector<RankTraffic> unet_traffic(const Plan& plan, const spec::ModelSpec& model) {
  const UNetShares shares(plan, *model.transformer.unet());
  std::vector<RankTraffic> all;
  for (int rank = 0; rank < plan.degrees.world(); ++rank)
    all.push_back(traffic_of(plan, model, shares, rank));
  return all;
}

std::vector<StepTraffic> unet_step_traffic(const Plan& plan, const spec::ModelSpec& model,
                                           int rank) {
  const UNetShares shares(plan, *model.transformer.unet());
  std::vector<StepTraffic> all;
  for (const auto& kind : step_kinds(plan)) {
    if (plan.degrees.sp() > 1)
      all.push_back({kind.name, kind.count, told_in(plan, shares, rank, kind.first).by_layer});
  }
  return all;
}

}  // namespace troupe::plan
