#include "controller/jobs/begin_message.h"

#include <algorithm>

namespace troupe::jobs {

wire::BeginJob begin_message(const JobEntry& job, const std::string& name,
                             const cluster::Deployment& deployment, int rank) {
  using Role = plan::GroupPlan::Role;
  const auto& plan = job.plan;
  const mesh::Mesh mesh(plan.degrees);
  const auto at = mesh.coordinates(rank);
  wire::BeginJob begin;
  begin.job = job.id;
  begin.name = name;
  begin.deployment = deployment.id;
  begin.epoch = deployment.epoch;
  begin.request = plan.request;
  begin.first_image = plan.images[at.dp].begin;
  begin.last_image = plan.images[at.dp].end;
  const auto& degrees = plan.degrees;
  begin.stage = {at.pp, degrees.pp};
  begin.cfg = {at.cfg, degrees.cfg};
  begin.ring = {at.ring, degrees.ring};
  begin.ulysses = {at.ulysses, degrees.ulysses};
  begin.tp = {at.tp, degrees.tp};
  for (int step = 0; step < plan.request.steps; ++step)
    begin.steps.push_back(plan.step_kind(step));
  begin.micro_steps = plan.micro_steps;
  begin.batch_parts = plan.batch_parts[at.dp];
  begin.decode_parts = plan.decode_parts[at.dp];
  begin.sampler_steps = plan.sampler_steps;
  begin.skipped_steps = plan.skipped_steps;
  begin.keep_encoders = deployment.encoders.at(static_cast<std::size_t>(rank)) > 0;
  begin.vae = {0, 0};
  const auto position = [](const std::vector<int>& ranks, int of) {
    const auto found = std::find(ranks.begin(), ranks.end(), of);
    return found == ranks.end() ? -1 : static_cast<std::int32_t>(found - ranks.begin());
  };
  const auto id_of = [&](Role role, int where = -1) {
    const auto* group = plan.group_with(role, rank, where);
    return group ? group->id : 0;
  };
  if (const auto* group = plan.group_with(Role::caption, rank, -1)) {
    begin.caption_rank = position(group->ranks, rank);
    begin.caption_root = position(group->ranks, plan.text_rank(at.dp));
    for (const int encoder : plan.encoder_ranks(at.dp))
      begin.encoder_ranks.push_back(position(group->ranks, encoder));
    begin.image_root = position(group->ranks, plan.decode_rank(at.dp));
  }
  begin.encoder_ranks.resize(plan.encoder_places.size());  // without a group it is this one
  const auto decoders = plan.decoders(at.dp);
  if (const auto own = position(decoders, rank); own >= 0)
    begin.vae = {own, static_cast<std::int32_t>(decoders.size())};
  if (const auto* group = plan.group_with(Role::rows, rank, -1)) {
    begin.row_rank = position(group->ranks, rank);
    begin.row_decoders = static_cast<std::int32_t>(decoders.size());
    for (const int holder : plan.latent_holders(at.dp))
      begin.row_holders.push_back(position(group->ranks, holder));
  }
  const bool first = at.pp == 0;
  const bool last = at.pp + 1 == degrees.pp;
  begin.groups = {.caption = id_of(Role::caption),
                  .previous = id_of(first ? Role::feedback : Role::edge, 1),
                  .next = id_of(last ? Role::feedback : Role::edge, 0),
                  .cfg = id_of(Role::cfg),
                  .ulysses = id_of(Role::ulysses),
                  .ring = id_of(Role::ring),
                  .tp = id_of(Role::tp),
                  .heads = id_of(Role::heads),
                  .stage = id_of(Role::stage),
                  .rows = id_of(Role::rows),
                  .vae = id_of(Role::vae),
                  .skips_from = {},
                  .skips_to = {}};
  for (const auto& group : plan.groups) {
    if (group.role != Role::skip) continue;
    // A plan has them by sender, then by receiver.
    const int sender = group.ranks[0], receiver = group.ranks[1];
    auto& from = begin.groups.skips_from;
    if (receiver == rank)
      from.insert(from.begin(), {group.id, mesh.coordinates(sender).pp, group.channels});
    if (sender == rank)
      begin.groups.skips_to.push_back({group.id, mesh.coordinates(receiver).pp, group.channels});
  }
  if (const auto& boundary = job.course.boundary) {
    begin.first_step = boundary->next_step;
    for (const auto& piece : boundary->pieces) {
      if (piece.first_image < begin.last_image && begin.first_image < piece.last_image)
        begin.boundary.push_back(piece);
    }
  }
  return begin;
}

}  // namespace troupe::jobs
