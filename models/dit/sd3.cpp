#include "models/dit/sd3.h"

#include <ATen/ATen.h>

#include "models/dit/stage_checks.h"

namespace troupe::models {

namespace {

struct Sd3Step final : StepCondition {
  std::vector<at::Tensor> tensors() const override {
    auto all = JointBlock::tensors_of(blocks);
    all.push_back(last);
    return all;
  }
  JointBlock::Modulation of(const JointBlock& block, size_t index) const {
    return blocks.empty() ? block.modulation(embedded) : blocks[index];
  }

  int64_t batch = 0;
  at::Tensor embedded;  // where blocks are streamed: each makes its modulation of it
  std::vector<JointBlock::Modulation> blocks;
  at::Tensor last;
};

}  // namespace

Sd3::Sd3(const spec::Sd3Spec& spec, const StagePart& part, const WeightLoader& weights,
         at::ScalarType compute, at::Device device)
    : spec_(spec),
      part_(checked_part(kFamily, part, spec.num_layers)),
      compute_(compute),
      device_(device),
      time_text_(weights, spec.pooled_projection_dim, spec.inner_dim(), false) {
  const int64_t width = spec.inner_dim(), patch = spec.patch_size;
  const int64_t side = spec.pos_embed_max_size;
  const auto facts = spec::facts_of(spec);
  slots_ = {static_cast<int>(facts.attentions_before(part.blocks.begin)),
            static_cast<int>(facts.attentions_before(part.blocks.end))};
  if (part.embeds) {
    const at::Tensor kernel =
        weights.whole("pos_embed.proj.weight", {width, spec.in_channels, patch, patch});
    embedding_ = {
        kernels::Linear(kernel.reshape({width, -1}), weights.copy("pos_embed.proj.bias", {width})),
        weights.linear("context_embedder", spec.joint_attention_dim, width),
        weights.get("pos_embed.pos_embed", {1, side * side, width}).view({side, side, width})};
  }
  int slot = slots_.begin;
  for (int block = part.blocks.begin; block < part.blocks.end; ++block) {
    const spec::JointBlockShape shape{.width = width,
                                      .heads = spec.num_attention_heads,
                                      .head_dim = spec.attention_head_dim,
                                      .qk_norm = spec.qk_norm,
                                      .dual = spec.is_dual(block),
                                      .last = spec.is_last(block)};
    const std::string prefix = "transformer_blocks." + std::to_string(block) + ".";
    blocks_.add(weights, [shape, prefix, slot, shard = part.shard](const WeightLoader& from) {
      return JointBlock(shape, prefix, slot, shard, from);
    });
    slot += shape.dual ? 2 : 1;
  }
  if (part.projects) {
    last_ = LastLayer(weights, width, patch, spec.in_channels, spec.in_channels,
                      TokenOrder::pixels_first);
  }
}

int64_t Sd3::bytes() const {
  int64_t total = time_text_.bytes() + (last_ ? last_->bytes() : 0);
  if (embedding_) {
    total += embedding_->patch.bytes() + embedding_->text.bytes() +
             static_cast<int64_t>(embedding_->positions.nbytes());
  }
  return total + blocks_.bytes();
}

Caption Sd3::project_caption(const std::vector<EncoderOutput>& text) const {
  if (!embedding_) throw std::logic_error("[sd3] this stage holds no text embedding");
  const auto on_device = [&](const at::Tensor& t) { return t.to(device_, compute_); };
  const int64_t width = spec_.joint_attention_dim;
  if (text.size() == 1) {  // all encoders' in one already
    const EncoderOutput& all = text.front();
    if (all.states.dim() != 3 || all.states.size(2) != width)
      refuse_shape(kFamily, "the text's states", all.states, {-1, -1, width});
    return {embedding_->text(on_device(all.states)), on_device(all.pooled)};
  }
  // Both CLIPs' states side by side, filled up to T5's width, then T5's, or zeros where it is not.
  const at::Tensor clip = at::cat({on_device(text.at(0).states), on_device(text.at(1).states)}, -1);
  const int64_t missing = width - clip.size(2);
  if (missing < 0) refuse_shape(kFamily, "the CLIP encoders' states", clip, {-1, -1, width});
  const EncoderOutput& t5 = text.at(2);
  const at::Tensor after = t5.states.defined()
                               ? on_device(t5.states)
                               : at::zeros({clip.size(0), t5.tokens, width}, clip.options());
  if (after.size(2) != width) refuse_shape(kFamily, "T5's states", after, {-1, -1, width});
  const at::Tensor states = at::cat({at::constant_pad_nd(clip, {0, missing}), after}, 1);
  return {embedding_->text(states),
          at::cat({on_device(text[0].pooled), on_device(text[1].pooled)}, -1)};
}

std::unique_ptr<CaptionCache> Sd3::cache_caption(const Caption& caption,
                                                 const at::Tensor& mask) const {
  return joint_caption(kFamily, caption, mask, part_.embeds, hidden_width(),
                       spec_.pooled_projection_dim);
}

std::unique_ptr<StepCondition> Sd3::condition(const StepInput& input,
                                              const CaptionCache& caption) const {
  const auto& text = as<JointCaption>(kFamily, caption, "caption cache");
  const at::Tensor embedded = at::silu(time_text_(input.timestep, 0, text.pooled()));
  auto step = std::make_unique<Sd3Step>();
  step->batch = text.batch();
  if (blocks_.streamed()) step->embedded = embedded;
  for (int i = 0; i < std::ssize(blocks_) && !blocks_.streamed(); ++i)
    step->blocks.push_back(blocks_[i].modulation(embedded));
  if (last_) step->last = last_->modulation(embedded);
  return step;
}

at::Tensor Sd3::embed(const at::Tensor& latents, PictureSize size, TokenRows rows) const {
  if (!embedding_) throw std::logic_error("[sd3] this stage holds no patch embedding");
  const int64_t patch = spec_.patch_size, side = spec_.pos_embed_max_size;
  check_latents(kFamily, latents, spec_.in_channels, patch, size, rows);
  const int64_t high = size.latent_height / patch, wide = size.latent_width / patch;
  if (high > side || wide > side) {
    throw std::invalid_argument("[sd3] " + std::to_string(high) + " x " + std::to_string(wide) +
                                " tokens, positions for " + std::to_string(side) + " a side");
  }
  const int64_t top = (side - high) / 2, left = (side - wide) / 2;
  const at::Tensor positions = embedding_->positions.slice(0, top + rows.begin, top + rows.end)
                                   .slice(1, left, left + wide)
                                   .reshape({1, -1, hidden_width()});
  return embedding_->patch(tokens_of_latents(latents.to(device_, compute_), patch)) + positions;
}

at::Tensor Sd3::embed_text(const CaptionCache& caption, int64_t begin, int64_t end) const {
  if (!embedding_) throw std::logic_error("[sd3] this stage holds no text embedding");
  return as<JointCaption>(kFamily, caption, "caption cache").tokens(begin, end);
}

at::Tensor Sd3::run_blocks(at::Tensor hidden, const CallTokens& tokens,
                           const StepCondition& condition, const CaptionCache&,
                           AttentionPort& attention, TensorParallelPort& sums) const {
  const auto& step = as<Sd3Step>(kFamily, condition, "step condition");
  if (hidden.dim() != 3 || hidden.size(0) != step.batch || hidden.size(1) < tokens.text() ||
      hidden.size(2) != hidden_width() ||
      (!blocks_.streamed() && step.blocks.size() != blocks_.size())) {
    refuse_shape(kFamily, "hidden", hidden, {step.batch, -1, hidden_width()});
  }
  TwoStreams streams(hidden, tokens.text());
  const auto [begin, end] = own_blocks(kFamily, part_, tokens);
  for (int i = begin; i < end; ++i) {
    const JointBlock& block = blocks_[i];
    block.run(streams.text, streams.picture, step.of(block, i), {}, attention, sums);
  }
  return streams.joined();
}

at::Tensor Sd3::step_signal(const at::Tensor& hidden, const CallTokens& tokens,
                            const StepCondition& condition) const {
  require_block_0(kFamily, part_);
  const JointBlock& block = blocks_[0];
  return block.modulated(hidden.slice(1, tokens.text()).contiguous(),
                         as<Sd3Step>(kFamily, condition, "step condition").of(block, 0));
}

at::Tensor Sd3::project(const at::Tensor& hidden, const StepCondition& condition, PictureSize size,
                        TokenRows rows) const {
  if (!last_) throw std::logic_error("[sd3] this stage holds no output projection");
  check_rows(kFamily, "project", spec_.patch_size, size, rows);
  const auto& step = as<Sd3Step>(kFamily, condition, "step condition");
  const int64_t columns = size.latent_width / spec_.patch_size;
  if (hidden.sizes() !=
      at::IntArrayRef({step.batch, (rows.end - rows.begin) * columns, hidden_width()})) {
    refuse_shape(kFamily, "hidden", hidden,
                 {step.batch, (rows.end - rows.begin) * columns, hidden_width()});
  }
  return (*last_)(hidden, step.last, columns);
}

}  // namespace troupe::models
