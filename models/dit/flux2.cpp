#include "models/dit/flux2.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <string>

#include "kernels/elementwise.h"

namespace troupe::models {
namespace {

struct Flux2Step final : StageStep {
  std::vector<at::Tensor> tensors() const override {
    return {joint.picture, joint.text, single, last};
  }

  JointBlock::Modulation joint;
  at::Tensor single;
  at::Tensor last;             // undefined where the stage does not project
  RotaryAngles picture, text;  // of all tokens of each; the text's with those of references
};

/// Numbers from 0 on, in the precision in which diffusers turns by them.
at::Tensor count_to(int64_t end) {
  return at::arange(end, at::TensorOptions().dtype(at::kDouble));
}

/// Distance of pictures to edit from each other, and of the first from the one that is made, along
/// the first coordinate. Source: _prepare_image_ids of Flux2KleinPipeline.
constexpr int64_t kReferenceDistance = 10;

/// Returns the places of a picture's tokens [rows · columns, 4], the first coordinate being
/// `index`.
at::Tensor picture_places(int64_t rows, int64_t columns, int64_t index) {
  at::Tensor places = at::full({rows * columns, 4}, index, at::kDouble);
  places.select(1, 1).copy_(count_to(rows).repeat_interleave(columns));
  places.select(1, 2).copy_(count_to(columns).repeat({rows}));
  places.select(1, 3).zero_();
  return places;
}

}  // namespace

Flux2SingleBlock::Flux2SingleBlock(const spec::Flux2Spec& spec, int index, WeightShard shard,
                                   const WeightLoader& weights)
    : slot_(index),
      sharded_(shard.degree > 1),
      heads_(shard.size(spec.num_attention_heads)),
      head_dim_(spec.attention_head_dim) {
  const std::string attention =
      "single_transformer_blocks." + std::to_string(index - spec.num_layers) + ".attn.";
  const int64_t heads = spec.num_attention_heads;
  const int64_t width = spec.inner_dim(), wide = spec.feed_forward();
  const Slice own{shard.begin(heads) * head_dim_, shard.end(heads) * head_dim_};
  const Slice columns{shard.begin(wide), shard.end(wide)};
  const auto behind = [](int64_t offset, Slice of) {
    return Slice{offset + of.begin, offset + of.end};
  };
  // Queries, keys and values, then the feed-forward's two halves; of inputs, attention's first.
  const std::string in = attention + "to_qkv_mlp_proj", out = attention + "to_out";
  const int64_t outputs = 3 * width + 2 * wide;
  qkv_ = weights.rows_of(in, width, outputs, {own, behind(width, own), behind(2 * width, own)});
  widen_ = weights.rows_of(in, width, outputs,
                           {behind(3 * width, columns), behind(3 * width + wide, columns)});
  out_ = weights.narrow(out, width + wide, width, own, false, false);
  narrow_ = weights.narrow(out, width + wide, width, behind(width, columns), false, false);
  norm_q_ = weights.copy(attention + "norm_q.weight", {head_dim_});
  norm_k_ = weights.copy(attention + "norm_k.weight", {head_dim_});
}

void Flux2SingleBlock::run(at::Tensor& hidden, const at::Tensor& modulation,
                           const RotaryAngles& turns, AttentionPort& attention,
                           TensorParallelPort& sums) const {
  const int64_t batch = hidden.size(0), tokens = hidden.size(1);
  const auto gate = modulation.select(1, kGate);
  const at::Tensor normal = kernels::norm_modulate(hidden, modulation.select(1, kScale),
                                                   modulation.select(1, kShift), kEps);
  const at::Tensor qkv = qkv_(normal).view({batch, tokens, 3, heads_, head_dim_});
  at::Tensor q = qkv.select(2, 0), k = qkv.select(2, 1);
  kernels::norm_rotate(q, norm_q_, turns.cosine, turns.sine, kEps);
  kernels::norm_rotate(k, norm_k_, turns.cosine, turns.sine, kEps);
  const at::Tensor attended =
      attention.attend(slot_, qkv).view({batch, tokens, heads_ * head_dim_});
  const at::Tensor wide = silu_gated(widen_(normal));
  if (out_.quantized()) {
    add_product(hidden, out_, attended, gate, sharded_, sums);
    add_product(hidden, narrow_, wide, gate, sharded_, sums);
  } else {
    at::Tensor out = out_(attended);
    narrow_.add_to(out, wide);
    sums.sum(out);
    kernels::add_gated(hidden, out, gate);
  }
  clip_half(hidden);
}

void Flux2SingleBlock::list_tensors(std::vector<at::Tensor*>& all) {
  for (kernels::Linear* linear : {&qkv_, &widen_, &out_, &narrow_})
    linear->list_tensors(all);
  all.insert(all.end(), {&norm_q_, &norm_k_});
}

Flux2::Flux2(const spec::Flux2Spec& spec, const StagePart& part, const WeightLoader& weights,
             at::ScalarType compute, at::Device device)
    : TransformerStage("flux2", spec::facts_of(spec), part, compute, device),
      spec_(spec),
      time_(weights, "time_guidance_embed.timestep_embedder", kSineFeatures, spec.inner_dim(),
            spec.inner_dim(), false) {
  const int64_t width = spec.inner_dim();
  const auto modulation = [&](const std::string& name, int64_t values) {
    return weights.linear(name + ".linear", width, values * width, false);
  };
  picture_modulation_ = modulation("double_stream_modulation_img", 6);
  text_modulation_ = modulation("double_stream_modulation_txt", 6);
  single_modulation_ = modulation("single_stream_modulation", 3);
  if (part.embeds) {
    embedding_ = {weights.linear("x_embedder", spec.in_channels, width, false),
                  weights.linear("context_embedder", spec.joint_attention_dim, width, false)};
  }
  for (int block = part.blocks.begin; block < part.blocks.end; ++block) {
    if (block >= spec.num_layers) {
      singles_.add(weights, [spec, block, shard = part.shard](const WeightLoader& from) {
        return Flux2SingleBlock(spec, block, shard, from);
      });
      continue;
    }
    const std::string prefix = "transformer_blocks." + std::to_string(block) + ".";
    blocks_.add(weights, [shape = spec.joint_block(), prefix, block,
                          shard = part.shard](const WeightLoader& from) {
      return JointBlock(shape, prefix, block, shard, from);
    });
  }
  if (part.projects) {
    last_ = LastLayer(weights, width, patch_size(), spec.in_channels, spec.in_channels,
                      TokenOrder::channels_first, false);
  }
}

int64_t Flux2::bytes() const {
  int64_t total = time_.bytes() + (last_ ? last_->bytes() : 0);
  for (const auto* of : {&picture_modulation_, &text_modulation_, &single_modulation_})
    total += of->bytes();
  if (embedding_) total += embedding_->patch.bytes() + embedding_->text.bytes();
  return total + blocks_.bytes() + singles_.bytes();
}

Caption Flux2::caption_of(const std::vector<EncoderOutput>& text) const {
  const at::Tensor& states = text.at(0).states;
  if (states.dim() != 3 || states.size(2) != spec_.joint_attention_dim) {
    refuse_shape(family_, "the text's states", states, {-1, -1, spec_.joint_attention_dim});
  }
  return {embedding_->text(on_device(states)), {}};
}

RotaryAngles Flux2::turns_at(const at::Tensor& places) const {
  std::vector<at::Tensor> parts;
  for (int64_t axis = 0; axis < std::ssize(spec_.axes_dims_rope); ++axis) {
    parts.push_back(rotary_angles(places.select(1, axis), spec_.axes_dims_rope[axis], at::kDouble,
                                  spec_.rope_theta));
  }
  const at::Tensor angle = at::cat(parts, 1);
  return {at::cos(angle).to(device_, at::kFloat), at::sin(angle).to(device_, at::kFloat)};
}

std::unique_ptr<StepCondition> Flux2::condition(const StepInput& input,
                                                const CaptionCache& caption) const {
  const auto& text = text_of<JointCaption>(caption);
  const int64_t batch = text.batch(), width = spec_.inner_dim();
  const at::Tensor time = at::full({1}, timestep_of_flux(input.timestep), at::kFloat);
  const at::Tensor embedded =
      at::silu(time_(on_device(sine_features(time)))).expand({batch, -1}).contiguous();
  const auto modulation = [&](const kernels::Linear& of) {
    return of(embedded).view({batch, -1, width});
  };
  auto step = std::make_unique<Flux2Step>();
  step->batch = batch;
  step->joint = {modulation(picture_modulation_), modulation(text_modulation_)};
  step->single = modulation(single_modulation_);
  if (last_) step->last = last_->modulation(embedded);

  step->picture = turns_at(picture_places(input.size.latent_height, input.size.latent_width, 0));
  const auto& lengths = text.lengths();
  std::vector<at::Tensor> in_text{at::zeros({lengths.tokens, 4}, at::kDouble)};
  in_text[0].select(1, 3).copy_(count_to(lengths.tokens));
  for (const PictureSize& size : lengths.references)
    in_text.push_back(picture_places(size.latent_height, size.latent_width,
                                     kReferenceDistance * std::ssize(in_text)));
  step->text = turns_at(at::cat(in_text));
  return step;
}

at::Tensor Flux2::tokens_of(const at::Tensor& latents, PictureSize, TokenRows) const {
  return embedding_->patch(tokens_of_latents(latents, patch_size()));
}

at::Tensor Flux2::compute(at::Tensor hidden, const StepCondition& condition,
                          const CaptionCache& caption, const BlockCall& call) const {
  const auto& step = step_of<Flux2Step>(condition);
  const CallTokens& tokens = call.tokens;
  const RotaryAngles of_rows =
      rotary_angles_of_rows(step.picture, tokens.rows, tokens.size.latent_width);
  const RotaryAngles of_all =
      RotaryAngles::joined({step.text.part(tokens.text_begin, tokens.text_end), of_rows});
  const int doubles = static_cast<int>(blocks_.size());
  if (call.begin < std::min(call.end, doubles)) {
    // Pictures to edit go with the one that is made.
    const int64_t texts = tokens.text_before(text_of<JointCaption>(caption).lengths().tokens);
    TwoStreams streams(hidden, texts);
    const RotaryAngles of_texts = of_all.part(0, texts);
    const RotaryAngles of_pictures = of_all.part(texts, of_all.cosine.size(0));
    for (int i = call.begin; i < std::min(call.end, doubles); ++i) {
      blocks_[i].run(streams.text, streams.picture, step.joint, of_pictures, call.attention,
                     call.sums, of_texts);
    }
    hidden = streams.joined();
  }
  if (std::max(call.begin, doubles) >= call.end) return hidden;
  hidden = hidden.contiguous();
  for (int i = std::max(call.begin, doubles) - doubles; i < call.end - doubles; ++i)
    singles_[i].run(hidden, step.single, of_all, call.attention, call.sums);
  return hidden;
}

at::Tensor Flux2::signal_of(const at::Tensor& picture, const StepCondition& condition) const {
  const auto& step = step_of<Flux2Step>(condition);
  const at::Tensor& of = blocks_.empty() ? step.single : step.joint.picture;
  return kernels::norm_modulate(picture, of.select(1, kScale), of.select(1, kShift), kEps);
}

at::Tensor Flux2::prediction_of(const at::Tensor& hidden, const StepCondition& condition,
                                int64_t columns) const {
  return (*last_)(hidden, step_of<Flux2Step>(condition).last, columns);
}

}  // namespace troupe::models
