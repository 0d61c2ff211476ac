#include "models/dit/sd3.h"

#include <ATen/ATen.h>

namespace troupe::models {

namespace {

struct Sd3Step final : StageStep {
  std::vector<at::Tensor> tensors() const override {
    auto all = JointBlock::tensors_of(blocks);
    all.push_back(last);
    return all;
  }
  JointBlock::Modulation of(const JointBlock& block, size_t index) const {
    return blocks.empty() ? block.modulation(embedded) : blocks[index];
  }

  at::Tensor embedded;  // where blocks are streamed: each makes its modulation of it
  std::vector<JointBlock::Modulation> blocks;
  at::Tensor last;
};

}  // namespace

Sd3::Sd3(const spec::Sd3Spec& spec, const StagePart& part, const WeightLoader& weights,
         at::ScalarType compute, at::Device device)
    : TransformerStage("sd3", spec::facts_of(spec), part, compute, device),
      spec_(spec),
      time_text_(weights, spec.pooled_projection_dim, spec.inner_dim(), false) {
  const int64_t width = spec.inner_dim(), patch = spec.patch_size;
  const int64_t side = spec.pos_embed_max_size;
  if (part.embeds) {
    const at::Tensor kernel =
        weights.whole("pos_embed.proj.weight", {width, spec.in_channels, patch, patch});
    embedding_ = {
        kernels::Linear(kernel.reshape({width, -1}), weights.copy("pos_embed.proj.bias", {width})),
        weights.linear("context_embedder", spec.joint_attention_dim, width),
        weights.get("pos_embed.pos_embed", {1, side * side, width}).view({side, side, width})};
  }
  int slot = attentions().begin;
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

Caption Sd3::caption_of(const std::vector<EncoderOutput>& text) const {
  const int64_t width = spec_.joint_attention_dim;
  if (text.size() == 1) {  // all encoders' in one already
    const EncoderOutput& all = text.front();
    if (all.states.dim() != 3 || all.states.size(2) != width)
      refuse_shape(family_, "the text's states", all.states, {-1, -1, width});
    return {embedding_->text(on_device(all.states)), on_device(all.pooled)};
  }
  // Both CLIPs' states side by side, filled up to T5's width, then T5's, or zeros where it is not.
  const at::Tensor clip = at::cat({on_device(text.at(0).states), on_device(text.at(1).states)}, -1);
  const int64_t missing = width - clip.size(2);
  if (missing < 0) refuse_shape(family_, "the CLIP encoders' states", clip, {-1, -1, width});
  const EncoderOutput& t5 = text.at(2);
  const at::Tensor after = t5.states.defined()
                               ? on_device(t5.states)
                               : at::zeros({clip.size(0), t5.tokens, width}, clip.options());
  if (after.size(2) != width) refuse_shape(family_, "T5's states", after, {-1, -1, width});
  const at::Tensor states = at::cat({at::constant_pad_nd(clip, {0, missing}), after}, 1);
  return {embedding_->text(states),
          at::cat({on_device(text[0].pooled), on_device(text[1].pooled)}, -1)};
}

std::unique_ptr<StepCondition> Sd3::condition(const StepInput& input,
                                              const CaptionCache& caption) const {
  const auto& text = text_of<JointCaption>(caption);
  const at::Tensor embedded = at::silu(time_text_(input.timestep, 0, text.pooled()));
  auto step = std::make_unique<Sd3Step>();
  step->batch = text.batch();
  if (blocks_.streamed()) step->embedded = embedded;
  for (int i = 0; i < std::ssize(blocks_) && !blocks_.streamed(); ++i)
    step->blocks.push_back(blocks_[i].modulation(embedded));
  if (last_) step->last = last_->modulation(embedded);
  return step;
}

at::Tensor Sd3::tokens_of(const at::Tensor& latents, PictureSize size, TokenRows rows) const {
  const int64_t patch = spec_.patch_size, side = spec_.pos_embed_max_size;
  const int64_t high = size.latent_height / patch, wide = size.latent_width / patch;
  if (high > side || wide > side) {
    throw std::invalid_argument("[sd3] " + std::to_string(high) + " x " + std::to_string(wide) +
                                " tokens, positions for " + std::to_string(side) + " a side");
  }
  const int64_t top = (side - high) / 2, left = (side - wide) / 2;
  const at::Tensor positions = embedding_->positions.slice(0, top + rows.begin, top + rows.end)
                                   .slice(1, left, left + wide)
                                   .reshape({1, -1, hidden_width()});
  return embedding_->patch(tokens_of_latents(latents, patch)) + positions;
}

at::Tensor Sd3::compute(at::Tensor hidden, const StepCondition& condition, const CaptionCache&,
                        const BlockCall& call) const {
  const auto& step = step_of<Sd3Step>(condition);
  if (!blocks_.streamed()) require_blocks(step.blocks.size());
  TwoStreams streams(hidden, call.tokens.text());
  for (int i = call.begin; i < call.end; ++i) {
    const JointBlock& block = blocks_[i];
    block.run(streams.text, streams.picture, step.of(block, i), {}, call.attention, call.sums);
  }
  return streams.joined();
}

at::Tensor Sd3::signal_of(const at::Tensor& picture, const StepCondition& condition) const {
  const JointBlock& block = blocks_[0];
  return block.modulated(picture, step_of<Sd3Step>(condition).of(block, 0));
}

at::Tensor Sd3::prediction_of(const at::Tensor& hidden, const StepCondition& condition,
                              int64_t columns) const {
  return (*last_)(hidden, step_of<Sd3Step>(condition).last, columns);
}

}  // namespace troupe::models
