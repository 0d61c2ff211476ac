#include "controller/plan/memory.h"

#include <algorithm>
#include <numeric>

namespace troupe::plan {
namespace {

std::uint64_t bytes_of(const std::string& dtype) {
  return dtype == "float32" ? 4 : 2;
}

/// Bytes of a weight in the compute type, given its bytes as stored.
std::uint64_t converted(std::uint64_t stored, std::uint64_t stored_size,
                        std::uint64_t compute_size) {
  return stored / stored_size * compute_size;
}

std::uint64_t stored_element_size(const spec::WeightIndex& weights) {
  for (const auto& entry : weights.tensors())
    return spec::dtype_bytes(entry.dtype);
  return 4;
}

/// Largest activations of the decoder: three feature maps of its widest full-resolution level, in
/// float32.
std::uint64_t decoder_activations(const Plan& plan, const spec::VaeSpec& vae) {
  std::uint64_t largest = 0;
  const auto levels = static_cast<std::int64_t>(vae.block_out_channels.size());
  for (std::int64_t level = 0; level < levels; ++level) {
    const std::int64_t scale = std::int64_t{1} << (levels - 1 - level);
    const std::int64_t wide = vae.block_out_channels[std::min(level + 1, levels - 1)];
    const std::int64_t pixels = plan.latent_height * plan.latent_width * scale * scale;
    largest = std::max<std::uint64_t>(largest, pixels * wide * 4);
  }
  return 3 * largest;
}

}  // namespace

std::uint64_t ActorMemory::peak() const {
  return weights + std::max({kv + activations, text, vae + activations});
}

std::vector<ActorMemory> estimate_memory(const Plan& plan, const spec::ModelSpec& model) {
  const auto& transformer = model.transformer;
  const auto parts = spec::weight_bytes(model);
  const std::uint64_t size = bytes_of(plan.request.dtype);
  const std::uint64_t stored = stored_element_size(model.transformer_weights);
  const mesh::Mesh mesh(plan.degrees);
  std::vector<ActorMemory> memory(plan.degrees.world());
  for (int rank = 0; rank < plan.degrees.world(); ++rank) {
    const auto at = mesh.coordinates(rank);
    const Stage& stage = plan.stages[at.pp];
    const auto images =
        static_cast<std::uint64_t>(plan.images[at.dp].end - plan.images[at.dp].begin);
    const std::uint64_t batch = images * plan.branches_per_actor();
    const std::uint64_t tokens = plan.token_rows * plan.token_columns;
    const std::uint64_t width = transformer.inner_dim();
    std::uint64_t weights = std::accumulate(parts.blocks.begin() + stage.first_block,
                                            parts.blocks.begin() + stage.last_block, parts.shared);
    if (at.pp == 0) weights += parts.embed;
    if (at.pp == plan.degrees.pp - 1) weights += parts.final;
    ActorMemory& own = memory[rank];
    own.weights = converted(weights, stored, size);
    const std::uint64_t caption_tokens = plan.request.max_sequence_length;
    const std::uint64_t per_block = 2 * batch * width * size;  // K and V, a token
    own.kv = stage.blocks() * per_block * (caption_tokens + (plan.patches.size() > 1 ? tokens : 0));
    // Hidden states, the feed-forward's four-fold ones, q,k,v, and transfers under way.
    own.activations = batch * tokens * width * size * 10 + 4 * images * plan.latent_channels *
                                                               plan.latent_height *
                                                               plan.latent_width * 4;
    if (rank == plan.text_rank(at.dp)) own.text = parts.text_encoder_peak;
    if (rank == plan.decode_rank(at.dp))
      own.vae = parts.vae_decoder + decoder_activations(plan, model.vae);
  }
  return memory;
}

}  // namespace troupe::plan
