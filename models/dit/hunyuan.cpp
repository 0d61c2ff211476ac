#include "models/dit/hunyuan.h"

#include <algorithm>
#include <cmath>

#include <ATen/ATen.h>

#include "models/dit/stage_checks.h"

namespace troupe::models {

namespace {

/// Side in pixels of the pictures that positions are counted for, and that sizes are told of.
/// Source: HunyuanDiTPipeline.
constexpr int64_t kBasePixels = 512;
constexpr double kOriginalSize = 1024;

struct HunyuanStep final : StepCondition {
  std::vector<at::Tensor> tensors() const override {
    auto all = shifts;
    all.push_back(last);
    return all;
  }
  at::Tensor shift(const HunyuanBlock& block, size_t index) const {
    return shifts.empty() ? block.shift(embedded) : shifts[index];
  }

  int64_t batch = 0;
  at::Tensor embedded;             // where blocks are streamed: each makes its shift of it
  std::vector<at::Tensor> shifts;  // by block
  at::Tensor last;
  RotaryAngles turns;  // of all the picture's tokens
};

class HunyuanCaption final : public CaptionCache {
 public:
  std::unique_ptr<CaptionCache> items(int64_t begin, int64_t end) const override {
    auto some = std::make_unique<HunyuanCaption>();
    for (const at::Tensor& kv : blocks)
      some->blocks.push_back(kv.slice(0, begin, end));
    some->pooled = pooled.slice(0, begin, end);
    return some;
  }
  int64_t batch() const override { return pooled.size(0); }
  int64_t bytes() const override {
    int64_t total = static_cast<int64_t>(pooled.nbytes());
    for (const at::Tensor& kv : blocks)
      total += static_cast<int64_t>(kv.nbytes());
    return total;
  }
  std::vector<at::Tensor> blocks;  // keys and values [B, L, 2, H, d]
  at::Tensor pooled;
};

}  // namespace

Hunyuan::Hunyuan(const spec::HunyuanSpec& spec, int64_t pixels_per_latent, const StagePart& part,
                 const WeightLoader& weights, at::ScalarType compute, at::Device device)
    : spec_(spec),
      pixels_per_latent_(pixels_per_latent),
      part_(checked_part(kFamily, part, spec.num_layers)),
      compute_(compute),
      device_(device) {
  const int64_t width = spec.inner_dim(), patch = spec.patch_size;
  const auto facts = spec::facts_of(spec);
  for (int block = part.blocks.begin; block <= part.blocks.end; ++block)
    edge_widths_.push_back(facts.edge_width(part.blocks.begin, part.blocks.end, block));
  const std::string condition = "time_extra_emb.";
  timestep_ = SiluMlp(weights, condition + "timestep_embedder", kSineFeatures, width, width);
  extra_ = SiluMlp(weights, condition + "extra_embedder", spec.extra_dim(), 4 * width, width);
  if (spec.use_style_cond_and_image_meta_size)
    style_ = weights.copy(condition + "style_embedder.weight", {1, width});
  if (part.embeds) {
    const at::Tensor kernel =
        weights.whole("pos_embed.proj.weight", {width, spec.in_channels, patch, patch});
    patch_ =
        kernels::Linear(kernel.reshape({width, -1}), weights.copy("pos_embed.proj.bias", {width}));
    text_.emplace(spec, weights);
  }
  for (int block = part.blocks.begin; block < part.blocks.end; ++block) {
    blocks_.add(weights, [spec, block, shard = part.shard](const WeightLoader& from) {
      return HunyuanBlock(spec, block, shard, from);
    });
  }
  if (part.projects) {
    last_ = LastLayer(weights, width, patch, spec.in_channels,
                      (spec.learn_sigma ? 2 : 1) * spec.in_channels, TokenOrder::pixels_first);
  }
}

int64_t Hunyuan::bytes() const {
  int64_t total = timestep_.bytes() + extra_.bytes() + patch_.bytes();
  if (style_.defined()) total += static_cast<int64_t>(style_.nbytes());
  if (text_) total += text_->bytes();
  total += blocks_.bytes();
  return total + (last_ ? last_->bytes() : 0);
}

Caption Hunyuan::project_caption(const std::vector<EncoderOutput>& text) const {
  if (!text_) throw std::logic_error("[hunyuan] this stage holds no text embedding");
  return (*text_)(text, device_, compute_);
}

std::unique_ptr<CaptionCache> Hunyuan::cache_caption(const Caption& caption,
                                                     const at::Tensor& mask) const {
  const auto& states = caption.states;
  if (states.dim() != 3 || states.size(2) != spec_.cross_attention_dim)
    refuse_shape(kFamily, "the projected caption", states, {-1, -1, spec_.cross_attention_dim});
  if (!caption.pooled.defined() || caption.pooled.size(1) != spec_.pooled_projection_dim) {
    refuse_shape(kFamily, "the pooled caption", caption.pooled,
                 {states.size(0), spec_.pooled_projection_dim});
  }
  if (mask.sizes() != states.sizes().slice(0, 2))
    refuse_shape(kFamily, "the caption's mask", mask, states.sizes().slice(0, 2));
  auto cache = std::make_unique<HunyuanCaption>();
  for (int i = 0; i < std::ssize(blocks_); ++i)
    cache->blocks.push_back(blocks_[i].caption(states.to(device_, compute_)));
  cache->pooled = caption.pooled;
  return cache;
}

RotaryAngles Hunyuan::rotary_angles_of(PictureSize size) const {
  const int64_t rows = size.latent_height / spec_.patch_size;
  const int64_t columns = size.latent_width / spec_.patch_size;
  // A picture's grid is laid into the middle of a square one, in full along its longer side.
  const int64_t base = kBasePixels / pixels_per_latent_ / spec_.patch_size;
  const auto fitted = [&](int64_t shorter, int64_t longer) {
    const double share = static_cast<double>(base) / static_cast<double>(longer);
    return std::nearbyint(share * static_cast<double>(shorter));
  };
  const double high = rows > columns ? static_cast<double>(base) : fitted(rows, columns);
  const double wide = rows > columns ? fitted(columns, rows) : static_cast<double>(base);
  const auto positions = [&](int64_t count, double extent) {
    const double start = std::nearbyint((static_cast<double>(base) - extent) / 2);
    const auto number = static_cast<double>(count);
    return at::linspace(start, (start + extent) * (number - 1) / number, count,
                        at::TensorOptions().dtype(at::kFloat));
  };
  const at::Tensor row = positions(rows, high).view({rows, 1}).expand({rows, columns});
  const at::Tensor column = positions(columns, wide).view({1, columns}).expand({rows, columns});
  const int64_t half = spec_.attention_head_dim / 2;
  const at::Tensor angle = at::cat(
      {rotary_angles(column.reshape({-1}), half), rotary_angles(row.reshape({-1}), half)}, 1);
  return {at::cos(angle).to(device_, at::kFloat), at::sin(angle).to(device_, at::kFloat)};
}

std::unique_ptr<StepCondition> Hunyuan::condition(const StepInput& input,
                                                  const CaptionCache& caption) const {
  const auto& text = as<HunyuanCaption>(kFamily, caption, "caption cache");
  const auto features = [&](const std::vector<double>& values) {
    return sine_features(at::tensor(values).to(at::kFloat)).to(device_, compute_);
  };
  at::Tensor extra = text.pooled;
  if (spec_.use_style_cond_and_image_meta_size) {
    const int64_t batch = text.batch();
    const auto pixels = [&](int64_t latent) {
      return static_cast<double>(latent * pixels_per_latent_);
    };
    const at::Tensor sizes =
        features({kOriginalSize, kOriginalSize, pixels(input.size.latent_height),
                  pixels(input.size.latent_width), 0, 0})
            .view({1, -1});
    extra = at::cat({extra, sizes.expand({batch, -1}), style_.expand({batch, -1})}, 1);
  }
  const at::Tensor embedded = at::silu(timestep_(features({input.timestep})) + extra_(extra));
  auto step = std::make_unique<HunyuanStep>();
  step->batch = text.batch();
  if (blocks_.streamed()) step->embedded = embedded;
  for (int i = 0; i < std::ssize(blocks_) && !blocks_.streamed(); ++i)
    step->shifts.push_back(blocks_[i].shift(embedded));
  if (last_) step->last = last_->modulation(embedded);
  step->turns = rotary_angles_of(input.size);
  return step;
}

at::Tensor Hunyuan::embed(const at::Tensor& latents, PictureSize size, TokenRows rows) const {
  if (!text_) throw std::logic_error("[hunyuan] this stage holds no patch embedding");
  check_latents(kFamily, latents, spec_.in_channels, spec_.patch_size, size, rows);
  return patch_(tokens_of_latents(latents.to(device_, compute_), spec_.patch_size));
}

at::Tensor Hunyuan::run_blocks(at::Tensor hidden, const CallTokens& tokens,
                               const StepCondition& condition, const CaptionCache& caption,
                               AttentionPort& attention, TensorParallelPort& sums) const {
  const auto& step = as<HunyuanStep>(kFamily, condition, "step condition");
  const auto& text = as<HunyuanCaption>(kFamily, caption, "caption cache");
  const auto [begin, end] = own_blocks(kFamily, part_, tokens);
  const int64_t given = edge_widths_[begin];
  if (hidden.dim() != 3 || hidden.size(0) != step.batch || hidden.size(2) != given ||
      (!blocks_.streamed() && step.shifts.size() != blocks_.size()) ||
      text.blocks.size() != blocks_.size()) {
    refuse_shape(kFamily, "hidden", hidden, {step.batch, -1, given});
  }
  const int64_t width = hidden_width();
  std::vector<at::Tensor> left;
  for (int64_t at = given - width; at > 0; at -= width)
    left.push_back(hidden.slice(2, at, at + width));
  hidden = hidden.slice(2, 0, width).contiguous();
  const RotaryAngles turns =
      rotary_angles_of_rows(step.turns, tokens.rows, tokens.size.latent_width / spec_.patch_size);
  for (int i = begin; i < end; ++i) {
    const HunyuanBlock& block = blocks_[i];
    at::Tensor skip;
    if (block.takes_skip()) {
      skip = left.back();
      left.pop_back();
    }
    block.run(hidden, skip, step.shift(block, i), text.blocks[i], turns, attention, sums);
    if (block.leaves_skip()) left.push_back(hidden.clone());
  }
  if (left.empty()) return hidden;
  left.push_back(hidden);
  std::reverse(left.begin(), left.end());
  return at::cat(left, 2);
}

at::Tensor Hunyuan::step_signal(const at::Tensor& hidden, const CallTokens&,
                                const StepCondition& condition) const {
  require_block_0(kFamily, part_);
  const HunyuanBlock& block = blocks_[0];
  return block.modulated(hidden.contiguous(),
                         as<HunyuanStep>(kFamily, condition, "step condition").shift(block, 0));
}

at::Tensor Hunyuan::project(const at::Tensor& hidden, const StepCondition& condition,
                            PictureSize size, TokenRows rows) const {
  if (!last_) throw std::logic_error("[hunyuan] this stage holds no output projection");
  check_rows(kFamily, "project", spec_.patch_size, size, rows);
  const auto& step = as<HunyuanStep>(kFamily, condition, "step condition");
  const int64_t columns = size.latent_width / spec_.patch_size;
  const int64_t count = (rows.end - rows.begin) * columns;
  if (hidden.sizes() != at::IntArrayRef({step.batch, count, hidden_width()}))
    refuse_shape(kFamily, "hidden", hidden, {step.batch, count, hidden_width()});
  return (*last_)(hidden, step.last, columns);
}

}  // namespace troupe::models
