#include "models/dit/pixart.h"

#include <sstream>
#include <stdexcept>

#include <ATen/ATen.h>

#include "kernels/elementwise.h"

namespace troupe::models {

namespace {

constexpr double kLastEps = 1e-6;

class PixArtStep : public StepCondition {
 public:
  explicit PixArtStep(PixArtCondition::Values given) : values(std::move(given)) {}
  PixArtCondition::Values values;
};

class PixArtCaption : public CaptionCache {
 public:
  int64_t bytes() const override {
    int64_t total = 0;
    for (const CaptionKv& block : blocks)
      total += block.bytes();
    return total;
  }
  std::unique_ptr<CaptionCache> items(int64_t begin, int64_t end) const override {
    auto some = std::make_unique<PixArtCaption>();
    some->batch = end - begin;
    for (const CaptionKv& block : blocks)
      some->blocks.push_back(block.items(begin, end));
    return some;
  }
  int64_t batch = 0;
  std::vector<CaptionKv> blocks;
};

template <class T, class Base>
const T& as(const Base& given, const char* what) {
  const T* found = dynamic_cast<const T*>(&given);
  if (!found) throw std::invalid_argument(std::string("[pixart] ") + what + " of another model");
  return *found;
}

[[noreturn]] void refuse_shape(const char* what, const at::Tensor& given,
                               at::IntArrayRef expected) {
  std::ostringstream text;
  text << "[pixart] " << what << " has shape " << given.sizes() << ", expected " << expected;
  throw std::invalid_argument(text.str());
}

StagePart checked(const StagePart& part, const spec::PixArtSpec& spec) {
  if (part.blocks.begin < 0 || part.blocks.end < part.blocks.begin ||
      part.blocks.end > spec.num_layers) {
    std::ostringstream text;
    text << "[pixart] blocks " << part.blocks.begin << " to " << part.blocks.end << " of "
         << spec.num_layers;
    throw std::invalid_argument(text.str());
  }
  if (part.shard.degree < 1 || part.shard.rank < 0 || part.shard.rank >= part.shard.degree) {
    throw std::invalid_argument("[pixart] shard " + std::to_string(part.shard.rank) + " of " +
                                std::to_string(part.shard.degree));
  }
  return part;
}

}  // namespace

PixArt::PixArt(const spec::PixArtSpec& spec, int64_t pixels_per_latent, const StagePart& part,
               const WeightLoader& weights, at::ScalarType compute, at::Device device)
    : spec_(spec),
      pixels_per_latent_(pixels_per_latent),
      part_(checked(part, spec)),
      compute_(compute),
      device_(device),
      condition_(spec, weights) {
  const int64_t width = spec.inner_dim(), patch = spec.patch_size;
  if (part.embeds) embedding_.emplace(spec, weights);
  for (int block = part.blocks.begin; block < part.blocks.end; ++block) {
    blocks_.emplace_back(spec, block, part.shard, weights);
  }
  if (part.projects) {
    const int64_t cells = patch * patch, channels = spec.out_channels;
    const auto noise = [&](const at::Tensor& rows) {
      return rows.reshape({cells, channels, -1})
          .slice(1, 0, spec.in_channels)
          .reshape({cells * spec.in_channels, -1});
    };
    last_table_ = weights.copy("scale_shift_table", {2, width});
    last_ = kernels::Linear(noise(weights.get("proj_out.weight", {cells * channels, width})),
                            noise(weights.get("proj_out.bias", {cells * channels})).view({-1}));
  }
}

int64_t PixArt::bytes() const {
  int64_t total = condition_.bytes() + (embedding_ ? embedding_->bytes() : 0) + last_.bytes();
  if (last_table_.defined()) total += static_cast<int64_t>(last_table_.nbytes());
  for (const PixArtBlock& block : blocks_)
    total += block.bytes();
  return total;
}

void PixArt::check_size(const char* who, PictureSize size, TokenRows rows) const {
  const int64_t patch = spec_.patch_size;
  if (size.latent_height > 0 && size.latent_width > 0 && size.latent_height % patch == 0 &&
      size.latent_width % patch == 0 && rows.begin >= 0 && rows.begin < rows.end &&
      rows.end <= size.latent_height / patch) {
    return;
  }
  std::ostringstream text;
  text << "[pixart] " << who << ": latents of " << size.latent_height << " x " << size.latent_width
       << ", token rows " << rows.begin << " to " << rows.end << ", patch size " << patch;
  throw std::invalid_argument(text.str());
}

at::Tensor PixArt::project_caption(const at::Tensor& states) const {
  if (!embedding_) throw std::logic_error("[pixart] this stage holds no caption projection");
  if (states.dim() != 3 || states.size(2) != spec_.caption_channels) {
    refuse_shape("the caption's states", states, {-1, -1, spec_.caption_channels});
  }
  return embedding_->caption(states.to(device_, compute_));
}

std::unique_ptr<CaptionCache> PixArt::cache_caption(const at::Tensor& projected,
                                                    const at::Tensor& mask) const {
  if (projected.dim() != 3 || projected.size(1) == 0 || projected.size(2) != hidden_width()) {
    refuse_shape("the projected caption", projected, {-1, -1, hidden_width()});
  }
  if (mask.sizes() != projected.sizes().slice(0, 2)) {
    refuse_shape("the caption's mask", mask, projected.sizes().slice(0, 2));
  }
  const CaptionTokens tokens(projected.to(device_, compute_), mask);
  auto cache = std::make_unique<PixArtCaption>();
  cache->batch = projected.size(0);
  for (const PixArtBlock& block : blocks_)
    cache->blocks.push_back(block.caption(tokens));
  return cache;
}

std::unique_ptr<StepCondition> PixArt::condition(double timestep, int64_t batch,
                                                 PictureSize size) const {
  return std::make_unique<PixArtStep>(
      condition_(timestep, batch, size.latent_height * pixels_per_latent_,
                 size.latent_width * pixels_per_latent_, compute_, device_));
}

at::Tensor PixArt::embed(const at::Tensor& latents, PictureSize size, TokenRows rows) const {
  if (!embedding_) throw std::logic_error("[pixart] this stage holds no patch embedding");
  check_size("embed", size, rows);
  const int64_t height = (rows.end - rows.begin) * spec_.patch_size;
  if (latents.dim() != 4 || latents.size(1) != spec_.in_channels || latents.size(2) != height ||
      latents.size(3) != size.latent_width) {
    refuse_shape("latents", latents, {-1, spec_.in_channels, height, size.latent_width});
  }
  return embedding_->tokens(latents.to(device_, compute_), size, rows);
}

at::Tensor PixArt::run_blocks(at::Tensor hidden, const StepCondition& condition,
                              const CaptionCache& caption, AttentionPort& attention,
                              TensorParallelPort& sums) const {
  const auto& step = as<PixArtStep>(condition, "step condition");
  const auto& kept = as<PixArtCaption>(caption, "caption cache");
  const int64_t batch = step.values.embedded.size(0);
  if (hidden.dim() != 3 || hidden.size(0) != batch || hidden.size(2) != hidden_width() ||
      kept.batch != batch || kept.blocks.size() != blocks_.size()) {
    refuse_shape("hidden", hidden, {kept.batch, -1, hidden_width()});
  }
  hidden = hidden.contiguous();
  for (size_t i = 0; i < blocks_.size(); ++i) {
    blocks_[i].run(hidden, step.values.modulation, kept.blocks[i], attention, sums);
  }
  return hidden;
}

at::Tensor PixArt::project(const at::Tensor& hidden, const StepCondition& condition,
                           PictureSize size, TokenRows rows) const {
  if (!part_.projects) throw std::logic_error("[pixart] this stage holds no output projection");
  check_size("project", size, rows);
  const auto& step = as<PixArtStep>(condition, "step condition");
  const int64_t patch = spec_.patch_size, columns = size.latent_width / patch;
  const int64_t count = rows.end - rows.begin, batch = step.values.embedded.size(0);
  if (hidden.sizes() != at::IntArrayRef({batch, count * columns, hidden_width()})) {
    refuse_shape("hidden", hidden, {batch, count * columns, hidden_width()});
  }
  const at::Tensor factors = last_table_.unsqueeze(0) + step.values.embedded.unsqueeze(1);
  const at::Tensor normal =
      kernels::norm_modulate(hidden, factors.select(1, 1), factors.select(1, 0), kLastEps);
  return last_(normal)
      .view({batch, count, columns, patch, patch, spec_.in_channels})
      .permute({0, 5, 1, 3, 2, 4})
      .reshape({batch, spec_.in_channels, count * patch, columns * patch});
}

}  // namespace troupe::models
