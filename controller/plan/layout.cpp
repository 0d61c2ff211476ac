#include "controller/plan/layout.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "base/format.h"
#include "base/text.h"
#include "controller/plan/request_defaults.h"
#include "controller/plan/request_rules.h"
#include "transport/wire/prompt_rows.h"

namespace troupe::plan {

namespace {

int size_of(const wire::RowRange& run) {
  return run.end - run.begin;
}

/// Returns the number of items of the first `first` of `parts` parts, as split_evenly makes them.
int first_parts(int count, int parts, int first) {
  return first * (count / parts) + std::min(first, count % parts);
}

/// Returns the part-th run of a run of rows.
wire::RowRange part_of(const wire::RowRange& rows, int parts, int part) {
  return {rows.begin + first_parts(size_of(rows), parts, part),
          rows.begin + first_parts(size_of(rows), parts, part + 1)};
}

}  // namespace

Layout layout_of(Method method, const std::vector<wire::RowRange>& patches, int ring, int ulysses) {
  Layout layout;
  layout.whole.assign(ring * ulysses, 0);
  const int count = static_cast<int>(patches.size());
  const bool waves = method == Method::distrifusion;
  const int micro_steps = waves ? (count + ring - 1) / ring : count;
  for (int micro = 0; micro < micro_steps; ++micro) {
    std::vector<wire::RowRange> shares;
    std::vector<bool> busy;
    for (int r = 0; r < ring; ++r) {
      const int patch = waves ? micro * ring + r : micro;
      busy.push_back(patch < count);
      for (int u = 0; u < ulysses; ++u) {
        if (patch >= count) {
          shares.push_back({0, 0});
        } else if (waves) {
          shares.push_back(part_of(patches[patch], ulysses, u));
        } else {
          shares.push_back(part_of(patches[patch], ring * ulysses, r * ulysses + u));
        }
        layout.whole[r * ulysses + u] += size_of(shares.back());
      }
    }
    layout.shares.push_back(std::move(shares));
    layout.busy.push_back(std::move(busy));
  }
  return layout;
}

std::vector<LeadRows> lead_rows(Method method, const std::vector<wire::RowRange>& patches, int ring,
                                int ulysses) {
  std::vector<LeadRows> micro_steps;
  const bool waves = method == Method::distrifusion;
  const int together = waves ? ring : 1;
  const int parts = waves ? ulysses : ring * ulysses;
  const int count = static_cast<int>(patches.size());
  for (int first = 0; first < count; first += together) {
    const int rows = size_of(patches[first]);
    const int last = std::min(count, first + together) - 1;
    micro_steps.push_back({first_parts(rows, parts, 1), first_parts(rows, parts, ulysses),
                           patches[last].end - patches[first].begin});
  }
  return micro_steps;
}

int heads_of(int heads, const mesh::Degrees& degrees, int tp_rank, int ulysses_rank) {
  const int own = size_of(part_of({0, heads}, degrees.tp, tp_rank));
  return size_of(part_of({0, own}, degrees.ulysses, ulysses_rank));
}

std::vector<wire::RowRange> split_evenly(int count, int parts) {
  std::vector<wire::RowRange> runs;
  int begin = 0;
  for (int part = 0; part < parts; ++part) {
    const int size = count / parts + (part < count % parts ? 1 : 0);
    runs.push_back({begin, begin + size});
    begin += size;
  }
  return runs;
}

std::vector<wire::RowRange> batch_parts(int batch, int pp, int most) {
  const int filling = pp == 1 ? 1 : std::min(batch, 2 * pp);
  return split_evenly(batch, std::max(filling, (batch + most - 1) / most));
}

std::vector<wire::RowRange> split_rows(int rows, int patches) {
  if (patches < 1) {
    refuse(JobField::num_pipeline_patch,
           fmt::format("`num_pipeline_patch` is {}: at least 1 is needed", patches));
  }
  if (patches > rows) {
    refuse(
        JobField::num_pipeline_patch,
        fmt::format("`num_pipeline_patch` is {}, but the picture has only {}: each patch needs one",
                    patches, counted(rows, "token row")));
  }
  return split_evenly(rows, patches);
}

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

namespace {

constexpr std::uint64_t kLengthBytes = 8;

}  // namespace

std::vector<int> encoder_places(const std::vector<double>& costs, int actors) {
  std::vector<std::size_t> order(costs.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::greater(), [&](std::size_t i) { return costs[i]; });
  std::vector<double> loads(static_cast<std::size_t>(actors));
  std::vector<int> places(costs.size());
  for (const auto encoder : order) {
    if (costs[encoder] <= 0) continue;
    const auto least = std::ranges::min_element(loads);
    *least += costs[encoder];
    places[encoder] = static_cast<int>(least - loads.begin());
  }
  return places;
}

double busiest_encoder(const std::vector<double>& costs, int actors) {
  const auto places = encoder_places(costs, actors);
  std::vector<double> loads(static_cast<std::size_t>(actors));
  for (std::size_t i = 0; i < costs.size(); ++i)
    loads[places[i]] += costs[i];
  return std::ranges::max(loads);
}

std::uint64_t caption_bytes(const Plan& plan, const spec::ModelSpec& model, int rank) {
  const int replica = plan.degrees.world() / plan.degrees.dp;
  const int dp = rank / replica;
  const auto& images = plan.images.at(dp);
  const auto element = element_bytes(plan.request.dtype);
  const auto length = prompt_tokens(plan.request, model);
  const auto& facts = model.transformer;
  if (rank == plan.text_rank(dp)) {
    const std::uint64_t rows = (images.end - images.begin) * (plan.guidance ? 2 : 1);
    const std::uint64_t values =
        facts.caption_tokens(length) * facts.caption_width + facts.pooled_width;
    return (replica - 1) * rows * (values * element + kLengthBytes);
  }
  if (!plan.encodes_text()) return 0;
  const auto rows = wire::prompt_rows(plan.request, images, plan.guidance).unique.size();
  const auto ranks = plan.encoder_ranks(dp);
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const auto& encoder = model.text_encoders[i];
    if (ranks[i] != rank || encoder.absent) continue;
    bytes += rows * (spec::output_shape(encoder, length).elements() * element + kLengthBytes);
  }
  return bytes;
}

namespace {

using Kind = spec::UNetSite::Kind;

/// Bytes at whose multiples patches' shares begin in a buffer (actors/parallel/patch_group.cpp).
constexpr std::uint64_t kAlignment = 16;

}  // namespace

UNetShares::UNetShares(const Plan& plan, const spec::UNetSpec& unet)
    : plan_(plan), sites_(spec::sites_of(unet)) {
  std::vector<std::int64_t> begins = {0};
  for (const auto& patch : plan.patches)
    begins.push_back(patch.end);
  std::int64_t width = plan.latent_width;
  for (std::size_t level = 0; level < unet.levels.size(); ++level) {
    begins_.push_back(begins);
    widths_.push_back(width);
    for (auto& begin : begins)
      begin = (begin + 1) / 2;
    width = (width + 1) / 2;
  }
}

UNetShares::Bytes UNetShares::bytes(const spec::UNetSite& site, int patch, Bytes batch) const {
  const auto& begins = begins_.at(site.level);
  const Bytes rows = begins[patch + 1] - begins[patch];
  const Bytes row = batch * site.width * widths_.at(site.level);
  switch (site.kind) {
    case Kind::conv:
      return rows > 0 ? 2 * row * element_size(plan_) : 0;
    case Kind::norm:
      return 2 * batch * site.width * 8;
    case Kind::attention:
      break;
  }
  return 2 * rows * row * element_size(plan_);
}

std::uint64_t element_size(const Plan& plan) {
  return element_bytes(plan.request.dtype);
}

std::uint64_t aligned(std::uint64_t bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

wire::RowRange patches_of(const Plan& plan, int sequence_rank) {
  return split_evenly(static_cast<int>(plan.patches.size()), plan.degrees.sp())[sequence_rank];
}

}  // namespace troupe::plan
