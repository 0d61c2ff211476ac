#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "actors/stage/job_context.h"
#include "models/samplers/sampler.h"
#include "transport/control/blob_channel.h"
#include "transport/wire/actor_messages.h"
#include "transport/wire/job.h"
#include "transport/wire/tensor_messages.h"

namespace troupe::actors {

/// Unit-variance noise of a whole batch [n, C, h, w], draw after draw from torch's CPU generator as
/// diffusers does it, so that a seed means the same picture there and here. Where its pictures have
/// several seeds, each seed's are drawn as a batch of them alone would be.
class NoiseSource {
 public:
  /// `draw_type` is float32, or the compute type when the request asks for the noise that a
  /// half-precision pipeline of diffusers would draw.
  NoiseSource(std::uint64_t seed, std::vector<std::int64_t> shape, at::ScalarType draw_type);
  /// `shape` [n, C, h, w] with as many pictures as the runs have in all; at least one run.
  NoiseSource(const std::vector<wire::SeedRun>& runs, std::vector<std::int64_t> shape,
              at::ScalarType draw_type);

  /// Draws the next noise of all pictures, float32.
  at::Tensor draw();
  /// Draws the next noise of one picture for each seed, [seeds, C, h, w].
  at::Tensor draw_one_each();

 private:
  struct Run {
    std::int64_t pictures = 0;
    at::Generator generator;
  };
  at::Tensor draw(Run& run, std::int64_t pictures);

  std::vector<Run> runs_;
  std::vector<std::int64_t> shape_;
  at::ScalarType draw_type_;
};

/// Latents and sampler history at a boundary, put together from its pieces.
struct BoundaryShape {
  std::int64_t channels = 0;
  std::int64_t latent_height = 0;
  std::int64_t latent_width = 0;
  std::int64_t patch_size = 1;  // latent rows of a token row
};

/// Float32 [1 + history, pictures of this replica, channels, latent height, latent width] from the
/// pieces that BeginJob names. Throws std::runtime_error naming the piece that does not come or
/// fit, or what no piece covers.
at::Tensor assemble_boundary(const wire::BeginJob& begin, const BoundaryShape& shape,
                             const std::function<control::BlobResult(const wire::BlobRef&)>& fetch);

/// A job's latents, and what moves them from step to step: noise, the sampler and its history. The
/// first and the last stage hold their own rows, decoders all rows; other actors hold no latents.
class JobLatents {
 public:
  /// Makes the first latents. If these are not noise, `init_latents` is float32 [n, C, h, w] of the
  /// whole batch, or `boundary` is as assemble_boundary gives it, of this replica's pictures; else
  /// both are undefined. Throws std::invalid_argument if the sampler's options make another number
  /// of steps than was planned.
  JobLatents(JobContext& job, const at::Tensor& init_latents, const at::Tensor& boundary);

  /// [n, C, h, w] float32; undefined where the actor has none.
  const at::Tensor& all() const { return latents_; }
  const models::Sampler& sampler() const { return *sampler_; }

  /// The rows' latents one below the other, [n, C, rows · patch_size, w]; a view of one run.
  at::Tensor gather(const RowRuns& rows) const { return gather(latents_, rows); }
  void scatter(const RowRuns& rows, const at::Tensor& from);

  /// Noise that an encoder's distribution of the picture to begin with is sampled by: [1, C, h, w],
  /// or where each picture has a seed of its own one for each of this replica's.
  at::Tensor image_noise() const;
  /// Noise for the picture that stands beside the latents: as many as `beside_count` says.
  at::Tensor beside_noise() const;
  /// Returns 1 if all pictures of this replica have the same channels beside their latents, else
  /// the number of these pictures.
  std::int64_t beside_count() const;
  /// Keeps the channels that stand beside the latents in every step, [beside_count, c, h, w].
  void put_beside(const at::Tensor& channels);
  /// Returns these rows' latents as the network takes them at a step, with the channels beside
  /// them: [n, C + c, rows · patch_size, w] in the type that is computed in.
  at::Tensor input(int step, const RowRuns& rows) const;
  /// Begins with the picture whose latents are `clean`, [1, C, h, w] or one for each picture,
  /// unless it is resumed. Where `mask` is defined, of `clean`'s shape with one channel, its steps
  /// keep that picture where it is 0; it is 1 elsewhere.
  void begin_with(const at::Tensor& clean, const at::Tensor& mask);

  /// Begins a video with frames that it is given, whose latents are `frames` [1, C, F · h, w]:
  /// their rows stay as they are in all steps.
  void begin_with_frames(const at::Tensor& frames);

  /// Takes own rows of a patch, or with -1 of the whole picture, one step further.
  void sample(int step, int patch, const at::Tensor& prediction);

  /// Publishes the own rows' latents and sampler history, so that the job can be resumed; returns
  /// nothing if another actor has the same rows.
  std::optional<wire::BlobRef> publish_boundary();
  /// Publishes all latents, float32.
  wire::BlobRef publish() const;

  /// Latents and histories by name, for inspection.
  std::vector<std::pair<std::string, at::Tensor>> tensors() const;
  /// Returns the own rows, float32 on the CPU, and which rows they are.
  std::pair<at::Tensor, std::vector<wire::LatentRun>> host_rows() const;

 private:
  /// Latents for the part of the picture to begin with that stays as it is.
  struct Kept {
    at::Tensor clean, noise, mask;
  };

  /// Noise that a job needs before its steps, each of the whole batch; undefined where it needs
  /// none.
  struct FirstNoise {
    at::Tensor picture;  // one for each seed: of the picture to begin with
    at::Tensor latents;
    at::Tensor beside;  // of the picture that stands beside the latents, or that steps keep
  };

  NoiseSource make_noise() const;
  /// Draws it in the order of diffusers' pipelines.
  FirstNoise first_noise(NoiseSource& source) const;
  /// Returns this replica's part of what was drawn for all pictures, or one for each seed.
  at::Tensor own_noise(const at::Tensor& drawn) const;
  at::Tensor first_latents(const at::Tensor& init_latents) const;
  void restore_histories(const at::Tensor& boundary);
  /// [n, C, h, w] that the sampler adds at this step; undefined where it adds none. Steps only go
  /// forward. A resumed job draws what came before, too, and drops it.
  at::Tensor step_noise(int step);
  /// A step's sample of these rows, with what the mask keeps in that step's share of noise.
  at::Tensor keep_unmasked(int step, models::TokenRows rows, const at::Tensor& sample) const;
  at::Tensor rows_view(const at::Tensor& latents, models::TokenRows rows) const;
  at::Tensor gather(const at::Tensor& latents, const RowRuns& rows) const;

  JobContext& job_;
  std::unique_ptr<models::Sampler> sampler_;
  at::Tensor latents_;
  at::Tensor beside_;                 // at the first stage, where the model has some
  std::optional<NoiseSource> noise_;  // once a step has needed some
  at::Tensor step_noise_;             // of step noise_step_, or the last one that needed it
  int noise_step_ = -1;
  std::optional<Kept> kept_;                  // with a mask, at the last stage
  std::vector<models::SamplerState> states_;  // by micro-step, at the last stage
  std::deque<control::BlobId> boundaries_;
};

}  // namespace troupe::actors
