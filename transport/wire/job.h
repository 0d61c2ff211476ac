#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace troupe::wire {

/// An adapter: weights of low rank that are added to a model's own. The file lies where every
/// actor's host sees it.
struct Lora {
  std::string path;  // safetensors, in diffusers' or kohya's naming
  double scale = 1;

  bool operator==(const Lora&) const = default;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(path, scale);
  }
};

/// Of pictures that are computed as one batch, some that follow each other and share a seed: their
/// noise is what a batch of them alone would have.
struct SeedRun {
  std::int32_t pictures = 0;
  std::uint64_t seed = 0;

  bool operator==(const SeedRun&) const = default;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(pictures, seed);
  }
};

/// Everything that decides which picture comes out; degrees are not in here (design §4).
struct ImageRequest {
  std::vector<std::string> prompts;  // one or more; prompts × images_per_prompt are split over dp
  std::string negative_prompt;       // shared by all prompts
  std::int32_t images_per_prompt = 1;
  std::int32_t height = 0;  // pixels; 0 = the model's native size
  std::int32_t width = 0;
  std::int32_t num_frames = 0;  // of a video, 4k + 1; 0 = the model's own number; pictures: 1
  std::int32_t steps = 20;
  double guidance_scale = 4.5;  // > 1 turns classifier-free guidance on, as in diffusers
  std::uint64_t seed = 0;
  std::string sampler;           // "" = the checkpoint's own scheduler
  std::string method = "exact";  // exact | pipefusion | distrifusion
  std::int32_t num_pipeline_patch = 1;
  std::int32_t warmup_steps = 1;
  /// Steps after the warm-up that are computed whole, from an empty K,V store: where a job of a
  /// stale method was taken up again after a loss. Sorted.
  std::vector<std::int32_t> refill_steps = {};
  std::string kv = "stale";       // stale | predict: how K,V rows that are not fresh are used
  std::string dtype = "float32";  // compute type: float32 | bfloat16 | float16
  /// How the denoiser's linear layers keep their weights: "" (as they compute) | int8 | fp8.
  std::string weight_dtype = "";
  std::string noise_dtype = "float32";     // float32 | model: the type that noise is drawn in
  std::int32_t max_sequence_length = 120;  // text tokens, padded or cut to this
  bool resolution_binning =
      false;  // compute at the nearest size the model was trained at, then resize and crop
  bool clean_caption = false;  // clean prompts as the training captions were
  bool vae_tiling = false;     // decode in overlapping tiles: less memory, another picture
  bool want_latents = false;   // final latents before the VAE come back too
  std::uint64_t init_latents_blob =
      0;  // 0 = noise from the seed; else a blob of float32, the whole batch
  std::uint64_t init_latents_bytes = 0;
  std::uint64_t init_image_blob = 0;  // 0 = from noise; else a PNG to start from
  std::uint64_t init_image_bytes = 0;
  // Pixels of that picture: a client's word until it has come, then what its header says.
  std::int32_t init_image_height = 0;
  std::int32_t init_image_width = 0;
  double strength = 0.8;  // with an image: the part of the steps that are done, 0 to 1
  double guidance_rescale =
      0;  // 0 to 1: guided noise is brought to the deviation of the text's own
  std::vector<Lora> loras = {};
  std::string step_cache = "";  // "" | first-block | teacache: steps that change little are skipped
  double step_cache_threshold =
      0;  // relative change below which a step is skipped; 0 = the cache's
  std::string group_norm =
      "corrected";  // U-Net, distrifusion: corrected | stale | synchronous | separate
  std::string exchange = "stale";  // U-Net, distrifusion: stale | none | all
  std::int32_t progress_interval =
      0;  // every how many steps a latents/preview comes with the progress; 0 = never
  std::string progress_content;  // "" | latents | preview
  // Filled in by the plan, whatever a client says: `height` and `width` become the size that is
  // computed, and these the pixels of the picture that comes out. Different under
  // resolution_binning only.
  std::int32_t output_height = 0;
  std::int32_t output_width = 0;
  // Filled in by the controller where jobs compute together; empty = `seed` is everybody's.
  std::vector<SeedRun> seeds = {};

  template <class Archive>
  void serialize(Archive& ar) {
    ar(prompts, negative_prompt, images_per_prompt, height, width, num_frames, steps,
       guidance_scale, seed, sampler, method, num_pipeline_patch, warmup_steps, refill_steps, kv,
       dtype, weight_dtype, noise_dtype, max_sequence_length, resolution_binning, clean_caption,
       vae_tiling, want_latents, init_latents_blob, init_latents_bytes, init_image_blob,
       init_image_bytes, init_image_height, init_image_width, strength, guidance_rescale, loras,
       step_cache, step_cache_threshold, group_norm, exchange, progress_interval, progress_content,
       output_height, output_width, seeds);
  }
};

/// Degrees: how many actors compute the picture. They never change it (design §6).
struct Parallelism {
  std::int32_t dp = 1;
  std::int32_t cfg = 1;
  std::int32_t pp = 1;
  std::int32_t ulysses = 1;
  std::int32_t ring = 1;
  std::int32_t tp = 1;
  std::int32_t vae = 1;                   // actors that decode a replica's pictures together
  std::vector<std::int32_t> stages = {};  // blocks of each stage; empty = split by cost
  bool automatic = false;                 // the controller picks the degrees

  template <class Archive>
  void serialize(Archive& ar) {
    ar(dp, cfg, pp, ulysses, ring, tp, vae, stages, automatic);
  }
  bool operator==(const Parallelism&) const = default;
};

/// What a client submits: a picture wanted, from which model, on how many actors.
struct JobSpec {
  std::string
      model;  // folder in diffusers layout; "" = the model that the cluster was started with
  ImageRequest request;
  Parallelism parallelism;
  std::int32_t priority = 0;  // higher goes first, -100 to 100
  std::string share;     // whom it counts for when shares are made fair; "" = the client itself
  bool elastic = false;  // after a loss that is not made good, go on with fewer actors
  /// May compute as one batch with other jobs that differ in prompts and seed only: sums are then
  /// rounded otherwise than alone.
  bool may_batch = false;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(model, request, parallelism, priority, share, elastic, may_batch);
  }
};

/// A blob that somebody holds and the receiver of this reference may fetch (design §2, Blobs).
struct BlobRef {
  std::string name;  // what it is: "picture", "latents", "preview"
  std::uint64_t id = 0;
  std::uint64_t bytes = 0;
  std::vector<std::int64_t> shape;  // of tensors; empty for files

  template <class Archive>
  void serialize(Archive& ar) {
    ar(name, id, bytes, shape);
  }
};

}  // namespace troupe::wire
