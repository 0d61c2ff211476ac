#include "models/dit/qwen_image.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <string>

namespace troupe::models {
namespace {

struct QwenImageStep final : StageStep {
  std::vector<at::Tensor> tensors() const override {
    auto all = JointBlock::tensors_of(blocks);
    all.push_back(last);
    return all;
  }
  JointBlock::Modulation of(const JointBlock& block, size_t index) const {
    return blocks.empty() ? made_by(block, embedded, clean) : blocks[index];
  }
  /// `clean`: the end's timestep, if pictures to edit are modulated by that; else undefined.
  static JointBlock::Modulation made_by(const JointBlock& block, const at::Tensor& embedded,
                                        const at::Tensor& clean) {
    auto made = block.modulation(embedded);
    if (clean.defined()) made.reference = block.picture_modulation(clean);
    return made;
  }

  at::Tensor embedded, clean;  // where blocks are streamed: each makes its modulation of them
  std::vector<JointBlock::Modulation> blocks;
  at::Tensor last;
  // Turns of all tokens of each; those of pictures to edit stand behind the text's.
  RotaryAngles picture, text;
};

/// Integers [begin, end) as positions, in the precision in which diffusers turns by them.
at::Tensor positions(int64_t begin, int64_t end) {
  return at::arange(begin, end, at::TensorOptions().dtype(at::kFloat));
}

}  // namespace

QwenImage::QwenImage(const spec::QwenImageSpec& spec, const StagePart& part,
                     const WeightLoader& weights, at::ScalarType compute, at::Device device)
    : TransformerStage("qwen_image", spec::facts_of(spec), part, compute, device),
      spec_(spec),
      time_(weights, "time_text_embed.timestep_embedder", kSineFeatures, spec.inner_dim(),
            spec.inner_dim()) {
  const int64_t width = spec.inner_dim();
  if (part.embeds) {
    embedding_ = {weights.linear("img_in", spec.in_channels, width),
                  weights.linear("txt_in", spec.joint_attention_dim, width),
                  weights.copy("txt_norm.weight", {spec.joint_attention_dim})};
  }
  for (int block = part.blocks.begin; block < part.blocks.end; ++block) {
    const spec::JointBlockShape shape{.width = width,
                                      .heads = spec.num_attention_heads,
                                      .head_dim = spec.attention_head_dim,
                                      .qk_norm = true,
                                      .clips_half = true,
                                      .names = spec::kQwenImageNames};
    const std::string prefix = "transformer_blocks." + std::to_string(block) + ".";
    blocks_.add(weights, [shape, prefix, block, shard = part.shard](const WeightLoader& from) {
      return JointBlock(shape, prefix, block, shard, from);
    });
  }
  if (part.projects) {
    last_ = LastLayer(weights, width, patch_size(), spec.latent_channels(), spec.latent_channels(),
                      TokenOrder::channels_first);
  }
}

int64_t QwenImage::bytes() const {
  int64_t total = time_.bytes() + (last_ ? last_->bytes() : 0);
  if (embedding_) {
    total += embedding_->patch.bytes() + embedding_->text.bytes() +
             static_cast<int64_t>(embedding_->text_norm.nbytes());
  }
  return total + blocks_.bytes();
}

Caption QwenImage::caption_of(const std::vector<EncoderOutput>& text) const {
  const at::Tensor& states = text.at(0).states;
  const int64_t width = spec_.joint_attention_dim;
  if (states.dim() != 3 || states.size(2) != width)
    refuse_shape(family_, "the text's states", states, {-1, -1, width});
  const at::Tensor normal = at::rms_norm(on_device(states).to(at::kFloat), {width}, {}, kEps)
                                .to(compute_)
                                .mul_(embedding_->text_norm);
  return {embedding_->text(normal), {}};
}

RotaryAngles QwenImage::turns_at(const at::Tensor& frame, const at::Tensor& row,
                                 const at::Tensor& column) const {
  const auto& axes = spec_.axes_dims_rope;
  const at::Tensor angle =
      at::cat({rotary_angles(frame, axes[0], at::kFloat), rotary_angles(row, axes[1], at::kFloat),
               rotary_angles(column, axes[2], at::kFloat)},
              1);
  return {at::cos(angle).to(device_), at::sin(angle).to(device_)};
}

RotaryAngles QwenImage::turns_of(PictureSize size, int64_t frame) const {
  const int64_t rows = size.latent_height / patch_size();
  const int64_t columns = size.latent_width / patch_size();
  const at::Tensor row = positions(rows / 2 - rows, rows / 2).repeat_interleave(columns);
  const at::Tensor column = positions(columns / 2 - columns, columns / 2).repeat({rows});
  return turns_at(at::full_like(row, frame), row, column);
}

std::unique_ptr<StepCondition> QwenImage::condition(const StepInput& input,
                                                    const CaptionCache& caption) const {
  const auto& text = text_of<JointCaption>(caption);
  const auto& lengths = text.lengths();
  const int64_t batch = text.batch();
  const auto embedded_at = [&](float part) {
    const at::Tensor features =
        sine_features(at::tensor({part}, at::kFloat), 1000).to(device_, compute_);
    return at::silu(time_(features)).expand({batch, -1});
  };
  const at::Tensor embedded = embedded_at(static_cast<float>(input.timestep) / 1000.0F);
  at::Tensor clean;
  if (spec_.zero_cond_t && !lengths.references.empty()) clean = embedded_at(0);
  auto step = std::make_unique<QwenImageStep>();
  step->batch = batch;
  if (blocks_.streamed()) {
    step->embedded = embedded;
    step->clean = clean;
  }
  for (int i = 0; i < std::ssize(blocks_) && !blocks_.streamed(); ++i)
    step->blocks.push_back(QwenImageStep::made_by(blocks_[i], embedded, clean));
  if (last_) step->last = last_->modulation(embedded);

  // The text goes on where the longest side of all pictures ends.
  int64_t longest = std::max(input.size.latent_height, input.size.latent_width);
  for (const PictureSize& size : lengths.references)
    longest = std::max({longest, size.latent_height, size.latent_width});
  const int64_t first = longest / patch_size() / 2;
  const at::Tensor behind = positions(first, first + lengths.tokens);
  std::vector<RotaryAngles> in_text{turns_at(behind, behind, behind)};
  for (const PictureSize& size : lengths.references)
    in_text.push_back(turns_of(size, std::ssize(in_text)));
  step->picture = turns_of(input.size, 0);
  step->text = RotaryAngles::joined(in_text);
  return step;
}

at::Tensor QwenImage::tokens_of(const at::Tensor& latents, PictureSize, TokenRows) const {
  return embedding_->patch(tokens_of_latents(latents, patch_size()));
}

at::Tensor QwenImage::compute(at::Tensor hidden, const StepCondition& condition,
                              const CaptionCache& caption, const BlockCall& call) const {
  const auto& step = step_of<QwenImageStep>(condition);
  const CallTokens& tokens = call.tokens;
  if (!step.embedded.defined()) require_blocks(step.blocks.size());
  const RotaryAngles of_rows =
      rotary_angles_of_rows(step.picture, tokens.rows, tokens.size.latent_width / patch_size());
  const RotaryAngles of_all =
      RotaryAngles::joined({step.text.part(tokens.text_begin, tokens.text_end), of_rows});
  // Pictures to edit go with the one that is made.
  const int64_t texts = tokens.text_before(text_of<JointCaption>(caption).lengths().tokens);
  const RotaryAngles of_text = of_all.part(0, texts);
  const RotaryAngles turns = of_all.part(texts, of_all.cosine.size(0));
  TwoStreams streams(hidden, texts);
  for (int i = call.begin; i < call.end; ++i) {
    const JointBlock& block = blocks_[i];
    block.run(streams.text, streams.picture, step.of(block, i), turns, call.attention, call.sums,
              of_text, tokens.text() - texts);
  }
  return streams.joined();
}

at::Tensor QwenImage::signal_of(const at::Tensor& picture, const StepCondition& condition) const {
  const JointBlock& block = blocks_[0];
  return block.modulated(picture, step_of<QwenImageStep>(condition).of(block, 0));
}

at::Tensor QwenImage::prediction_of(const at::Tensor& hidden, const StepCondition& condition,
                                    int64_t columns) const {
  return (*last_)(hidden, step_of<QwenImageStep>(condition).last, columns);
}

}  // namespace troupe::models
