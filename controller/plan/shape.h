#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "controller/plan/machine.h"
#include "controller/plan/plan.h"
#include "models/spec/model_spec.h"

namespace troupe::plan {

/// Number of tensors of a token's width that one of our blocks reads or writes beside its products.
inline constexpr double kActivationsPerToken = 20;

/// One level of a U-Net, of which deeper ones have fewer positions.
struct ShapeLevel {
  double share = 1;  // of the positions of the latents
  double width = 0;
  double weights = 0;     // weights that each of its positions meets
  double attentions = 0;  // each over all of its positions, and one over the text's
};

/// Sizes that costs depend on in a diffusion transformer and the parts around it. Models that
/// cannot be loaded here have shapes, too.
struct ModelShape {
  int layers = 0;
  double width = 0;
  int heads = 0;
  /// Weights of one block that every token meets in a matrix product; the mean, where blocks
  /// differ.
  double weights_per_block = 0;
  /// Elements of all weights that one block keeps; the mean. 0 = not known.
  double stored_per_block = 0;
  /// Weights of each block that every token meets, where blocks differ; may be empty.
  std::vector<double> weights_of_blocks = {};
  /// Blocks that attend to the picture's tokens alone as well (SD3.5 medium); may be empty.
  std::vector<bool> picture_attentions = {};
  std::vector<bool> without_text = {};  // blocks of the picture's tokens alone
  /// Earlier block of each block whose hidden states it takes up again; -1: none. May be empty.
  std::vector<int> skip_from = {};
  /// Number of sums over shards of the weights that a block waits for.
  double sums_per_block = 3;
  /// Weights of one block, among weights_per_block, that a caption's tokens meet once a job (K,V of
  /// cross-attention).
  double caption_weights_per_block = 0;
  /// FLOPs of a token at the two ends: of its embedding before the first block, and of projection
  /// and sampler after the last.
  double embedding_flops = 0;
  double projection_flops = 0;
  /// Levels of a U-Net, which is one block; empty: a transformer, whose tokens all meet the same.
  std::vector<ShapeLevel> levels = {};
  /// Values that a U-Net's patch tells the others, of each of its positions and of each column of
  /// the picture, and the layers that do so.
  double told_per_position = 0;
  double told_per_column = 0;
  double telling_layers = 0;
  /// True if a picture is encoded whose channels stand beside the latents.
  bool encodes_beside = false;
  /// FLOPs of a vision tower for all frames that it sees.
  double vision_flops = 0;
  /// Latent pixels of each picture to edit, and of each frame that a video is given, three times:
  /// they are counted as if one actor encoded them.
  std::vector<double> edited_pixels = {};
  /// True when text tokens are part of the sequence (SD3, FLUX); else they are cross-attended to.
  /// `text_tokens` counts the tokens of pictures to edit, too.
  bool joint = false;
  int text_tokens = 0;
  /// Number of them that are pictures', which no text encoder encodes.
  int edited_tokens = 0;
  /// Work of the text encoders' vision towers, once for all texts.
  double seen_flops = 0;
  /// Number of kernels that one block launches.
  int operations_per_block = 0;
  /// Number of tensors of a token's width that a block's operations read or write beside the
  /// products.
  double elementwise_per_block = kActivationsPerToken;
  /// FLOPs of the autoencoder's halves for each latent pixel, and the width of an attention over
  /// latent pixels that costs what theirs does (0 = none).
  double decoder_flops = 0;
  double encoder_flops = 0;
  double vae_attention_width = 0;
  int decoder_convolutions = 0;
  int encoder_convolutions = 0;
  /// FLOPs of all text encoders for each token, and of each encoder by itself; empty: there is one.
  double text_flops = 0;
  std::vector<double> text_encoder_flops = {};
};

/// Returns the shape of the model; `text_tokens` comes from the request.
ModelShape shape_of(const spec::ModelSpec& model, const wire::ImageRequest& request);

/// Returns the cost of each block for one picture of so many tokens, with what stands before the
/// first block and after the last: stages are split by these. In FLOPs; where rates are known, in
/// seconds of all kinds of work.
std::vector<double> block_costs(const ModelShape& model, double tokens,
                                const WorkRates& rates = {});

/// Returns what the blocks of each stage cost, as multiples of a mean block; without the two ends.
std::vector<double> stage_weights(const ModelShape& model, double tokens,
                                  const std::vector<int>& stages, const WorkRates& rates = {});

/// Sizes and choices that costs depend on in a request. Degrees are not in here.
struct JobShape {
  Method method = Method::exact;
  bool predict = false;
  ComputeType dtype = ComputeType::float32;
  WeightChoice weight_dtype = WeightChoice::as_computed;
  OffloadChoice offload = OffloadChoice::none;
  std::vector<wire::RowRange> patches;  // token rows; one entry = whole picture
  int columns = 0;
  int patch_size = 2;       // latent pixels along a token's side
  int latent_channels = 4;  // channels of the latents, and of the prediction
  int pictures = 1;
  bool guidance = true;
  int steps = 20;
  int synchronous_steps = 20;
  int most_items = 0;          // most items in a part of a whole step; 0 = no bound
  bool decodes = true;         // text encoder and decoder count
  bool encodes = false;        // the job begins with a picture
  bool encodes_text = true;    // else the request brings the encoders' output
  bool makes_pictures = true;  // else the job's latents are what comes back
  bool tells = true;           // patches exchange after the synchronous steps
  bool alone = false;          // patches attend to their own tokens only

  int rows() const { return patches.empty() ? 0 : patches.back().end; }
  double tokens() const { return static_cast<double>(rows()) * columns; }
};

JobShape shape_of(const Plan& plan);

/// Multiply-accumulates: of one step with all pictures and branches, and those of the text's keys
/// and values, once a job.
struct Macs {
  double step = 0;
  double text = 0;
};
Macs macs_of(const ModelShape& model, const JobShape& job);

/// Traits of an engine where engines differ in how they compute. The default is Troupe.
struct Engine {
  /// Number of copies of all K,V that a block makes in a patch's micro-step.
  double kv_copies = 0;
  /// True when a joint model's text tokens are computed with every patch, not with the first one
  /// only.
  bool text_with_every_patch = false;
  /// True when a step of the whole picture sends its batch through the pipeline in parts.
  bool parts_of_batch = true;
  /// True when stages get ceil(layers ÷ pp) blocks each, the last ones what is left.
  bool ceiling_stages = false;
  /// Seconds that the host waits around each message of a pipeline.
  double message_overhead = 0;
  /// Time of issuing an operation ÷ the time from C++.
  double launch_factor = 1;
  /// Seconds of the host for each call of a collective, and each exchange of a ring.
  double call_overhead = 0;
  /// Number of operations that merge one more part of a ring's attention.
  double operations_per_part = 2;
  /// Number of operations before the first block, and after the last with the sampler's step.
  double operations_at_an_end = 12;
  /// True when a ring's blocks and DistriFusion's exchange travel while the device computes.
  bool overlaps = true;
};

/// Returns the number of blocks of each stage, where nobody listed them.
std::vector<int> stage_sizes(const ModelShape& model, const JobShape& job, int stages,
                             const Engine& engine = {}, const WorkRates& rates = {});

}  // namespace troupe::plan
