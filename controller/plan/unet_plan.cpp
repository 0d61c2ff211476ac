#include "controller/plan/unet_plan.h"

#include <algorithm>
#include <stdexcept>

#include "controller/plan/patches.h"

namespace troupe::plan {
namespace {

using Bytes = std::uint64_t;
using Kind = spec::UNetSite::Kind;

/// What patches' shares begin at in a buffer (actors/parallel/patch_group.cpp).
constexpr Bytes kAlignment = 16;

[[noreturn]] void refuse(const std::string& why) {
  throw std::invalid_argument("[plan] " + why);
}

Bytes element_size(const Plan& plan) {
  return plan.request.dtype == "float32" ? 4 : 2;
}

const char* name_of(Kind kind) {
  return kind == Kind::conv ? "convolution" : kind == Kind::norm ? "group norm" : "attention";
}

/// Rows of patches at each level, and what each layer tells of a patch.
class Patches {
 public:
  Patches(const Plan& plan, const spec::UNetSpec& unet)
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

  /// In model order.
  const std::vector<spec::UNetSite>& sites() const { return sites_; }
  std::int64_t width(int level) const { return widths_.at(level); }
  int count() const { return static_cast<int>(plan_.patches.size()); }

  Bytes bytes(const spec::UNetSite& site, int patch, Bytes batch) const {
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

 private:
  const Plan& plan_;
  std::vector<spec::UNetSite> sites_;
  std::vector<std::vector<std::int64_t>> begins_;  // by level
  std::vector<std::int64_t> widths_;
};

Bytes aligned(Bytes bytes) {
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

int sequence_rank(const mesh::Degrees& degrees, const mesh::Coordinates& at) {
  return at.ring * degrees.ulysses + at.ulysses;
}

/// The patches of a sequence rank.
wire::RowRange patches_of(const Plan& plan, int sequence_rank) {
  return split_evenly(static_cast<int>(plan.patches.size()), plan.degrees.sp())[sequence_rank];
}

bool ever_stale(const Plan& plan) {
  return plan.patches.size() > 1 && plan.synchronous_steps < plan.request.steps;
}

/// The first convolution's rows are of this step in every step; norms are kept where their mode
/// uses older ones.
bool is_kept(const Plan& plan, const spec::UNetSite& site, bool first) {
  if (site.kind == Kind::norm)
    return plan.request.group_norm == "corrected" || plan.request.group_norm == "stale";
  return !first;
}

Bytes kept_bytes(const Plan& plan, const Patches& patches, Bytes batch) {
  if (!ever_stale(plan)) return 0;
  // In the last step nothing is told any more; told values arrive in one of two sets of buffers.
  const bool told =
      plan.request.exchange == "stale" && plan.request.steps - plan.synchronous_steps > 1;
  Bytes kept = 0;
  for (std::size_t i = 0; i < patches.sites().size(); ++i) {
    const auto& site = patches.sites()[i];
    if (!is_kept(plan, site, i == 0)) continue;
    for (int patch = 0; patch < patches.count(); ++patch) {
      const Bytes bytes = patches.bytes(site, patch, batch);
      if (!told || plan.degrees.sp() == 1) {
        kept += bytes;
        continue;
      }
      kept += 2 * aligned(bytes);
    }
  }
  return kept;
}

/// Skipped feature maps of the way down, and the widest layer's own: an upper estimate for `rows`
/// of the latents.
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

/// Whether a step's layer is gathered at once (of this step), told for the next one, or neither.
enum class Telling { now, later, never };

Telling telling_of(const Plan& plan, const spec::UNetSite& site, bool first, int step) {
  if (plan.patches.size() < 2) return Telling::never;
  if (plan.is_whole(step)) return Telling::now;
  if (site.kind == Kind::conv && first) return Telling::now;
  if (site.kind == Kind::norm && plan.request.group_norm == "synchronous") return Telling::now;
  if (site.kind == Kind::norm && plan.request.group_norm == "separate") return Telling::never;
  const bool last = step + 1 == plan.request.steps;
  return plan.request.exchange == "stale" && !last ? Telling::later : Telling::never;
}

/// What a rank tells other patches in one step.
struct Told {
  Bytes sent = 0;  // with what lies between them in a buffer
  std::map<std::string, Bytes> by_layer;
};

Told told_in(const Plan& plan, const Patches& patches, int rank, int step) {
  const auto at = mesh::Mesh(plan.degrees).coordinates(rank);
  const Bytes batch =
      Bytes(plan.images[at.dp].end - plan.images[at.dp].begin) * plan.branches_per_actor();
  const auto own = patches_of(plan, sequence_rank(plan.degrees, at));
  const Bytes others = plan.degrees.sp() - 1;
  Told told;
  for (std::size_t i = 0; others > 0 && i < patches.sites().size(); ++i) {
    const auto& site = patches.sites()[i];
    const auto telling = telling_of(plan, site, i == 0, step);
    if (telling == Telling::never) continue;
    for (int patch = own.begin; patch < own.end; ++patch) {
      const Bytes bytes = patches.bytes(site, patch, batch);
      told.sent += others * (telling == Telling::later ? aligned(bytes) : bytes);
      told.by_layer[name_of(site.kind)] += others * bytes;
    }
  }
  return told;
}

/// Steps in which the same is told: by the first of each kind.
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

RankTraffic traffic_of(const Plan& plan, const spec::ModelSpec& model, const Patches& patches,
                       int rank) {
  const mesh::Mesh mesh(plan.degrees);
  const auto at = mesh.coordinates(rank);
  const auto& facts = model.transformer;
  const Bytes images = plan.images[at.dp].end - plan.images[at.dp].begin;
  const int sequence = sequence_rank(plan.degrees, at);
  RankTraffic traffic;
  for (const auto& kind : step_kinds(plan)) {
    const auto told = told_in(plan, patches, rank, kind.first);
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
    traffic.sent["caption"] += listeners * encoded_picture_bytes(plan);
  if (rank == plan.text_rank(at.dp)) {
    const Bytes values =
        facts.caption_tokens(plan.request.max_sequence_length) * facts.caption_width +
        facts.pooled_width;
    traffic.sent["caption"] +=
        listeners * images * (plan.guidance ? 2 : 1) * (values * element_size(plan) + 8);
  }
  std::erase_if(traffic.sent, [](const auto& entry) { return entry.second == 0; });
  std::erase_if(traffic.by_layer, [](const auto& entry) { return entry.second == 0; });
  return traffic;
}

void check_unet(const Plan& plan) {
  const auto& request = plan.request;
  const auto& degrees = plan.degrees;
  if (degrees.pp > 1) {
    refuse("pp is " + std::to_string(degrees.pp) +
           ", but this model is a U-Net: its levels feed later ones across the whole depth, so it "
           "is not split into stages; --ulysses or --ring share its rows");
  }
  if (degrees.tp > 1) {
    refuse("tp is " + std::to_string(degrees.tp) +
           ", but this model is a U-Net, whose weights are not split over actors; --ulysses or "
           "--ring share its rows");
  }
  if (!request.weight_dtype.empty()) {
    refuse(
        "weight dtype is " + request.weight_dtype +
        ", but this model is a U-Net, most of whose work is convolutions: only transformers keep "
        "their products' weights in 8 bits");
  }
  if (request.method == "pipefusion") {
    refuse(
        "method is pipefusion, but this model is a U-Net, which has no stages: exact or "
        "distrifusion");
  }
  if (request.kv != "stale") {
    refuse("kv is " + request.kv +
           ", but this model is a U-Net: what is not fresh is used as it is (stale)");
  }
  if (request.method != "distrifusion") {
    if (request.group_norm != "corrected")
      refuse("group norm is " + request.group_norm +
             " with method exact: all of a picture's moments are used there; other modes need "
             "method distrifusion");
    if (request.exchange != "stale")
      refuse("exchange is " + request.exchange + " with method exact: it needs distrifusion");
    return;
  }
  if (request.num_pipeline_patch > 1 && request.warmup_steps < 1)
    refuse(
        "warmup is 0, but a U-Net's patches use what their neighbours had in the step before: the "
        "first step is synchronous");
  if (request.exchange == "none" && request.group_norm == "synchronous")
    refuse("exchange is none, but group norm synchronous exchanges moments in every step");
}

}  // namespace

void check_network(const Plan& plan, const spec::ModelSpec& model) {
  if (model.transformer.unet()) return check_unet(plan);
  if (plan.request.group_norm != "corrected")
    refuse("group norm is " + plan.request.group_norm +
           ", but this model is a transformer: it has no group norms over the picture");
  if (plan.request.exchange != "stale")
    refuse("exchange is " + plan.request.exchange +
           ", but this model is a transformer: only a U-Net's patches have that choice");
}

void set_unet_patches(Plan& plan) {
  auto& request = plan.request;
  const int ranks = plan.degrees.sp();
  const bool exact = request.method == "exact";
  const int patches = exact ? ranks : request.num_pipeline_patch;
  if (exact && ranks > plan.latent_height) {
    refuse("ulysses × ring is " + std::to_string(ranks) + ", but the picture has only " +
           std::to_string(plan.latent_height) + " rows of latents: each actor needs one");
  }
  if (patches < ranks) {
    refuse("patches is " + std::to_string(patches) + ", but ulysses × ring is " +
           std::to_string(ranks) + ": each of these actors needs a patch of a U-Net");
  }
  plan.patches = split_rows(static_cast<int>(plan.latent_height), patches);
  wire::RowShares shares;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto own = patches_of(plan, rank);
    shares.of_rank.push_back({plan.patches[own.begin].begin, plan.patches[own.end - 1].end});
  }
  plan.micro_steps = {shares};
  const bool all = exact || patches == 1 || request.exchange == "all";
  plan.synchronous_steps = all ? request.steps : request.warmup_steps;
}

ActorMemory unet_memory(const Plan& plan, const spec::ModelSpec& model, int rank) {
  const mesh::Mesh mesh(plan.degrees);
  const auto at = mesh.coordinates(rank);
  const auto& facts = model.transformer;
  const auto& unet = *facts.unet();
  const Bytes images = plan.images[at.dp].end - plan.images[at.dp].begin;
  const Bytes batch = images * plan.branches_per_actor();
  const Bytes size = element_size(plan);
  const int sequence = sequence_rank(plan.degrees, at);
  const Patches patches(plan, unet);
  ActorMemory own;
  own.weights = size * spec::kept_elements(facts, {.first_block = 0,
                                                   .last_block = 1,
                                                   .embeds = true,
                                                   .projects = true,
                                                   .shard = 0,
                                                   .shards = 1});
  Bytes text = facts.pooled_width;
  for (const auto width : spec::text_attentions(unet))
    text += 2 * facts.caption_tokens(plan.request.max_sequence_length) * width;
  own.kv = batch * text * size + kept_bytes(plan, patches, batch);
  const auto& rows = plan.micro_steps.front().of_rank[sequence];
  own.activations = activation_bytes(plan, unet, batch, rows.end - rows.begin) +
                    4 * images * plan.latent_channels * plan.latent_height * plan.latent_width * 4;
  // One attention's keys and values of everybody, while a synchronous step computes it.
  Bytes gathered = 0;
  for (const auto& site : patches.sites()) {
    Bytes one = 0;
    for (int patch = 0; site.kind == Kind::attention && patch < patches.count(); ++patch)
      one += patches.bytes(site, patch, batch);
    gathered = std::max(gathered, one);
  }
  if (plan.degrees.sp() > 1) own.activations += gathered;
  return own;
}

std::vector<RankTraffic> unet_traffic(const Plan& plan, const spec::ModelSpec& model) {
  const Patches patches(plan, *model.transformer.unet());
  std::vector<RankTraffic> all;
  for (int rank = 0; rank < plan.degrees.world(); ++rank)
    all.push_back(traffic_of(plan, model, patches, rank));
  return all;
}

std::vector<StepTraffic> unet_step_traffic(const Plan& plan, const spec::ModelSpec& model,
                                           int rank) {
  const Patches patches(plan, *model.transformer.unet());
  std::vector<StepTraffic> all;
  for (const auto& kind : step_kinds(plan)) {
    if (plan.degrees.sp() > 1)
      all.push_back({kind.name, kind.count, told_in(plan, patches, rank, kind.first).by_layer});
  }
  return all;
}

}  // namespace troupe::plan
