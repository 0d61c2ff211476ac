#include "models/dit/pixart.h"

#include <ATen/ATen.h>

#include "kernels/elementwise.h"
#include "models/dit/stage_checks.h"
#include "models/dit/transformer_parts.h"

namespace troupe::models {

namespace {

class PixArtStep : public StepCondition {
 public:
  explicit PixArtStep(PixArtCondition::Values given) : values(std::move(given)) {}
  std::vector<at::Tensor> tensors() const override { return {values.modulation, values.embedded}; }
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
    some->items_ = end - begin;
    for (const CaptionKv& block : blocks)
      some->blocks.push_back(block.items(begin, end));
    return some;
  }
  int64_t batch() const override { return items_; }
  int64_t items_ = 0;
  std::vector<CaptionKv> blocks;
};

}  // namespace

PixArt::PixArt(const spec::PixArtSpec& spec, int64_t pixels_per_latent, const StagePart& part,
               const WeightLoader& weights, at::ScalarType compute, at::Device device)
    : spec_(spec),
      pixels_per_latent_(pixels_per_latent),
      part_(checked_part(kFamily, part, spec.num_layers)),
      compute_(compute),
      device_(device),
      condition_(spec, weights) {
  const int64_t width = spec.inner_dim(), patch = spec.patch_size;
  if (part.embeds) embedding_.emplace(spec, weights);
  for (int block = part.blocks.begin; block < part.blocks.end; ++block) {
    blocks_.add(weights, [spec, block, shard = part.shard](const WeightLoader& from) {
      return PixArtBlock(spec, block, shard, from);
    });
  }
  if (part.projects) {
    const int64_t cells = patch * patch, channels = spec.out_channels;
    const auto noise = [&](const at::Tensor& rows) {
      return rows.reshape({cells, channels, -1})
          .slice(1, 0, spec.in_channels)
          .reshape({cells * spec.in_channels, -1});
    };
    last_table_ = weights.copy("scale_shift_table", {2, width});
    last_ = kernels::Linear(noise(weights.whole("proj_out.weight", {cells * channels, width})),
                            noise(weights.get("proj_out.bias", {cells * channels})).view({-1}));
  }
}

int64_t PixArt::bytes() const {
  int64_t total = condition_.bytes() + (embedding_ ? embedding_->bytes() : 0) + last_.bytes();
  if (last_table_.defined()) total += static_cast<int64_t>(last_table_.nbytes());
  return total + blocks_.bytes();
}

Caption PixArt::project_caption(const std::vector<EncoderOutput>& text) const {
  if (!embedding_) throw std::logic_error("[pixart] this stage holds no caption projection");
  const at::Tensor& states = text.at(0).states;
  if (states.dim() != 3 || states.size(2) != spec_.caption_channels) {
    refuse_shape(kFamily, "the caption's states", states, {-1, -1, spec_.caption_channels});
  }
  return {embedding_->caption(states.to(device_, compute_)), {}};
}

std::unique_ptr<CaptionCache> PixArt::cache_caption(const Caption& caption,
                                                    const at::Tensor& mask) const {
  const at::Tensor& projected = caption.states;
  if (projected.dim() != 3 || projected.size(1) == 0 || projected.size(2) != hidden_width()) {
    refuse_shape(kFamily, "the projected caption", projected, {-1, -1, hidden_width()});
  }
  if (mask.sizes() != projected.sizes().slice(0, 2)) {
    refuse_shape(kFamily, "the caption's mask", mask, projected.sizes().slice(0, 2));
  }
  const CaptionTokens tokens(projected.to(device_, compute_), mask);
  auto cache = std::make_unique<PixArtCaption>();
  cache->items_ = projected.size(0);
  for (int i = 0; i < std::ssize(blocks_); ++i)
    cache->blocks.push_back(blocks_[i].caption(tokens));
  return cache;
}

std::unique_ptr<StepCondition> PixArt::condition(const StepInput& input,
                                                 const CaptionCache& caption) const {
  return std::make_unique<PixArtStep>(
      condition_(input.timestep, caption.batch(), input.size.latent_height * pixels_per_latent_,
                 input.size.latent_width * pixels_per_latent_, compute_, device_));
}

at::Tensor PixArt::embed(const at::Tensor& latents, PictureSize size, TokenRows rows) const {
  if (!embedding_) throw std::logic_error("[pixart] this stage holds no patch embedding");
  check_latents(kFamily, latents, spec_.in_channels, spec_.patch_size, size, rows);
  return embedding_->tokens(latents.to(device_, compute_), size, rows);
}

at::Tensor PixArt::run_blocks(at::Tensor hidden, const CallTokens& tokens,
                              const StepCondition& condition, const CaptionCache& caption,
                              AttentionPort& attention, TensorParallelPort& sums) const {
  const auto& step = as<PixArtStep>(kFamily, condition, "step condition");
  const auto& kept = as<PixArtCaption>(kFamily, caption, "caption cache");
  const int64_t batch = step.values.embedded.size(0);
  if (hidden.dim() != 3 || hidden.size(0) != batch || hidden.size(2) != hidden_width() ||
      kept.batch() != batch || kept.blocks.size() != blocks_.size()) {
    refuse_shape(kFamily, "hidden", hidden, {kept.batch(), -1, hidden_width()});
  }
  hidden = hidden.contiguous();
  const auto [begin, end] = own_blocks(kFamily, part_, tokens);
  for (int i = begin; i < end; ++i) {
    blocks_[i].run(hidden, step.values.modulation, kept.blocks[i], attention, sums);
  }
  return hidden;
}

at::Tensor PixArt::step_signal(const at::Tensor& hidden, const CallTokens&,
                               const StepCondition& condition) const {
  require_block_0(kFamily, part_);
  return blocks_[0].modulated(
      hidden.contiguous(), as<PixArtStep>(kFamily, condition, "step condition").values.modulation);
}

at::Tensor PixArt::project(const at::Tensor& hidden, const StepCondition& condition,
                           PictureSize size, TokenRows rows) const {
  if (!part_.projects) throw std::logic_error("[pixart] this stage holds no output projection");
  check_rows(kFamily, "project", spec_.patch_size, size, rows);
  const auto& step = as<PixArtStep>(kFamily, condition, "step condition");
  const int64_t patch = spec_.patch_size, columns = size.latent_width / patch;
  const int64_t count = rows.end - rows.begin, batch = step.values.embedded.size(0);
  if (hidden.sizes() != at::IntArrayRef({batch, count * columns, hidden_width()})) {
    refuse_shape(kFamily, "hidden", hidden, {batch, count * columns, hidden_width()});
  }
  const at::Tensor factors = last_table_.unsqueeze(0) + step.values.embedded.unsqueeze(1);
  const at::Tensor normal =
      kernels::norm_modulate(hidden, factors.select(1, 1), factors.select(1, 0), kEps);
  return latents_of_tokens(last_(normal), columns, patch, TokenOrder::pixels_first);
}

}  // namespace troupe::models
