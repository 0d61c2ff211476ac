#include "models/dit/flux.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "kernels/elementwise.h"
#include "models/dit/transformer_parts.h"

namespace troupe::models {

struct FluxStep final : StageStep {
  std::vector<at::Tensor> tensors() const override {
    auto all = JointBlock::tensors_of(blocks);
    all.insert(all.end(), singles.begin(), singles.end());
    all.push_back(last);
    return all;
  }
  JointBlock::Modulation of(const JointBlock& block, size_t index) const {
    return blocks.empty() ? block.modulation(embedded) : blocks[index];
  }
  at::Tensor of(const FluxSingleBlock& block, size_t index) const {
    return singles.empty() ? block.modulation(embedded) : singles[index];
  }

  at::Tensor embedded;  // where blocks are streamed: each makes its modulation of it
  std::vector<JointBlock::Modulation> blocks;
  std::vector<at::Tensor> singles;
  at::Tensor last;
  RotaryAngles turns;       // of all the picture's tokens
  RotaryAngles text_turns;  // of all the text's tokens; undefined where they are not turned
  RotaryAngles references;  // of all those of pictures to edit, where there are some
};

namespace {

const char* name_of(const spec::FluxSpec& spec) {
  if (spec.approximator) return "chroma";
  switch (spec.kind) {
    case spec::FluxKind::flux:
      break;
    case spec::FluxKind::ovis:
      return "ovis";
    case spec::FluxKind::longcat:
      return "longcat";
  }
  return "flux";
}

}  // namespace

FluxSingleBlock::FluxSingleBlock(const spec::FluxSpec& spec, int index, WeightShard shard,
                                 const WeightLoader& weights)
    : slot_(index),
      sharded_(shard.degree > 1),
      width_(spec.inner_dim()),
      heads_(shard.size(spec.num_attention_heads)),
      head_dim_(spec.attention_head_dim),
      gated_(spec.gates()) {
  const std::string prefix =
      "single_transformer_blocks." + std::to_string(index - spec.num_layers) + ".";
  const int64_t heads = spec.num_attention_heads, wide = spec.feed_forward();
  const Slice own{shard.begin(heads) * head_dim_, shard.end(heads) * head_dim_};
  const Slice columns{shard.begin(wide), shard.end(wide)};
  const std::string attention = prefix + "attn.";
  if (!spec.approximator) norm_ = weights.linear(prefix + "norm.linear", width_, 3 * width_);
  qkv_ = weights.joined({attention + "to_q", attention + "to_k", attention + "to_v"}, width_,
                        width_, true, own);
  const std::string widen = prefix + "proj_mlp";
  widen_ = gated_ ? weights.gated(widen, width_, wide, columns, true, true)
                  : weights.joined({widen}, width_, wide, true, columns);
  // One product of both in the checkpoint: attention's columns first, then the feed-forward's.
  out_ = weights.narrow(prefix + "proj_out", width_ + wide, width_, own, shard.rank == 0);
  narrow_ = weights.narrow(prefix + "proj_out", width_ + wide, width_,
                           {width_ + columns.begin, width_ + columns.end}, false, false);
  norm_q_ = weights.copy(attention + "norm_q.weight", {head_dim_});
  norm_k_ = weights.copy(attention + "norm_k.weight", {head_dim_});
}

at::Tensor FluxSingleBlock::modulation(const at::Tensor& embedded) const {
  return norm_(embedded).view({embedded.size(0), 3, width_});
}

void FluxSingleBlock::run(at::Tensor& hidden, const at::Tensor& modulation,
                          const RotaryAngles& turns, AttentionPort& attention,
                          TensorParallelPort& sums) const {
  const int64_t batch = hidden.size(0), tokens = hidden.size(1);
  const at::Tensor normal = modulated(hidden, modulation);
  const at::Tensor qkv = qkv_(normal).view({batch, tokens, 3, heads_, head_dim_});
  at::Tensor q = qkv.select(2, 0), k = qkv.select(2, 1);
  kernels::norm_rotate(q, norm_q_, turns.cosine, turns.sine, kEps);
  kernels::norm_rotate(k, norm_k_, turns.cosine, turns.sine, kEps);
  const at::Tensor attended =
      attention.attend(slot_, qkv).view({batch, tokens, heads_ * head_dim_});
  if (out_.quantized()) {
    const auto gate = modulation.select(1, kGate);
    const at::Tensor wide = widened(normal);
    add_product(hidden, out_, attended, gate, sharded_, sums);
    add_product(hidden, narrow_, wide, gate, sharded_, sums);
    return clip_half(hidden);
  }
  at::Tensor out = out_(attended);
  narrow_.add_to(out, widened(normal));
  sums.sum(out);
  kernels::add_gated(hidden, out, modulation.select(1, kGate));
  clip_half(hidden);
}

at::Tensor FluxSingleBlock::widened(const at::Tensor& normal) const {
  return gated_ ? silu_gated(widen_(normal)) : widen_.gelu(normal);
}

at::Tensor FluxSingleBlock::modulated(const at::Tensor& hidden,
                                      const at::Tensor& modulation) const {
  return kernels::norm_modulate(hidden, modulation.select(1, kScale), modulation.select(1, kShift),
                                kEps);
}

void FluxSingleBlock::list_tensors(std::vector<at::Tensor*>& all) {
  for (kernels::Linear* linear : {&norm_, &qkv_, &widen_, &out_, &narrow_})
    linear->list_tensors(all);
  all.insert(all.end(), {&norm_q_, &norm_k_});
}

Approximator::Approximator(const spec::FluxSpec& spec, const WeightLoader& weights)
    : channels_(spec.approximator->num_channels) {
  const std::string prefix = "distilled_guidance_layer.";
  const int64_t hidden = spec.approximator->hidden_dim;
  in_ = weights.linear(prefix + "in_proj", channels_, hidden);
  for (int64_t i = 0; i < spec.approximator->layers; ++i) {
    const std::string number = std::to_string(i);
    layers_.push_back({SiluMlp(weights, prefix + "layers." + number, hidden, hidden, hidden),
                       weights.copy(prefix + "norms." + number + ".weight", {hidden})});
  }
  out_ = weights.linear(prefix + "out_proj", hidden, spec.inner_dim());
}

at::Tensor Approximator::operator()(double timestep, int64_t count, at::ScalarType compute,
                                    at::Device device) const {
  const at::Tensor numbers = at::arange(count, at::TensorOptions().dtype(at::kFloat));
  const at::Tensor step =
      sine_features(at::tensor({timestep, 0.0}).to(at::kFloat), 1, channels_ / 4);
  const at::Tensor features = at::cat(
      {step.view({1, -1}).expand({count, -1}), sine_features(numbers * 1000, 1, channels_ / 2)}, 1);
  at::Tensor x = in_(features.to(device, compute));
  for (const Layer& layer : layers_)
    x = x + layer.mlp(at::rms_norm(x, {x.size(1)}, layer.norm));
  return out_(x).unsqueeze(0);
}

int64_t Approximator::bytes() const {
  int64_t total = in_.bytes() + out_.bytes();
  for (const Layer& layer : layers_)
    total += layer.mlp.bytes() + static_cast<int64_t>(layer.norm.nbytes());
  return total;
}

Flux::Flux(const spec::FluxSpec& spec, const StagePart& part, const WeightLoader& weights,
           at::ScalarType compute, at::Device device)
    : TransformerStage(name_of(spec), spec::facts_of(spec), part, compute, device), spec_(spec) {
  const int64_t width = spec.inner_dim();
  if (spec.approximator)
    approximator_.emplace(spec, weights);
  else if (const std::string time = spec.timestep_embedder(); !time.empty())
    time_.emplace(weights, time, kSineFeatures, width, width);
  else
    time_text_.emplace(weights, spec.pooled_projection_dim, width, spec.guidance_embeds);
  if (part.embeds) {
    const int64_t text = spec.joint_attention_dim;
    embedding_ = {
        weights.linear("x_embedder", spec.in_channels, width),
        weights.linear("context_embedder", text, width),
        spec.norms_text() ? weights.copy("context_embedder_norm.weight", {text}) : at::Tensor()};
  }
  for (int block = part.blocks.begin; block < part.blocks.end; ++block) {
    if (block >= spec.num_layers) {
      singles_.add(weights, [spec, block, shard = part.shard](const WeightLoader& from) {
        return FluxSingleBlock(spec, block, shard, from);
      });
      continue;
    }
    const std::string prefix = "transformer_blocks." + std::to_string(block) + ".";
    blocks_.add(weights, [shape = spec.joint_block(), prefix, block,
                          shard = part.shard](const WeightLoader& from) {
      return JointBlock(shape, prefix, block, shard, from);
    });
  }
  if (!part.projects) return;
  const int64_t channels = spec.latent_channels();
  constexpr TokenOrder kOrder = TokenOrder::channels_first;
  last_ = spec.approximator ? LastLayer(weights, width, patch_size(), channels, kOrder)
                            : LastLayer(weights, width, patch_size(), channels, channels, kOrder);
}

int64_t Flux::bytes() const {
  int64_t total = last_ ? last_->bytes() : 0;
  if (time_text_) total += time_text_->bytes();
  if (time_) total += time_->bytes();
  if (approximator_) total += approximator_->bytes();
  if (embedding_) {
    total += embedding_->patch.bytes() + embedding_->text.bytes();
    if (embedding_->text_norm.defined())
      total += static_cast<int64_t>(embedding_->text_norm.nbytes());
  }
  return total + blocks_.bytes() + singles_.bytes();
}

Caption Flux::caption_of(const std::vector<EncoderOutput>& text) const {
  const at::Tensor& states = text.back().states;
  if (states.dim() != 3 || states.size(2) != spec_.joint_attention_dim) {
    refuse_shape(family_, "the text's states", states, {-1, -1, spec_.joint_attention_dim});
  }
  at::Tensor own = on_device(states);
  // Ovis-Image attends to padding, as zeros before the norm.
  if (spec_.kind == spec::FluxKind::ovis) {
    const int64_t missing = std::max<int64_t>(text.back().tokens - own.size(1), 0);
    own = at::constant_pad_nd(own, {0, 0, 0, missing});
  }
  const at::Tensor& norm = embedding_->text_norm;
  if (norm.defined()) own = at::rms_norm(own, norm.sizes(), norm, kEps);
  return {embedding_->text(own), time_text_ ? on_device(text[0].pooled) : at::Tensor()};
}

RotaryAngles Flux::rotary_angles_of(PictureSize size, int64_t index) const {
  const int64_t patch = patch_size();
  const int64_t rows = size.latent_height / patch, columns = size.latent_width / patch;
  const auto range = [](int64_t count) {
    return at::arange(count, at::TensorOptions().dtype(at::kDouble));
  };
  at::Tensor row = range(rows).view({rows, 1}).expand({rows, columns}).reshape({-1});
  at::Tensor column = range(columns).view({1, columns}).expand({rows, columns}).reshape({-1});
  at::Tensor modality = at::full_like(row, index);
  if (spec_.kind == spec::FluxKind::longcat) {
    modality.fill_(1);
    row += spec::kLongCatTextTokens;
    column += spec::kLongCatTextTokens;
  }
  return rotary_angles_at(modality, row, column);
}

RotaryAngles Flux::rotary_angles_of_text(int64_t tokens) const {
  // Row and column of a text's token are its place in the text.
  const at::Tensor place = at::arange(tokens, at::TensorOptions().dtype(at::kDouble));
  return rotary_angles_at(at::zeros_like(place), place, place);
}

RotaryAngles Flux::rotary_angles_at(const at::Tensor& modality, const at::Tensor& row,
                                    const at::Tensor& column) const {
  const auto& axes = spec_.axes_dims_rope;
  const at::Tensor angle = at::cat({rotary_angles(modality, axes[0]), rotary_angles(row, axes[1]),
                                    rotary_angles(column, axes[2])},
                                   1);
  return {at::cos(angle).to(device_, at::kFloat), at::sin(angle).to(device_, at::kFloat)};
}

std::unique_ptr<StepCondition> Flux::condition(const StepInput& input,
                                               const CaptionCache& caption) const {
  const auto& text = text_of<JointCaption>(caption);
  auto step = std::make_unique<FluxStep>();
  step->batch = text.batch();
  if (approximator_)
    approximate(*step, timestep_of_flux(input.timestep), text.batch());
  else
    embed(*step, input, text);
  step->turns = rotary_angles_of(input.size);
  // The first coordinate tells pictures to edit from the one that is made. Source:
  // FluxKontextPipeline.
  std::vector<RotaryAngles> references;
  for (const PictureSize& size : text.lengths().references)
    references.push_back(rotary_angles_of(size, 1));
  if (!references.empty()) step->references = RotaryAngles::joined(references);
  if (spec_.turns_text()) step->text_turns = rotary_angles_of_text(text.lengths().tokens);
  return step;
}

void Flux::embed(FluxStep& step, const StepInput& input, const JointCaption& text) const {
  const double timestep = timestep_of_flux(input.timestep);
  const at::Tensor embedded =
      at::silu(time_text_ ? (*time_text_)(timestep, input.guidance * 1000, text.pooled())
                          : (*time_)(on_device(sine_features(at::full({1}, timestep, at::kFloat))))
                                .expand({text.batch(), -1}));
  const bool streamed = blocks_.streamed() || singles_.streamed();
  if (streamed) step.embedded = embedded;
  for (int i = 0; i < std::ssize(blocks_) && !streamed; ++i)
    step.blocks.push_back(blocks_[i].modulation(embedded));
  for (int i = 0; i < std::ssize(singles_) && !streamed; ++i)
    step.singles.push_back(singles_[i].modulation(embedded));
  if (last_) step.last = last_->modulation(embedded);
}

void Flux::approximate(FluxStep& step, double timestep, int64_t batch) const {
  // Every stage makes all vectors, so that they are the same bits: three of each block of one
  // stream, six of each other block's picture, then six of each one's text, and the last norm's
  // shift and scale.
  const at::Tensor all =
      (*approximator_)(timestep, spec_.modulations(), compute_, device_).expand({batch, -1, -1});
  const auto of = [&all](int64_t first, int64_t count) {
    return all.slice(1, first, first + count);
  };
  const int64_t doubles = spec_.num_layers, singles = 3 * spec_.num_single_layers;
  for (int64_t block = part_.blocks.begin; block < part_.blocks.end; ++block) {
    if (block < doubles)
      step.blocks.push_back({of(singles + 6 * block, 6), of(singles + 6 * (doubles + block), 6)});
    else
      step.singles.push_back(of(3 * (block - doubles), 3));
  }
  if (last_) step.last = of(spec_.modulations() - 2, 2).flip(1);
}

at::Tensor Flux::tokens_of(const at::Tensor& latents, PictureSize, TokenRows) const {
  return embedding_->patch(tokens_of_latents(latents, patch_size()));
}

at::Tensor Flux::compute(at::Tensor hidden, const StepCondition& condition,
                         const CaptionCache& caption, const BlockCall& call) const {
  const auto& step = step_of<FluxStep>(condition);
  const CallTokens& tokens = call.tokens;
  RotaryAngles turns =
      rotary_angles_of_rows(step.turns, tokens.rows, tokens.size.latent_width / patch_size());
  // Pictures to edit go with the one that is made.
  const int64_t all_texts = text_of<JointCaption>(caption).lengths().tokens;
  const int64_t texts = tokens.text_before(all_texts);
  if (step.references.cosine.defined()) {
    const auto own = step.references.part(std::max<int64_t>(tokens.text_begin - all_texts, 0),
                                          std::max<int64_t>(tokens.text_end - all_texts, 0));
    turns = RotaryAngles::joined({own, turns});
  }
  RotaryAngles of_text;
  if (spec_.turns_text()) of_text = step.text_turns.part(tokens.text_begin, tokens.text_end);
  if (!step.embedded.defined()) require_blocks(step.blocks.size() + step.singles.size());
  const int doubles = static_cast<int>(blocks_.size());
  if (call.begin < std::min(call.end, doubles)) {
    TwoStreams streams(hidden, texts);
    for (int i = call.begin; i < std::min(call.end, doubles); ++i) {
      const JointBlock& block = blocks_[i];
      block.run(streams.text, streams.picture, step.of(block, i), turns, call.attention, call.sums,
                of_text);
    }
    hidden = streams.joined();
  }
  if (std::max(call.begin, doubles) >= call.end) return hidden;
  hidden = hidden.contiguous();
  const RotaryAngles of_all =
      spec_.turns_text() ? RotaryAngles::joined({of_text, turns}) : with_unrotated(turns, texts);
  for (int i = std::max(call.begin, doubles) - doubles; i < call.end - doubles; ++i) {
    const FluxSingleBlock& block = singles_[i];
    block.run(hidden, step.of(block, i), of_all, call.attention, call.sums);
  }
  return hidden;
}

at::Tensor Flux::signal_of(const at::Tensor& picture, const StepCondition& condition) const {
  const auto& step = step_of<FluxStep>(condition);
  const auto signal = [&](const auto& block) {
    return block.modulated(picture, step.of(block, 0));
  };
  return blocks_.empty() ? signal(singles_[0]) : signal(blocks_[0]);
}

at::Tensor Flux::prediction_of(const at::Tensor& hidden, const StepCondition& condition,
                               int64_t columns) const {
  return (*last_)(hidden, step_of<FluxStep>(condition).last, columns);
}

}  // namespace troupe::models
