#include "controller/plan/groups.h"

#include <algorithm>

namespace troupe::plan {
namespace {

/// Returns the ranks as text; of many ranks only some of the first, the last and their number.
/// Groups of a kind differ in their first rank, and a name on the tensor plane has 255 bytes at
/// most.
std::string ranks_text(const std::vector<int>& ranks, const char* between) {
  constexpr std::size_t kMost = 32;
  const bool many = ranks.size() > kMost;
  std::string text;
  for (std::size_t i = 0; i < (many ? 3 : ranks.size()); ++i)
    text.append(text.empty() ? "" : between).append(std::to_string(ranks[i]));
  if (!many) return text;
  text.append(between).append("…").append(between).append(std::to_string(ranks.back()));
  return text.append(" (").append(std::to_string(ranks.size())).append(")");
}

}  // namespace

void set_groups(Plan& plan, const spec::ModelSpec& model) {
  const mesh::Mesh mesh(plan.degrees);
  const auto add = [&](GroupPlan::Role role, const std::string& kind, std::vector<int> ranks,
                       const char* between, std::int64_t channels = 0) {
    const auto id = static_cast<std::uint32_t>(plan.groups.size() + 1);
    plan.groups.push_back(
        {id, role, kind + " " + ranks_text(ranks, between), std::move(ranks), channels});
  };
  const auto add_axis = [&](GroupPlan::Role role, mesh::Axis axis) {
    for (auto& ranks : mesh.groups(axis)) {
      if (ranks.size() > 1) add(role, mesh::to_string(axis), std::move(ranks), ",");
    }
  };
  const auto& degrees = plan.degrees;
  const int replica = degrees.world() / degrees.dp;
  const int line = degrees.sp() * degrees.tp;  // ranks of a stage and branch
  for (int dp = 0; dp < degrees.dp; ++dp) {
    std::vector<int> all;
    for (int i = 0; i < replica; ++i)
      all.push_back(dp * replica + i);
    if (replica > 1) add(GroupPlan::Role::caption, "caption", all, ",");
    const int first = mesh.rank({.dp = dp});
    for (int place = 0; place < line * degrees.cfg; ++place) {
      const int branch = place / line * (replica / degrees.cfg);
      const auto stages = mesh.group_of(mesh::Axis::pp, first + branch + place % line);
      for (std::size_t i = 0; i + 1 < stages.size(); ++i)
        add(GroupPlan::Role::edge, "edge", {stages[i], stages[i + 1]}, "→");
      for (std::size_t i = 0; i < stages.size(); ++i) {
        for (std::size_t j = i + 2; j < stages.size(); ++j) {
          const auto channels =
              model.transformer.skip_width(plan.stages[i].first_block, plan.stages[i].last_block,
                                           plan.stages[j].first_block, plan.stages[j].last_block);
          if (channels > 0)
            add(GroupPlan::Role::skip, "skip edge", {stages[i], stages[j]}, "→", channels);
        }
      }
      if (stages.size() > 1) {
        add(GroupPlan::Role::feedback, "feedback edge", {stages.back(), stages.front()}, "→");
      }
    }
    const int last = mesh.rank({.dp = dp, .pp = degrees.pp - 1});
    for (int place = 0; degrees.cfg > 1 && place < line; ++place)
      add(GroupPlan::Role::cfg, "cfg", mesh.group_of(mesh::Axis::cfg, last + place), ",");
    auto rows = plan.decoders(dp);
    if (rows.size() > 1) add(GroupPlan::Role::vae, "vae", rows, ",");
    for (const int holder : plan.latent_holders(dp)) {
      if (std::find(rows.begin(), rows.end(), holder) == rows.end()) rows.push_back(holder);
    }
    if (rows.size() > 1) add(GroupPlan::Role::rows, "rows", rows, ",");
  }
  if (model.transformer.unet()) return add_axis(GroupPlan::Role::stage, mesh::Axis::stage);
  add_axis(GroupPlan::Role::ulysses, mesh::Axis::ulysses);
  add_axis(GroupPlan::Role::ring, mesh::Axis::ring);
  add_axis(GroupPlan::Role::tp, mesh::Axis::tp);
  add_axis(GroupPlan::Role::heads, mesh::Axis::heads);
  add_axis(GroupPlan::Role::stage, mesh::Axis::stage);
}

int Plan::text_rank(int dp) const {
  return mesh::Mesh(degrees).rank({.dp = dp});
}

std::vector<int> Plan::encoder_ranks(int dp) const {
  auto ranks = encoder_places;
  for (int& rank : ranks)
    rank += dp * (degrees.world() / degrees.dp);
  return ranks;
}

int Plan::decode_rank(int dp) const {
  return mesh::Mesh(degrees).rank({.dp = dp, .pp = degrees.pp - 1});
}

std::vector<int> Plan::latent_holders(int dp) const {
  const mesh::Mesh mesh(degrees);
  return mesh.group_of(mesh::Axis::sp, mesh.rank({.dp = dp, .pp = degrees.pp - 1}));
}

std::vector<int> Plan::decoders(int dp) const {
  // First those that hold latents anyway, then the others from the last rank back.
  auto ranks = latent_holders(dp);
  const int replica = degrees.world() / degrees.dp;
  std::vector<bool> holds(static_cast<std::size_t>(replica));
  for (const int rank : ranks)
    holds[rank - dp * replica] = true;
  for (int place = replica - 1; place >= 0 && static_cast<int>(ranks.size()) < vae_degree;
       --place) {
    if (!holds[place]) ranks.push_back(dp * replica + place);
  }
  ranks.resize(vae_degree);
  return ranks;
}

const char* to_string(GroupPlan::Role role) {
  constexpr const char* kNames[] = {"caption", "edge",  "feedback", "cfg",  "ulysses", "ring",
                                    "tp",      "heads", "stage",    "rows", "vae",     "skip"};
  return kNames[static_cast<int>(role)];
}

const GroupPlan* Plan::group_with(GroupPlan::Role role, int rank, int position) const {
  for (const auto& group : groups) {
    if (group.role != role) continue;
    if (position >= 0
            ? group.ranks.at(position) == rank
            : std::find(group.ranks.begin(), group.ranks.end(), rank) != group.ranks.end()) {
      return &group;
    }
  }
  return nullptr;
}

}  // namespace troupe::plan
