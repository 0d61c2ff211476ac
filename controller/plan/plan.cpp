#include "controller/plan/plan.h"

#include <algorithm>
#include <stdexcept>

#include "controller/plan/around.h"
#include "controller/plan/layout.h"
#include "controller/plan/memory.h"
#include "controller/plan/patches.h"
#include "controller/plan/request_check.h"
#include "controller/plan/shape.h"
#include "controller/plan/unet_plan.h"
#include "models/spec/number_text.h"
#include "models/spec/resolution_bins.h"
#include "models/spec/scheduler_config.h"
#include "models/spec/step_cache.h"

namespace troupe::plan {
namespace {

constexpr std::int64_t kMostActors = 1024;

[[noreturn]] void refuse(const std::string& why) {
  throw std::invalid_argument("[plan] " + why);
}

/// Sizes of any number of pixels are taken: what is computed is the bin's size.
void bin_size(Plan& plan, const spec::ModelSpec& model) {
  auto& request = plan.request;
  for (const auto& [field, pixels] :
       {std::pair{"height", request.height}, std::pair{"width", request.width}}) {
    if (pixels < 1 || pixels > 16384) {
      refuse(std::string(field) + " is " + std::to_string(pixels) +
             ": from 1 to 16384 under resolution binning");
    }
  }
  const auto binning = spec::binning_of(model.pipeline_class);
  if (!binning)
    refuse("resolution_binning is on, but " + model.pipeline_class + " has no bins of its own");
  const std::int64_t sample_size = model.transformer.sample_size;
  const bool by_ratio = binning == spec::Binning::ratios;
  if (by_ratio && sample_size != 32 && sample_size != 64 && sample_size != 128 &&
      sample_size != 256) {
    refuse("resolution_binning is on, but the transformer's sample_size is " +
           std::to_string(sample_size) + ": there are bins for 32, 64, 128 and 256");
  }
  const spec::PixelSize wanted{request.height, request.width};
  const auto bin = by_ratio ? spec::nearest_bin(sample_size, wanted) : spec::nearest_shape(wanted);
  request.height = static_cast<std::int32_t>(bin.height);
  request.width = static_cast<std::int32_t>(bin.width);
  if (by_ratio || bin == wanted) return;
  request.output_height = request.height;
  request.output_width = request.width;
  plan.warnings.push_back("the picture comes out at " + std::to_string(bin.width) + " x " +
                          std::to_string(bin.height) +
                          ": this model's pipeline does not bring it back to the size asked for");
}

void set_text(Plan& plan, const spec::ModelSpec& model) {
  auto& request = plan.request;
  if (request.max_sequence_length == 0)
    request.max_sequence_length = static_cast<std::int32_t>(model.text_tokens);
  const auto fixed = model.transformer.fixed_text_tokens;
  if (fixed > 0 && request.max_sequence_length != fixed) {
    refuse("max sequence length is " + std::to_string(request.max_sequence_length) +
           ": this model takes " + std::to_string(fixed) + " only");
  }
  if (request.clean_caption && !model.pixart_customs)
    refuse("clean_caption is on, but " + model.pipeline_class + " takes prompts as they are");
  if (model.transformer.guidance == spec::GuidanceKind::none && request.guidance_scale > 1)
    plan.warnings.push_back("this model was distilled without guidance: the scale changes nothing");
  if (model.transformer.guidance != spec::GuidanceKind::branches &&
      !request.negative_prompt.empty())
    plan.warnings.push_back(
        "this model computes no negative branch: the negative prompt is unused");
}

void set_frames(wire::ImageRequest& request, const spec::ModelSpec& model) {
  constexpr int kMost = 4097;
  if (!model.makes_videos()) {
    if (request.num_frames > 1) {
      refuse("frames is " + std::to_string(request.num_frames) + ", but " + model.pipeline_class +
             " makes pictures");
    }
    request.num_frames = 1;
    return;
  }
  if (request.num_frames == 0)
    request.num_frames = static_cast<std::int32_t>(model.transformer.sample_frames);
  const std::int64_t unit = model.video_vae->frame_factor();
  if ((request.num_frames - 1) % unit != 0 || request.num_frames > kMost) {
    refuse("frames is " + std::to_string(request.num_frames) + ": this model takes multiples of " +
           std::to_string(unit) + " and one more, up to " + std::to_string(kMost));
  }
  if (request.vae_tiling) refuse("vae_tiling is on, but videos are decoded whole");
  if (request.init_image_bytes > 0 || request.init_image_blob != 0)
    refuse("there is a picture to start from, but this model makes videos from text alone");
}

void set_size(Plan& plan, const spec::ModelSpec& model) {
  const std::int64_t scale = model.vae.scale_factor();
  const std::int64_t patch = model.transformer.patch_size;
  const std::int64_t unit = model.pixel_multiple();
  auto& request = plan.request;
  if (request.height == 0) request.height = static_cast<std::int32_t>(model.default_size());
  if (request.width == 0) request.width = static_cast<std::int32_t>(model.default_width());
  request.output_height = request.height;
  request.output_width = request.width;
  if (request.resolution_binning) bin_size(plan, model);
  for (const auto& [field, pixels] :
       {std::pair{"height", request.height}, std::pair{"width", request.width}}) {
    if (pixels < unit || pixels % unit != 0 || pixels > 16384) {
      refuse(std::string(field) + " is " + std::to_string(pixels) +
             ": this model takes multiples of " + std::to_string(unit) + " from " +
             std::to_string(unit) + " to 16384");
    }
  }
  set_frames(request, model);
  const std::int64_t frames = model.latent_frames(request.num_frames);
  plan.latent_channels = model.transformer.in_channels;
  plan.latent_height = frames * request.height / scale;
  plan.latent_width = request.width / scale;
  plan.token_rows = plan.latent_height / patch;
  plan.token_columns = plan.latent_width / patch;
  const std::int64_t most = model.transformer.most_tokens_a_side;
  for (const auto& [field, tokens] :
       {std::pair{"height", plan.token_rows / frames}, std::pair{"width", plan.token_columns}}) {
    if (most > 0 && tokens > most) {
      refuse(std::string(field) + " is " + std::to_string(tokens * unit) +
             ": this model has positions for up to " + std::to_string(most * unit));
    }
  }
}

/// Before anything is made of that size.
void check_world(const mesh::Degrees& degrees) {
  std::int64_t world = 1;
  for (const auto& [name, degree] :
       {std::pair{"dp", degrees.dp}, std::pair{"cfg", degrees.cfg}, std::pair{"pp", degrees.pp},
        std::pair{"ring", degrees.ring}, std::pair{"ulysses", degrees.ulysses},
        std::pair{"tp", degrees.tp}}) {
    if (degree > kMostActors || (degree > 0 && (world *= degree) > kMostActors)) {
      refuse(std::string(name) + " is " + std::to_string(degree) + ": dp × cfg × pp × ring × " +
             "ulysses × tp may be at most " + std::to_string(kMostActors) + " actors");
    }
  }
}

void set_mesh(Plan& plan, const spec::ModelSpec& model, const wire::Parallelism& parallelism) {
  plan.degrees = {.dp = parallelism.dp,
                  .cfg = parallelism.cfg,
                  .pp = parallelism.pp,
                  .ring = parallelism.ring,
                  .ulysses = parallelism.ulysses,
                  .tp = parallelism.tp};
  check_world(plan.degrees);
  const mesh::Mesh mesh(plan.degrees);
  plan.guidance = model.has_branches(plan.request.guidance_scale);
  if (plan.degrees.cfg == 2 && model.transformer.guidance != spec::GuidanceKind::branches) {
    refuse(std::string("cfg is 2, but this model ") +
           (model.transformer.guidance == spec::GuidanceKind::embedded
                ? "takes the guidance scale as an input"
                : "was distilled without guidance") +
           ": there is no second branch to compute");
  }
  if (plan.degrees.cfg == 2 && !plan.guidance) {
    refuse("cfg is 2, but guidance is " + spec::number_text(plan.request.guidance_scale) +
           ": there is no second branch to compute unless guidance is above 1");
  }
  const int pictures =
      static_cast<int>(plan.request.prompts.size()) * plan.request.images_per_prompt;
  if (plan.degrees.dp > pictures) {
    refuse("dp is " + std::to_string(plan.degrees.dp) + ", but there " +
           (pictures == 1 ? "is only 1 picture"
                          : "are only " + std::to_string(pictures) + " pictures") +
           " to split (prompts × n)");
  }
  plan.images = split_evenly(pictures, plan.degrees.dp);
  for (const auto& images : plan.images) {
    const int batch = (images.end - images.begin) * plan.branches_per_actor();
    plan.batch_parts.push_back(batch_parts(batch, plan.degrees.pp));
  }
}

void set_stages(Plan& plan, const spec::ModelSpec& model, const wire::Parallelism& parallelism) {
  if (model.transformer.unet() && !parallelism.stages.empty())
    refuse("stages are given, but this model is a U-Net, which is not split into stages");
  const auto blocks = static_cast<int>(model.transformer.num_layers);
  const auto tokens = static_cast<double>(plan.token_rows * plan.token_columns);
  plan.stages =
      parallelism.stages.empty()
          ? split_blocks(block_costs(shape_of(model, plan.request), tokens), plan.degrees.pp)
          : listed_stages(parallelism.stages, plan.degrees.pp, blocks);
  plan.vae_degree = parallelism.vae;
  const int replica = plan.degrees.world() / plan.degrees.dp;
  if (plan.vae_degree < 1 || plan.vae_degree > replica) {
    refuse("vae-parallel is " + std::to_string(plan.vae_degree) +
           ": a replica of this mesh has 1 to " + std::to_string(replica) + " actors");
  }
  const auto rows = plan.latent_height / model.latent_frames(plan.request.num_frames);
  if (plan.vae_degree > rows) {
    refuse("vae-parallel is " + std::to_string(plan.vae_degree) + ", but the latents have only " +
           std::to_string(rows) + " rows to split");
  }
}

void set_shares(Plan& plan) {
  const auto layout =
      layout_of(plan.request.method, plan.patches, plan.degrees.ring, plan.degrees.ulysses);
  for (const auto& shares : layout.shares)
    plan.micro_steps.push_back({shares});
}

void check_refill_steps(const wire::ImageRequest& request) {
  int before = request.warmup_steps - 1;
  for (const int step : request.refill_steps) {
    if (request.method == "exact" && request.step_cache.empty())
      refuse(
          "refill steps need method pipefusion or distrifusion, or a step cache: else exact keeps "
          "nothing from step to step");
    if (step <= before || step >= request.steps) {
      refuse("refill step " + std::to_string(step) +
             " is out of place: after the warm-up, before the last of " +
             std::to_string(request.steps) + " steps has ended, in order, each once");
    }
    before = step;
  }
}

void check_warmup(const wire::ImageRequest& request) {
  if (request.warmup_steps <= request.steps) return;
  refuse("warmup is " + std::to_string(request.warmup_steps) + ", but there " +
         (request.steps == 1 ? "is only 1 step"
                             : "are only " + std::to_string(request.steps) + " steps"));
}

void set_step_cache(wire::ImageRequest& request, const spec::ModelSpec& model) {
  if (request.step_cache.empty()) return;
  if (model.transformer.unet()) {
    refuse("step cache is " + request.step_cache +
           ", but this model is a U-Net: it has no row of blocks to skip");
  }
  if (request.step_cache_threshold == 0)
    request.step_cache_threshold = spec::default_cache_threshold(request.step_cache);
}

void set_patches(Plan& plan, const spec::ModelSpec& model) {
  auto& request = plan.request;
  if (request.method == "exact") request.warmup_steps = 0;
  check_refill_steps(request);
  if (model.transformer.unet()) {
    check_warmup(request);
    return set_unet_patches(plan);
  }
  if (request.method == "exact") {
    plan.patches = split_rows(static_cast<int>(plan.token_rows), 1);
    set_shares(plan);
    plan.synchronous_steps = request.steps;
    return;
  }
  plan.patches = split_rows(static_cast<int>(plan.token_rows), request.num_pipeline_patch);
  set_shares(plan);
  plan.synchronous_steps = std::min(request.warmup_steps, request.steps);
  check_warmup(request);
  if (plan.degrees.pp > 1 && request.num_pipeline_patch < plan.degrees.pp) {
    plan.warnings.push_back("patches (" + std::to_string(request.num_pipeline_patch) +
                            ") are fewer than pp (" + std::to_string(plan.degrees.pp) +
                            "): some stages will idle");
  }
}

std::string ranks_text(const std::vector<int>& ranks, const char* between) {
  std::string text;
  for (const int rank : ranks)
    text += (text.empty() ? "" : between) + std::to_string(rank);
  return text;
}

/// Everything a sampler's configuration can be refused for, before any actor loads anything.
void check_sampler(const Plan& plan, const spec::ModelSpec& model) {
  spec::check_sampler_fits(model.scheduler, plan.request.sampler);
  const auto config = spec::scheduler_config_for(model.scheduler, plan.request.sampler);
  if (config.thresholding && plan.patches.size() > 1) {
    refuse("patches are " + std::to_string(plan.patches.size()) +
           ", but the sampler's thresholding needs statistics of the whole picture");
  }
  const int steps = plan.sampler_steps;
  if (steps > config.num_train_timesteps) {
    refuse("steps is " + std::to_string(steps) + ": the model was trained with " +
           std::to_string(config.num_train_timesteps) + " timesteps");
  }
}

void set_groups(Plan& plan, const spec::ModelSpec& model) {
  const mesh::Mesh mesh(plan.degrees);
  const auto add = [&](GroupPlan::Role role, const std::string& kind, std::vector<int> ranks,
                       const char* between) {
    const auto id = static_cast<std::uint32_t>(plan.groups.size() + 1);
    plan.groups.push_back({id, role, kind + " " + ranks_text(ranks, between), std::move(ranks)});
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

}  // namespace

int Plan::text_rank(int dp) const {
  return mesh::Mesh(degrees).rank({.dp = dp});
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
  for (int rank = (dp + 1) * replica - 1; rank >= dp * replica; --rank) {
    if (std::find(ranks.begin(), ranks.end(), rank) == ranks.end()) ranks.push_back(rank);
  }
  ranks.resize(vae_degree);
  return ranks;
}

const char* to_string(GroupPlan::Role role) {
  constexpr const char* kNames[] = {"caption", "edge",  "feedback", "cfg",  "ulysses", "ring",
                                    "tp",      "heads", "stage",    "rows", "vae"};
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

std::vector<wire::RowRange> rows_of_rank(const Plan& plan, int sequence_rank) {
  std::vector<wire::RowRange> rows;
  for (const auto& shares : plan.micro_steps) {
    const auto& own = shares.of_rank.at(sequence_rank);
    if (own.begin < own.end) rows.push_back(own);
  }
  return rows;
}

Plan make_plan(const spec::ModelSpec& model, const wire::ImageRequest& request,
               const wire::Parallelism& parallelism) {
  check_request(request);
  Plan plan;
  plan.request = request;
  set_text(plan, model);
  set_size(plan, model);
  set_calls(plan, model);
  check_rescale(plan, model);
  set_mesh(plan, model, parallelism);
  check_network(plan, model);
  set_stages(plan, model, parallelism);
  set_step_cache(plan.request, model);
  set_patches(plan, model);
  check_sampler(plan, model);
  set_groups(plan, model);
  plan.warnings.insert(plan.warnings.end(), model.notes.begin(), model.notes.end());
  if (request.init_latents_blob != 0) {
    const auto bytes = static_cast<std::uint64_t>(plan.picture_count() * plan.latent_channels *
                                                  plan.latent_height * plan.latent_width * 4);
    if (request.init_latents_bytes != bytes) {
      refuse("init latents have " + std::to_string(request.init_latents_bytes) + " bytes, but [" +
             std::to_string(plan.picture_count()) + ", " + std::to_string(plan.latent_channels) +
             ", " + std::to_string(plan.latent_height) + ", " + std::to_string(plan.latent_width) +
             "] float32 needs " + std::to_string(bytes));
    }
  }
  plan.memory = estimate_memory(plan, model);
  return plan;
}

}  // namespace troupe::plan
