#include "controller/plan/unet_memory.h"

#include <algorithm>

#include "controller/plan/unet_shares.h"

namespace troupe::plan {
namespace {

using Bytes = std::uint64_t;
using Kind = spec::UNetSite::Kind;

bool ever_stale(const Plan& plan) {
  return plan.patches.size() > 1 && plan.synchronous_steps < plan.request.steps &&
         plan.request.exchange != PatchExchange::naive;
}

/// True when the layer's values of an older step are kept. The first convolution's rows are of this
/// step in every step; norms are kept where their mode uses older ones.
bool is_kept(const Plan& plan, const spec::UNetSite& site, bool first) {
  if (site.kind == Kind::norm)
    return plan.request.group_norm == GroupNormMoments::corrected ||
           plan.request.group_norm == GroupNormMoments::stale;
  return !first;
}

Bytes kept_bytes(const Plan& plan, const UNetShares& shares, Bytes batch) {
  if (!ever_stale(plan)) return 0;
  // In the last step nothing is told any more; told values arrive in one of two sets of buffers.
  const bool told = plan.request.exchange == PatchExchange::stale &&
                    plan.request.steps - plan.synchronous_steps > 1;
  Bytes kept = 0;
  for (std::size_t i = 0; i < shares.sites().size(); ++i) {
    const auto& site = shares.sites()[i];
    if (!is_kept(plan, site, i == 0)) continue;
    for (int patch = 0; patch < shares.patches(); ++patch) {
      const Bytes bytes = shares.bytes(site, patch, batch);
      if (!told || plan.degrees.sp() == 1) {
        kept += bytes;
        continue;
      }
      kept += 2 * aligned(bytes);
    }
  }
  return kept;
}

/// Returns the bytes of the skipped feature maps of the way down, and of the widest layer's own: an
/// upper estimate for `rows` of the latents.
Bytes activation_bytes(const Plan& plan, const spec::UNetSpec& unet, Bytes batch, Bytes rows) {
  Bytes skipped = 0;
  Bytes widest = 0;
  Bytes positions = rows * static_cast<Bytes>(plan.latent_width);
  for (std::size_t l = 0; l < unet.levels.size(); ++l, positions = (positions + 3) / 4) {
    const auto& level = unet.levels[l];
    const Bytes below = l + 1 < unet.levels.size() ? unet.levels[l + 1].channels : level.channels;
    skipped += positions * level.channels * (level.layers + 1);
    const bool attends = level.down_transformers > 0 || level.up_transformers > 0;
    // Joined channels, normalised in float32 and back; or the gated feed-forward's.
    widest = std::max(widest, positions * std::max<Bytes>(4 * (below + level.channels),
                                                          attends ? 14 * level.channels : 0));
  }
  return batch * (skipped + widest) * element_size(plan);
}

}  // namespace

ActorMemory unet_memory(const Plan& plan, const spec::ModelSpec& model, int rank) {
  const mesh::Mesh mesh(plan.degrees);
  const auto at = mesh.coordinates(rank);
  const auto& facts = model.transformer;
  const auto& unet = *facts.unet();
  const Bytes images = plan.images[at.dp].end - plan.images[at.dp].begin;
  const Bytes batch = images * plan.branches_per_actor();
  const Bytes size = element_size(plan);
  const int sequence = mesh::sequence_rank(plan.degrees, at);
  const UNetShares shares(plan, unet);
  ActorMemory own;
  own.weights = spec::kept_bytes(facts, {.last_block = 1, .embeds = true, .projects = true}, size,
                                 plan.request.weight_dtype != WeightChoice::as_computed);
  Bytes text = facts.pooled_width;
  for (const auto width : spec::text_attentions(unet))
    text += 2 * facts.caption_tokens(plan.request.max_sequence_length) * width;
  own.kv = batch * text * size + kept_bytes(plan, shares, batch);
  const auto& rows = plan.micro_steps.front().of_rank[sequence];
  // What the inner layers put out last, and what steps are compared by.
  if (plan.request.step_cache != StepCacheRule::none)
    own.kv += batch * Bytes(rows.end - rows.begin) * plan.latent_width *
              (unet.inner_channels() + unet.levels.front().channels) * size;
  own.activations = activation_bytes(plan, unet, batch, rows.end - rows.begin) +
                    4 * images * plan.latent_channels * plan.latent_height * plan.latent_width * 4;
  // One attention's keys and values of everybody, while a synchronous step computes it.
  Bytes gathered = 0;
  for (const auto& site : shares.sites()) {
    Bytes one = 0;
    for (int patch = 0; site.kind == Kind::attention && patch < shares.patches(); ++patch)
      one += shares.bytes(site, patch, batch);
    gathered = std::max(gathered, one);
  }
  if (plan.degrees.sp() > 1 && plan.request.exchange != PatchExchange::naive)
    own.activations += gathered;
  return own;
}

}  // namespace troupe::plan
