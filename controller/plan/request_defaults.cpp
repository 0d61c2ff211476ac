#include "controller/plan/request_defaults.h"

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/format.h"
#include "base/numbers.h"
#include "base/text.h"
#include "controller/plan/request_rules.h"
#include "models/samplers/schedule_checks.h"
#include "models/spec/resolution_bins.h"
#include "models/spec/scheduler_config.h"
#include "transport/wire/request_limits.h"
#include "transport/wire/request_rules.h"

namespace troupe::plan {

namespace {

std::size_t pictures_of(const wire::ImageRequest& request) {
  return request.prompts.size() * static_cast<std::size_t>(request.images_per_prompt);
}

}  // namespace

std::vector<wire::SeedRun> seed_runs(const wire::ImageRequest& request) {
  if (request.picture_seeds.empty())
    return {{static_cast<std::int32_t>(pictures_of(request)), request.seed}};
  std::vector<wire::SeedRun> runs;
  for (const auto seed : request.picture_seeds)
    runs.push_back({1, seed});
  return runs;
}

std::vector<std::string> negatives_of_pictures(const wire::ImageRequest& request) {
  const auto pictures = pictures_of(request);
  const auto& own = request.negative_prompts;
  if (own.empty()) return std::vector<std::string>(pictures, request.negative_prompt.value_or(""));
  if (own.size() == pictures) return own;
  std::vector<std::string> negatives;
  for (std::size_t picture = 0; picture < pictures; ++picture)
    negatives.push_back(own.at(picture / static_cast<std::size_t>(request.images_per_prompt)));
  return negatives;
}

void set_per_image_settings(wire::ImageRequest& request) {
  if (!request.picture_seeds.empty() && request.seeds.empty()) request.seeds = seed_runs(request);
  if (!request.negative_prompts.empty()) request.negative_prompts = negatives_of_pictures(request);
}

std::vector<spec::PixelSize> edited_sizes(const wire::ImageRequest& request,
                                          const spec::ModelSpec& model) {
  std::vector<spec::PixelSize> sizes;
  if (model.inputs.images != spec::PictureRole::edited) return sizes;
  for (const auto& image : request.images)
    sizes.push_back(spec::edited_size(model, {image.height, image.width}).cut);
  return sizes;
}

std::int64_t edited_tokens(const wire::ImageRequest& request, const spec::ModelSpec& model) {
  const auto unit = model.pixel_multiple();
  std::int64_t tokens = 0;
  for (const auto& size : edited_sizes(request, model))
    tokens += size.height / unit * (size.width / unit);
  return tokens;
}

std::int64_t prompt_tokens(const wire::ImageRequest& request, const spec::ModelSpec& model) {
  std::int64_t tokens = request.max_sequence_length;
  for (const auto& image : request.images)
    tokens += spec::seen_tokens(model, {image.height, image.width});
  return tokens;
}

std::int64_t given_frames(const wire::ImageRequest& request, const spec::ModelSpec& model) {
  if (model.inputs.images != spec::PictureRole::first_frame || request.images.empty()) return 0;
  return model.inputs.beside == spec::BesideLatents::given_frames ? request.num_frames : 1;
}

namespace {

/// Ratio of areas: so many times the area of the native size is far beyond it, less than 1 ÷ so
/// many far below.
constexpr std::int64_t kFarFromNative = 4;

std::string size_text(std::int64_t width, std::int64_t height) {
  return fmt::format("{} x {}", width, height);
}

/// Sets the sides that a request leaves open to those that its initial latents are of.
void size_by_latents(wire::ImageRequest& request, const spec::ModelSpec& model) {
  const auto& shape = request.init_latents_shape;
  if (shape.size() != 4) return;
  if (model.makes_videos() && request.num_frames == 0 && request.height == 0)
    refuse(JobField::init_latents,
           "`init_latents` have the rows of all frames, one below the other: `num_frames` or "
           "`height` says how many of them are a frame's");
  const auto scale = model.vae.scale_factor();
  if (model.makes_videos() && request.num_frames == 0 && request.height >= scale && shape[2] > 0 &&
      shape[2] * scale <= std::int64_t{wire::kMaxPixels} * wire::kMaxFrames)
    request.num_frames = static_cast<std::int32_t>(
        (shape[2] / (request.height / scale) - 1) * model.video_vae->frame_factor() + 1);
  const auto frames = model.latent_frames(request.num_frames > 0 ? request.num_frames
                                                                 : model.transformer.sample_frames);
  if (request.height == 0 && shape[2] % frames != 0)
    refuse(JobField::init_latents,
           fmt::format("`init_latents` have {}, which are not {} of a frame each",
                       counted(shape[2], "row"), counted(frames, "run")));
  const auto set = [&](JobField field, std::int32_t& side, std::int64_t latents) {
    if (side != 0) return;
    const auto most = wire::kMaxPixels / model.vae.scale_factor();
    if (latents < 1 || latents > most)
      refuse(
          JobField::init_latents,
          fmt::format("`init_latents` say `{}` where none is given, by {} rows or columns: 1 to {} "
                      "are taken",
                      to_string(field), latents, most));
    side = static_cast<std::int32_t>(latents * model.vae.scale_factor());
  };
  set(JobField::height, request.height, shape[2] / frames);
  set(JobField::width, request.width, shape[3]);
}

/// Sets the sides that a request leaves open: to the model's own, or those of what it begins with,
/// of a picture without what is beyond a whole latent.
void set_open_sides(wire::ImageRequest& request, const spec::ModelSpec& model) {
  size_by_latents(request, model);
  const bool from_picture = request.init_image_bytes > 0 && request.mask_image_bytes == 0;
  const auto sized_by = model.inputs.sized_by;
  const bool edits = sized_by != spec::EditedSides::model && !request.images.empty();
  const bool follows = !model.controlnets.empty() && request.init_image_bytes == 0;
  const bool keeps = edits || ((from_picture || follows) && model.keeps_picture_size);
  spec::PixelSize picture{request.init_image_height, request.init_image_width};
  if (edits) {
    const auto sizes = edited_sizes(request, model);
    picture = sized_by == spec::EditedSides::first ? sizes.front() : sizes.back();
  }
  if (follows && !request.control_images.empty())
    picture = {request.control_images.front().height, request.control_images.front().width};
  const auto source = to_string(edits     ? JobField::images
                                : follows ? JobField::control_images
                                          : JobField::init_image);
  const auto set = [&](JobField field, std::int32_t& side, std::int64_t own,
                       std::int32_t of_picture) {
    if (side != 0) return;
    side = static_cast<std::int32_t>(own);
    if (!keeps || of_picture == 0) return;  // 0: not told yet
    side = of_picture - of_picture % static_cast<std::int32_t>(model.pixel_multiple());
    if (side == 0 || side > wire::kMaxPixels) {
      refuse(field,
             fmt::format("`{}` is that of `{}` where none is given, {}: this model takes {} to {}",
                         to_string(field), source, of_picture, model.pixel_multiple(),
                         wire::kMaxPixels));
    }
  };
  set(JobField::height, request.height, model.default_size(),
      static_cast<std::int32_t>(picture.height));
  set(JobField::width, request.width, model.default_width(),
      static_cast<std::int32_t>(picture.width));
}

/// Sets the size that is computed to the bin's: sizes of any number of pixels are taken.
void bin_size(Plan& plan, const spec::ModelSpec& model) {
  auto& request = plan.request;
  for (const auto& [field, pixels] :
       {std::pair{JobField::height, request.height}, std::pair{JobField::width, request.width}}) {
    if (pixels < 1 || pixels > wire::kMaxPixels) {
      refuse(field, fmt::format("`{}` is {}: from 1 to {} under resolution binning",
                                to_string(field), pixels, wire::kMaxPixels));
    }
  }
  const auto binning = spec::binning_of(model.pipeline_class);
  if (!binning)
    refuse(JobField::resolution_binning,
           "`resolution_binning` is on, but " + model.pipeline_class + " has no bins of its own");
  const std::int64_t sample_size = model.transformer.sample_size;
  const bool by_ratio = binning == spec::Binning::ratios;
  if (by_ratio && sample_size != 32 && sample_size != 64 && sample_size != 128 &&
      sample_size != 256) {
    refuse(JobField::resolution_binning,
           fmt::format(
               "`resolution_binning` is on, but the transformer's sample_size is {}: there are "
               "bins for 32, 64, 128 and 256",
               sample_size));
  }
  const spec::PixelSize wanted{request.height, request.width};
  const auto bin = by_ratio ? spec::nearest_bin(sample_size, wanted) : spec::nearest_shape(wanted);
  request.height = static_cast<std::int32_t>(bin.height);
  request.width = static_cast<std::int32_t>(bin.width);
  if (by_ratio || bin == wanted) return;
  request.output_height = request.height;
  request.output_width = request.width;
  plan.warnings.push_back("the picture comes out at " + size_text(bin.width, bin.height) +
                          ": this model's pipeline does not bring it back to the size asked for");
}

void set_frames(wire::ImageRequest& request, const spec::ModelSpec& model) {
  constexpr auto kMost = wire::kMaxFrames;
  if (!model.makes_videos()) {
    if (request.num_frames > 1) {
      refuse(JobField::num_frames, fmt::format("`num_frames` is {}, but {} makes pictures",
                                               request.num_frames, model.pipeline_class));
    }
    request.num_frames = 1;
    if (request.vae_tiling && model.video_vae)
      refuse(JobField::vae_tiling,
             "`vae_tiling` is on, but this model's pictures are decoded whole");
    return;
  }
  if (request.num_frames == 0)
    request.num_frames = static_cast<std::int32_t>(model.transformer.sample_frames);
  const std::int64_t unit = model.video_vae->frame_factor();
  if ((request.num_frames - 1) % unit != 0 || request.num_frames > kMost) {
    refuse(
        JobField::num_frames,
        fmt::format("`num_frames` is {}: this model takes multiples of {} and one more, up to {}",
                    request.num_frames, unit, kMost));
  }
  if (request.num_frames == 1 && !request.images.empty() &&
      model.inputs.beside == spec::BesideLatents::none)
    refuse(JobField::num_frames,
           "`num_frames` is 1, and `images` is that frame: nothing is left to make");
  if (request.num_frames == 1 && request.last_image.bytes > 0)
    refuse(JobField::last_image,
           "`last_image` is given, but `num_frames` is 1: there is no frame behind the first one");
  if (request.vae_tiling)
    refuse(JobField::vae_tiling, "`vae_tiling` is on, but videos are decoded whole");
  if (request.init_image_bytes > 0 || request.init_image_blob != 0)
    refuse(JobField::init_image,
           model.inputs.images == spec::PictureRole::none
               ? "there is a picture to start from, but this model makes videos from text alone"
               : "there is a picture to start from, but this model begins with `images`");
}

}  // namespace

void settle_images(wire::ImageRequest& request, const spec::ModelSpec& model) {
  if (!std::exchange(request.images_as_taken, false)) return;
  auto& images = request.images;
  if (images.empty()) return;
  const bool edits = model.inputs.images != spec::PictureRole::none;
  // With a strength or a mask a picture is the one to begin with, also in pipelines that follow
  // one.
  const bool follows = model.control_pictures() > 0 && request.control_images.empty() &&
                       !request.strength && request.mask_image_bytes == 0;
  if (edits || follows) {
    // The web UI's programs always send a strength.
    if (request.strength.value_or(1) != 1)
      refuse(JobField::strength,
             fmt::format("`strength` is {}: with `images` this model computes all steps, as at 1",
                         number_text(*request.strength)));
    request.strength.reset();
    if (follows) request.control_images = std::exchange(images, {});
    return;
  }
  if (images.size() > 1)
    refuse(JobField::images, fmt::format("`images` has {}, but {} begins with one picture",
                                         images.size(), model.pipeline_class));
  const auto image = images.front();
  images.clear();
  if (request.init_image_bytes != 0) wire::refuse_both(JobField::images, JobField::init_image);
  request.init_image_blob = image.blob;
  request.init_image_bytes = image.bytes;
  request.init_image_height = image.height;
  request.init_image_width = image.width;
}

namespace {

void check_sides(const wire::SentPicture& image, JobField field, const std::string& which,
                 const spec::ModelSpec& model) {
  const auto shorter = std::min(image.height, image.width);
  const auto longer = std::max(image.height, image.width);
  const auto& takes = model.inputs;
  if (shorter == 0) return;  // not told yet
  const std::string has =
      fmt::format("`{}`{} has {} pixels, but {} takes ", to_string(field), which,
                  size_text(image.width, image.height), model.pipeline_class);
  if (shorter < takes.least_side)
    refuse(field, has + fmt::format("at least {} a side", takes.least_side));
  if (takes.most_ratio > 0 && longer > std::int64_t{takes.most_ratio} * shorter)
    refuse(field,
           has + fmt::format("a side at most {} times as long as the other", takes.most_ratio));
}

}  // namespace

namespace {

/// Refuses the words by which a text encoder's pictures are put into a text: a prompt that has them
/// would ask for pictures that are not there.
void check_picture_places(const wire::ImageRequest& request, const spec::ModelSpec& model) {
  if (std::ranges::none_of(model.text_encoders,
                           [](const auto& encoder) { return encoder.vision() != nullptr; }))
    return;
  const auto check = [](JobField field, const std::string& text) {
    if (text.find(spec::kPicturePlace) != std::string::npos)
      refuse(field, fmt::format("`{}` has {}, which stands for a picture", to_string(field),
                                spec::kPicturePlace));
  };
  for (const auto& prompt : request.prompts)
    check(JobField::prompts, prompt);
  check(JobField::negative_prompt, request.negative_prompt.value_or(""));
  for (const auto& prompt : request.negative_prompts)
    check(JobField::negative_prompts, prompt);
}

void check_control(const wire::ImageRequest& request, const spec::ModelSpec& model) {
  const auto given = std::ssize(request.control_images);
  const auto taken = model.control_pictures();
  if (!request.controlnets.empty() && !model.inputs.controlnets)
    refuse(JobField::controlnets, fmt::format("`controlnets` names {}, but {} takes no ControlNets",
                                              request.controlnets.front(), model.pipeline_class));
  const bool follows = !model.controlnets.empty();
  for (const auto& [field, values] : {std::pair{JobField::control_scale, &request.control_scale},
                                      {JobField::control_from, &request.control_from},
                                      {JobField::control_until, &request.control_until}})
    if (!values->empty() && !follows)
      refuse(field, fmt::format("`{}` is a ControlNet's: {} has none", to_string(field),
                                model.pipeline_class));
  if (follows && request.step_cache != StepCacheRule::none)
    refuse(JobField::step_cache,
           fmt::format("`step_cache` is {}, but the layers that it leaves out are those that "
                       "ControlNets change from step to step",
                       to_string(request.step_cache)));
  if (given == taken) return;
  if (taken == 0)
    refuse(JobField::control_images,
           fmt::format("`control_images` has {}, but {} takes none", counted(given, "picture"),
                       model.pipeline_class) +
               (model.inputs.controlnets ? ": `controlnets` names what follows them" : ""));
  if (given == 0)
    refuse(JobField::control_images, fmt::format("`control_images` is missing: {} needs {}",
                                                 model.pipeline_class, counted(taken, "picture")));
  refuse(JobField::control_images, fmt::format("`control_images` has {}, but {} takes {}", given,
                                               model.pipeline_class, taken));
}

}  // namespace

void check_inputs(const wire::ImageRequest& request, const spec::ModelSpec& model) {
  const auto& takes = model.inputs;
  const auto& images = request.images;
  if (!images.empty() && takes.images == spec::PictureRole::none)
    refuse(JobField::images,
           "`images` has pictures, but " + model.pipeline_class +
               (model.from_text_alone ? " takes a text alone"
                                      : " edits none: `init_image` is what it begins from"));
  if (images.empty() && takes.needs_images)
    refuse(JobField::images, "`images` is missing: " + model.pipeline_class +
                                 (takes.images == spec::PictureRole::first_frame
                                      ? " makes a video from its first frame"
                                      : " edits a picture"));
  const auto require = [&](JobField field, std::uint64_t bytes) {
    if (bytes == 0)
      refuse(field, fmt::format("`{}` is missing: {} paints within the mask of a picture",
                                to_string(field), model.pipeline_class));
  };
  if (takes.beside_mask()) {
    require(JobField::init_image, request.init_image_bytes);
    require(JobField::mask_image, request.mask_image_bytes);
  }
  if (std::ssize(images) > takes.most_images)
    refuse(JobField::images, fmt::format("`images` has {}: {} takes {} at most", images.size(),
                                         model.pipeline_class, takes.most_images));
  for (std::size_t i = 0; i < images.size(); ++i)
    check_sides(images[i], JobField::images,
                images.size() > 1 ? fmt::format(" number {}", i + 1) : "", model);
  if (request.last_image.bytes > 0)
    check_sides(request.last_image, JobField::last_image, "", model);
  check_picture_places(request, model);
  if (request.last_image.bytes > 0 && !takes.last_image)
    refuse(JobField::last_image,
           "`last_image` is given, but " +
               (model.makes_videos() ? "this " + model.pipeline_class + " takes no last frame"
                                     : model.pipeline_class + " makes pictures"));
  if (request.last_image.bytes == 0 && takes.needs_last_image)
    refuse(JobField::last_image, "`last_image` is missing: this " + model.pipeline_class +
                                     " makes a video between its first and its last frame");
  check_control(request, model);
  if (request.guidance_scale_2 && !takes.second_guidance)
    refuse(JobField::guidance_scale_2,
           "`guidance_scale_2` is " + number_text(*request.guidance_scale_2) + ", but " +
               model.pipeline_class +
               " has no second transformer: `guidance_scale` is for all steps");
}

void set_size(Plan& plan, const spec::ModelSpec& model) {
  const std::int64_t scale = model.vae.scale_factor();
  const std::int64_t patch = model.transformer.patch_size;
  const std::int64_t unit = model.pixel_multiple();
  auto& request = plan.request;
  set_open_sides(request, model);
  request.output_height = request.height;
  request.output_width = request.width;
  if (request.resolution_binning) bin_size(plan, model);
  for (const auto& [field, pixels] :
       {std::pair{JobField::height, request.height}, std::pair{JobField::width, request.width}}) {
    if (pixels < unit || pixels % unit != 0 || pixels > wire::kMaxPixels) {
      refuse(field, fmt::format("`{}` is {}: this model takes multiples of {} from {} to {}",
                                to_string(field), pixels, unit, unit, wire::kMaxPixels));
    }
  }
  set_frames(request, model);
  if (request.vae_tiling && model.vae.sample_size % model.vae.tile_unit() != 0) {
    refuse(
        JobField::vae_tiling,
        fmt::format("`vae_tiling` is on, but sample_size in {} is {}: tiles need a multiple of {}",
                    (model.folder / "vae" / "config.json").string(), model.vae.sample_size,
                    model.vae.tile_unit()));
  }
  const std::int64_t frames = model.latent_frames(request.num_frames);
  plan.latent_channels = model.transformer.in_channels;
  plan.latent_height = frames * request.height / scale;
  plan.latent_width = request.width / scale;
  plan.token_rows = plan.latent_height / patch;
  plan.token_columns = plan.latent_width / patch;
  const std::int64_t most = model.transformer.most_tokens_a_side;
  for (const auto& [field, tokens] : {std::pair{JobField::height, plan.token_rows / frames},
                                      std::pair{JobField::width, plan.token_columns}}) {
    if (most > 0 && tokens > most) {
      refuse(field, fmt::format("`{}` is {}: this model has positions for up to {}",
                                to_string(field), tokens * unit, most * unit));
    }
  }
}

void warn_of_size(Plan& plan, const spec::ModelSpec& model) {
  const auto& request = plan.request;
  if (request.resolution_binning) return;  // a size of the training's own
  const std::int64_t area = std::int64_t{request.width} * request.height;
  const std::int64_t native = model.default_width() * model.default_size();
  const bool beyond = area >= kFarFromNative * native;
  if (!beyond && area * kFarFromNative >= native) return;
  // The composition stands already.
  if (beyond && 2 * plan.skipped_steps >= plan.sampler_steps) return;
  plan.warnings.push_back(
      size_text(request.width, request.height) + " is far " + (beyond ? "beyond " : "below ") +
      size_text(model.default_width(), model.default_size()) + ", this model's native size: " +
      (beyond ? "things may repeat or lose their shape" : "there may be little to be seen"));
}

namespace {

void require_encoder(const spec::ModelSpec& model, JobField field) {
  const std::string given = "`" + to_string(field) + "` is given, but ";
  constexpr auto kHalf = spec::VaeHalf::encoder;
  for (const auto& tensor : model.video_vae ? spec::expected_tensors(*model.video_vae, kHalf)
                                            : spec::expected_tensors(model.vae, kHalf)) {
    const auto has = [&](const std::string& name) { return model.vae_weights.contains(name); };
    if (!has(tensor.name) && std::ranges::none_of(tensor.other_names, has)) {
      refuse(field, given + model.vae_weights.label().string() + " has no encoder: tensor \"" +
                        tensor.name + "\" is missing");
    }
    try {
      spec::check_tensor(model.vae_weights, tensor);
    } catch (const std::runtime_error& error) {
      refuse(field, given + error.what());
    }
  }
}

spec::PipelineTask task_of(const wire::ImageRequest& request) {
  if (request.mask_image_bytes > 0) return spec::PipelineTask::inpainting;
  return request.init_image_bytes > 0 ? spec::PipelineTask::from_picture
                                      : spec::PipelineTask::generation;
}

/// Interim content that is to come so many times comes at even intervals, before the last step.
void set_interval(wire::ImageRequest& request) {
  if (request.progress_count == 0 || request.progress_interval > 0) return;
  request.progress_interval = std::max(1, request.steps / (request.progress_count + 1));
}

spec::SamplerSettings settings_of(const wire::ImageRequest& request) {
  return {request.eta, request.timesteps, request.sigmas};
}

/// Returns the field whose list says a request's steps; none where no list does.
JobField list_of(const wire::ImageRequest& request) {
  if (!request.timesteps.empty()) return JobField::timesteps;
  return request.sigmas.empty() ? JobField::none : JobField::sigmas;
}

std::optional<int> given_steps(const spec::SchedulerConfig& config,
                               const wire::ImageRequest& request) {
  wire::about(JobField::eta, [&] { spec::given_steps(config, {request.eta, {}, {}}); });
  return wire::about(list_of(request),
                     [&] { return spec::given_steps(config, settings_of(request)); });
}

/// Leaves out the steps that an initial picture's strength says.
void set_skipped_steps(Plan& plan, const spec::ModelSpec& model) {
  if (model.makes_videos())
    refuse(JobField::init_image, "`init_image` is given, but this model makes videos");
  if (model.from_text_alone)
    refuse(JobField::init_image,
           model.inputs.images == spec::PictureRole::none
               ? "`init_image` is given, but this model makes pictures from text alone"
               : "`init_image` is given, but `images` are what this model edits");
  require_encoder(model, JobField::init_image);
  const double strength = *plan.request.strength;
  const auto own = spec::scheduler_config_for(model.scheduler, "");
  const bool flow = own.kind == spec::SamplerKind::kFlowMatchEuler;
  plan.skipped_steps = skipped_steps(plan.sampler_steps, strength, flow);
  if (plan.skipped_steps >= plan.sampler_steps) {
    refuse(JobField::strength, fmt::format("`strength` is {}: of {} steps none is left",
                                           number_text(strength), plan.sampler_steps));
  }
}

/// Returns the first step that the second of two transformers computes, or the number of steps.
int first_of_second(const spec::ModelSpec& model, const spec::SchedulerConfig& sampler,
                    const models::SamplerRun& run) {
  if (sampler.kind == spec::SamplerKind::kUser)
    refuse(JobField::sampler,
           "`sampler` is a plugin's, whose timesteps plans do not know, and the model's two "
           "transformers divide the steps by these: choose another sampler");
  const auto times = models::scheduled_times(sampler, run);
  const auto first = std::find_if(times.begin() + run.first, times.end(),
                                  [&](double time) { return model.is_of_second(time); });
  return static_cast<int>(first - times.begin()) - run.first;
}

}  // namespace

int skipped_steps(int steps, double strength, bool flow) {
  const double done = std::min(steps * strength, static_cast<double>(steps));
  return flow ? static_cast<int>(steps - done) : steps - static_cast<int>(done);
}

void set_defaults(wire::ImageRequest& request, const spec::ModelSpec& model) {
  const auto& own = model.defaults.of(task_of(request));
  if (request.steps == 0) request.steps = own.steps;
  if (!request.guidance_scale) request.guidance_scale = own.guidance_scale;
  if (!request.strength) request.strength = own.strength;
  if (!model.controlnets.empty() && request.control_scale.empty())
    request.control_scale = {own.control_scale};
  if (model.second_transformer && !request.guidance_scale_2)
    request.guidance_scale_2 = request.guidance_scale;
}

spec::SchedulerConfig sampler_config(const wire::ImageRequest& request,
                                     const spec::ModelSpec& model) {
  return wire::about(JobField::sampler, [&] {
    return spec::scheduler_config_for(model.scheduler, request.sampler, task_of(request));
  });
}

void warn_of_controls(Plan& plan, const spec::ModelSpec& model) {
  const auto& request = plan.request;
  for (std::size_t net = 0; net < model.controlnets.size(); ++net) {
    bool counts = false;
    for (int step = 0; step < request.steps; ++step)
      counts = counts || wire::control_counts(request, net, step);
    if (!counts)
      plan.warnings.push_back(
          fmt::format("`control_images` number {} changes nothing: between `control_from` {} and "
                      "`control_until` {} lies none of {} as a whole",
                      net + 1, number_text(wire::control_value(request.control_from, net, 0)),
                      number_text(wire::control_value(request.control_until, net, 1)),
                      counted(request.steps, "step")));
  }
}

void set_calls(Plan& plan, const spec::ModelSpec& model) {
  auto& request = plan.request;
  wire::about(JobField::sampler,
              [&] { spec::check_sampler_fits(model.scheduler, request.sampler); });
  const auto chosen = sampler_config(request, model);
  plan.sampler_steps = given_steps(chosen, request).value_or(request.steps);
  if (request.init_image_bytes > 0) set_skipped_steps(plan, model);
  if (!request.images.empty() && model.inputs.images != spec::PictureRole::none)
    require_encoder(model, JobField::images);
  if (model.inputs.beside == spec::BesideLatents::control_picture)
    require_encoder(model, JobField::control_images);
  const models::SamplerRun run{.num_steps = plan.sampler_steps,
                               .image_tokens = plan.token_rows * plan.token_columns,
                               .even_sigmas = model.even_sigmas,
                               .shifts_by_steps = model.shifts_by_steps,
                               .fixed_shift = model.fixed_shift,
                               .first = plan.skipped_steps,
                               .task = task_of(request),
                               .settings = settings_of(request)};
  const auto listed = list_of(request);
  request.steps = wire::about(listed == JobField::none ? JobField::steps : listed, [&] {
    spec::check_steps(chosen, run.num_steps, run.settings);
    return models::model_calls(chosen, run) - run.first;
  });
  plan.second_from = request.steps;
  if (model.second_transformer) plan.second_from = first_of_second(model, chosen, run);
  set_interval(request);
}

void take_calls(Plan& plan, const Plan& same) {
  plan.sampler_steps = same.sampler_steps;
  plan.skipped_steps = same.skipped_steps;
  plan.second_from = same.second_from;
  plan.request.steps = same.request.steps;
  plan.request.progress_interval = same.request.progress_interval;
}

void check_rescale(Plan& plan, const spec::ModelSpec& model) {
  if (plan.request.guidance_rescale == 0) return;
  if (!model.rescales_guidance) {
    refuse(JobField::guidance_rescale, "`guidance_rescale` is " +
                                           number_text(plan.request.guidance_rescale) + ", but " +
                                           model.pipeline_class + " has none");
  }
  if (!model.has_branches(*plan.request.guidance_scale))
    plan.warnings.emplace_back("without guidance there is nothing to rescale");
}

}  // namespace troupe::plan
