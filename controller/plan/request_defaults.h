#pragma once
#include <string>
#include <vector>

#include "controller/plan/plan.h"
#include "models/spec/resolution_bins.h"
#include "models/spec/scheduler_config.h"
#include "transport/wire/job.h"

namespace troupe::plan {

/// Returns the seeds of a request that computes by itself: one run for all its pictures, or where
/// each has its own a run each.
std::vector<wire::SeedRun> seed_runs(const wire::ImageRequest& request);

/// Returns each picture's negative prompt, whether they have one together, one a prompt, or one
/// each.
std::vector<std::string> negatives_of_pictures(const wire::ImageRequest& request);

/// Fills in `seeds`, and a negative prompt for each picture, where pictures have their own.
void set_per_image_settings(wire::ImageRequest& request);

/// Settles what `images_as_taken` leaves open: the only picture is the one to start from where the
/// model takes none beside the text. Refuses several there.
void settle_images(wire::ImageRequest& request, const spec::ModelSpec& model);

/// Returns the sizes, in pixels, that pictures to edit are encoded in.
std::vector<spec::PixelSize> edited_sizes(const wire::ImageRequest& request,
                                          const spec::ModelSpec& model);
/// Returns the number of tokens of all pictures to edit, which stand in the sequence with the
/// text's.
std::int64_t edited_tokens(const wire::ImageRequest& request, const spec::ModelSpec& model);

/// Returns the number of tokens that a prompt is padded or cut to, with those of the pictures that
/// its text encoder sees.
std::int64_t prompt_tokens(const wire::ImageRequest& request, const spec::ModelSpec& model);

/// Returns the number of frames that are encoded before a video's first step: the one that it is
/// given, or where the network sees them beside the latents all, of which most are empty.
std::int64_t given_frames(const wire::ImageRequest& request, const spec::ModelSpec& model);

/// Warns of ControlNets that count in no step.
void warn_of_controls(Plan& plan, const spec::ModelSpec& model);

/// Refuses pictures beside the text, and a second guidance scale, where the model takes none, and a
/// request without pictures where it needs some.
void check_inputs(const wire::ImageRequest& request, const spec::ModelSpec& model);

/// Sets height, width and frames that are computed and that come out: the model's own where the
/// request leaves them open, the bin's under resolution binning. Fills in the plan's latents and
/// token rows. Refuses as make_plan does.
void set_size(Plan& plan, const spec::ModelSpec& model);

/// Adds a warning that names the model's size to the plan of a picture or a video with four times
/// the pixels that the model is made for, or less than a quarter of them. Not where binning picks
/// the size, nor for a larger picture that at least half of the steps begin from. After `set_size`
/// and `set_calls`.
void warn_of_size(Plan& plan, const spec::ModelSpec& model);

/// Returns how many of `steps` a picture to begin with leaves out at this strength, as diffusers'
/// pipelines count them: of flow-matching models ⌊steps − steps · strength⌋, of others steps −
/// ⌊steps · strength⌋.
int skipped_steps(int steps, double strength, bool flow);

/// Fills in steps, guidance scale and strength where the request leaves them to the model.
void set_defaults(wire::ImageRequest& request, const spec::ModelSpec& model);

/// The sampler that a request runs.
spec::SchedulerConfig sampler_config(const wire::ImageRequest& request,
                                     const spec::ModelSpec& model);

/// Turns the steps that are asked for into the calls of the model that are computed: as many as the
/// sampler makes, without those that a picture to begin with leaves out. Holds that picture against
/// the model. Refuses as make_plan does.
void set_calls(Plan& plan, const spec::ModelSpec& model);

/// Takes those calls from a plan of the same request and model for another mesh: a schedule costs
/// up to 0.1 s, and no degree changes it.
void take_calls(Plan& plan, const Plan& same);

/// Refuses guidance_rescale where the model's pipeline has none.
void check_rescale(Plan& plan, const spec::ModelSpec& model);

}  // namespace troupe::plan
