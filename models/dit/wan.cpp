#include "models/dit/wan.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "kernels/elementwise.h"
#include "models/dit/stage_checks.h"

namespace troupe::models {

namespace {

struct WanStep final : StepCondition {
  std::vector<at::Tensor> tensors() const override { return {embedded, modulation}; }

  at::Tensor embedded;    // [B, D]
  at::Tensor modulation;  // [B, 6, D]
  RotaryAngles turns;     // of all the video's tokens
};

class WanCaption final : public CaptionCache {
 public:
  int64_t bytes() const override {
    int64_t total = 0;
    for (const WanText& block : blocks)
      total += block.bytes();
    return total;
  }
  std::unique_ptr<CaptionCache> items(int64_t begin, int64_t end) const override {
    auto some = std::make_unique<WanCaption>();
    some->batch_ = end - begin;
    for (const WanText& block : blocks)
      some->blocks.push_back(block.items(begin, end));
    return some;
  }
  int64_t batch() const override { return batch_; }

  int64_t batch_ = 0;
  std::vector<WanText> blocks;
};

}  // namespace

Wan::Wan(const spec::WanSpec& spec, const StagePart& part, const WeightLoader& weights,
         at::ScalarType compute, at::Device device)
    : spec_(spec),
      part_(checked_part(kFamily, part, spec.num_layers)),
      compute_(compute),
      device_(device),
      time_(weights, "condition_embedder.time_embedder", kSineFeatures, spec.inner_dim(),
            spec.inner_dim()),
      modulation_(
          weights.linear("condition_embedder.time_proj", spec.inner_dim(), 6 * spec.inner_dim())) {
  const int64_t width = spec.inner_dim(), patch = spec.patch_size;
  if (part.embeds) {
    const at::Tensor kernel =
        weights.whole("patch_embedding.weight", {width, spec.in_channels, 1, patch, patch});
    const std::string text = "condition_embedder.text_embedder.linear_";
    embedding_ = {
        kernels::Linear(kernel.reshape({width, -1}), weights.copy("patch_embedding.bias", {width})),
        weights.linear(text + "1", spec.text_dim, width), weights.linear(text + "2", width, width)};
  }
  for (int block = part.blocks.begin; block < part.blocks.end; ++block) {
    blocks_.add(weights, [spec, block, shard = part.shard](const WeightLoader& from) {
      return WanBlock(spec, block, shard, from);
    });
  }
  if (part.projects) {
    last_table_ = weights.copy("scale_shift_table", {1, 2, width}).view({2, width});
    last_ = weights.linear("proj_out", width, patch * patch * spec.in_channels);
  }
}

int64_t Wan::bytes() const {
  int64_t total = time_.bytes() + modulation_.bytes() + last_.bytes();
  if (last_table_.defined()) total += static_cast<int64_t>(last_table_.nbytes());
  if (embedding_) {
    total += embedding_->patch.bytes() + embedding_->text_first.bytes() +
             embedding_->text_second.bytes();
  }
  return total + blocks_.bytes();
}

Caption Wan::project_caption(const std::vector<EncoderOutput>& text) const {
  if (!embedding_) throw std::logic_error("[wan] this stage holds no text embedding");
  const at::Tensor& states = text.at(0).states;
  if (states.dim() != 3 || states.size(2) != spec_.text_dim)
    refuse_shape(kFamily, "the text's states", states, {-1, -1, spec_.text_dim});
  // Padding is attended to, as zeros before the projection.
  const at::Tensor is_token =
      at::arange(states.size(1), at::kLong).unsqueeze(0).lt(text[0].lengths.unsqueeze(1));
  const at::Tensor kept =
      states.to(device_, compute_).masked_fill(is_token.logical_not().unsqueeze(2).to(device_), 0);
  const int64_t missing = std::max<int64_t>(text[0].tokens - kept.size(1), 0);
  const at::Tensor padded = at::constant_pad_nd(kept, {0, 0, 0, missing});
  return {embedding_->text_second(embedding_->text_first.gelu(padded)), {}};
}

std::unique_ptr<CaptionCache> Wan::cache_caption(const Caption& caption, const at::Tensor&) const {
  const at::Tensor& projected = caption.states;
  if (projected.dim() != 3 || projected.size(1) == 0 || projected.size(2) != hidden_width())
    refuse_shape(kFamily, "the projected text", projected, {-1, -1, hidden_width()});
  const at::Tensor states = projected.to(device_, compute_);
  auto cache = std::make_unique<WanCaption>();
  cache->batch_ = states.size(0);
  for (int i = 0; i < std::ssize(blocks_); ++i)
    cache->blocks.push_back(blocks_[i].text(states));
  return cache;
}

RotaryAngles Wan::rotary_angles_of(PictureSize size) const {
  const int64_t patch = spec_.patch_size, frames = size.frames;
  const int64_t rows = size.latent_height / frames / patch, columns = size.latent_width / patch;
  const auto angles = [](int64_t count, int64_t width) {
    return rotary_angles(at::arange(count, at::TensorOptions().dtype(at::kDouble)), width);
  };
  const at::Tensor frame = angles(frames, spec_.frame_dim()).view({frames, 1, 1, -1});
  const at::Tensor row = angles(rows, spec_.side_dim()).view({1, rows, 1, -1});
  const at::Tensor column = angles(columns, spec_.side_dim()).view({1, 1, columns, -1});
  const auto of_all = [&](at::Tensor (*wave)(const at::Tensor&)) {
    const auto spread = [&](const at::Tensor& angle) {
      return wave(angle).to(device_, at::kFloat).expand({frames, rows, columns, angle.size(3)});
    };
    return at::cat({spread(frame), spread(row), spread(column)}, 3)
        .view({frames * rows * columns, spec_.attention_head_dim / 2});
  };
  return {of_all(at::cos), of_all(at::sin)};
}

std::unique_ptr<StepCondition> Wan::condition(const StepInput& input,
                                              const CaptionCache& caption) const {
  const PictureSize size = input.size;
  if (size.frames < 1 || size.latent_height % (size.frames * spec_.patch_size) != 0) {
    throw std::invalid_argument("[wan] " + std::to_string(size.frames) + " latent frames in " +
                                std::to_string(size.latent_height) + " rows");
  }
  auto step = std::make_unique<WanStep>();
  const at::Tensor features =
      sine_features(at::tensor({input.timestep}, at::kDouble)).to(device_, compute_);
  const at::Tensor embedded = time_(features);
  const int64_t batch = caption.batch();
  step->modulation =
      modulation_(at::silu(embedded)).view({1, 6, hidden_width()}).expand({batch, -1, -1});
  step->embedded = embedded.expand({batch, -1});
  step->turns = rotary_angles_of(size);
  return step;
}

at::Tensor Wan::embed(const at::Tensor& latents, PictureSize size, TokenRows rows) const {
  if (!embedding_) throw std::logic_error("[wan] this stage holds no patch embedding");
  check_latents(kFamily, latents, spec_.in_channels, spec_.patch_size, size, rows);
  return embedding_->patch(tokens_of_latents(latents.to(device_, compute_), spec_.patch_size));
}

at::Tensor Wan::run_blocks(at::Tensor hidden, const CallTokens& tokens,
                           const StepCondition& condition, const CaptionCache& caption,
                           AttentionPort& attention, TensorParallelPort& sums) const {
  const auto& step = as<WanStep>(kFamily, condition, "step condition");
  const auto& text = as<WanCaption>(kFamily, caption, "caption cache");
  const RotaryAngles turns =
      rotary_angles_of_rows(step.turns, tokens.rows, tokens.size.latent_width / spec_.patch_size);
  if (hidden.dim() != 3 || hidden.size(0) != text.batch() ||
      hidden.size(1) != turns.cosine.size(0) || hidden.size(2) != hidden_width() ||
      text.blocks.size() != blocks_.size()) {
    refuse_shape(kFamily, "hidden", hidden, {text.batch(), turns.cosine.size(0), hidden_width()});
  }
  hidden = hidden.contiguous();
  const auto [begin, end] = own_blocks(kFamily, part_, tokens);
  for (int i = begin; i < end; ++i)
    blocks_[i].run(hidden, step.modulation, text.blocks[i], turns, attention, sums);
  return hidden;
}

at::Tensor Wan::step_signal(const at::Tensor&, const CallTokens&,
                            const StepCondition& condition) const {
  return as<WanStep>(kFamily, condition, "step condition").embedded;
}

at::Tensor Wan::project(const at::Tensor& hidden, const StepCondition& condition, PictureSize size,
                        TokenRows rows) const {
  if (!part_.projects) throw std::logic_error("[wan] this stage holds no output projection");
  check_rows(kFamily, "project", spec_.patch_size, size, rows);
  const auto& step = as<WanStep>(kFamily, condition, "step condition");
  const int64_t patch = spec_.patch_size, columns = size.latent_width / patch;
  const int64_t batch = step.embedded.size(0), count = rows.end - rows.begin;
  if (hidden.sizes() != at::IntArrayRef({batch, count * columns, hidden_width()}))
    refuse_shape(kFamily, "hidden", hidden, {batch, count * columns, hidden_width()});
  const at::Tensor factors = last_table_.unsqueeze(0) + step.embedded.unsqueeze(1);
  const at::Tensor normal = kernels::norm_modulate(hidden.contiguous(), factors.select(1, 1),
                                                   factors.select(1, 0), spec_.eps);
  return latents_of_tokens(last_(normal), columns, patch, TokenOrder::pixels_first);
}

}  // namespace troupe::models
