#include "models/dit/krea2.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "kernels/elementwise.h"

namespace troupe::models {
namespace {

/// Places of what modulates a block, in diffusers' order.
enum { kKreaScale, kKreaShift, kKreaGate, kKreaScaleForward, kKreaShiftForward, kKreaGateForward };

/// Text tokens whose states of all layers attend to each other at once: bounds memory.
constexpr int64_t kFusedAtOnce = 64;

struct Krea2Step final : StageStep {
  std::vector<at::Tensor> tensors() const override {
    auto all = blocks;
    for (const auto& one : {shared, last})
      if (one.defined()) all.push_back(one);
    return all;
  }
  at::Tensor of(const Krea2Block& block, size_t index) const {
    return blocks.empty() ? block.modulation(shared) : blocks[index];
  }

  at::Tensor shared;  // where blocks are streamed: each makes its modulation of it
  std::vector<at::Tensor> blocks;
  at::Tensor last;  // [B, 2, D], undefined where the stage does not project
  RotaryAngles picture;
};

/// Norms' weights as they multiply: the files have them without the 1.
at::Tensor with_one(const at::Tensor& weight) {
  return weight.to(at::kFloat) + 1;
}

/// Returns x over its root mean square, times `weight`, in x's type.
at::Tensor rms_normed(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return at::rms_norm(x.to(at::kFloat), {x.size(-1)}, with_one(weight), eps).to(x.scalar_type());
}

/// Returns x [B, tokens, D] over its root mean square, scaled and shifted by [B, D].
at::Tensor rms_modulated(const at::Tensor& x, const at::Tensor& scale, const at::Tensor& shift,
                         double eps) {
  return at::rms_norm(x, {x.size(-1)}, {}, eps).mul_(scale.unsqueeze(1)).add_(shift.unsqueeze(1));
}

at::Tensor gelu_tanh(at::Tensor x) {
  kernels::gelu_tanh_(x);
  return x;
}

}  // namespace

Krea2Block::Krea2Block(const spec::Krea2Sizes& sizes, const std::string& prefix, bool modulated,
                       WeightShard shard, const WeightLoader& weights)
    : sizes_(sizes), sharded_(shard.degree > 1), heads_(shard.size(sizes.heads)) {
  const int64_t width = sizes.width, wide = sizes.feed_forward, d = sizes.head_dim();
  const int64_t group = sizes.group(), begin = shard.begin(sizes.heads);
  const int64_t end = shard.end(sizes.heads);
  const int64_t kv_begin = begin / group, kv_end = (end + group - 1) / group;
  kv_heads_ = heads_ > 0 ? kv_end - kv_begin : 0;
  skipped_ = begin - kv_begin * group;
  const Slice own{begin * d, end * d}, own_kv{kv_begin * d, (kv_begin + kv_heads_) * d};
  const Slice columns{shard.begin(wide), shard.end(wide)};
  const std::string attention = prefix + "attn.", forward = prefix + "ff.";
  query_ = weights.joined({attention + "to_q", attention + "to_gate"}, width, width, false, own);
  kv_ = weights.joined({attention + "to_k", attention + "to_v"}, width, sizes.kv_width(), false,
                       own_kv);
  out_ = weights.narrow(attention + "to_out.0", width, width, own, false, false);
  widen_ = weights.joined({forward + "gate", forward + "up"}, width, wide, false, columns);
  narrow_ = weights.narrow(forward + "down", wide, width, columns, false, false);
  if (modulated) table_ = weights.copy(prefix + "scale_shift_table", {6, width});
  const auto of_head = [&](const char* name) {
    const at::Tensor stored = weights.get(attention + name, {d});
    return with_one(stored).to(stored.scalar_type());
  };
  norm_q_ = of_head("norm_q.weight");
  norm_k_ = of_head("norm_k.weight");
  before_attention_ = weights.copy(prefix + "norm1.weight", {width});
  before_forward_ = weights.copy(prefix + "norm2.weight", {width});
}

at::Tensor Krea2Block::modulation(const at::Tensor& shared) const {
  at::Tensor all = (shared + table_).to(at::kFloat);
  all.select(1, kKreaScale).add_(1).mul_(with_one(before_attention_));
  all.select(1, kKreaScaleForward).add_(1).mul_(with_one(before_forward_));
  return all.to(shared.scalar_type());
}

at::Tensor Krea2Block::attention_input(const at::Tensor& hidden,
                                       const at::Tensor& modulation) const {
  if (!modulation.defined()) return rms_normed(hidden, before_attention_, sizes_.eps);
  return rms_modulated(hidden, modulation.select(1, kKreaScale), modulation.select(1, kKreaShift),
                       sizes_.eps);
}

at::Tensor Krea2Block::attend(const at::Tensor& normal, const RotaryAngles& turns,
                              AttentionPort& attention, int slot) const {
  const int64_t batch = normal.size(0), tokens = normal.size(1), d = sizes_.head_dim();
  const auto query_and_gate = query_(normal).chunk(2, -1);
  at::Tensor q = query_and_gate[0].unflatten(2, {heads_, d});
  const at::Tensor kv = kv_(normal).view({batch, tokens, 2, kv_heads_, d});
  at::Tensor k = kv.select(2, 0);
  kernels::norm_rotate(q, norm_q_, turns.cosine, turns.sine, sizes_.eps);
  kernels::norm_rotate(k, norm_k_, turns.cosine, turns.sine, sizes_.eps);
  at::Tensor qkv = at::empty({batch, tokens, 3, heads_, d}, normal.options());
  qkv.select(2, 0).copy_(q);
  qkv.narrow(2, 1, 2).copy_(kv.repeat_interleave(sizes_.group(), 3).narrow(3, skipped_, heads_));
  return attention.attend(slot, qkv)
      .view({batch, tokens, heads_ * d})
      .mul(at::sigmoid(query_and_gate[1]));
}

void Krea2Block::run(at::Tensor& hidden, const at::Tensor& modulation, const RotaryAngles& turns,
                     AttentionPort& attention, int slot, TensorParallelPort& sums) const {
  const bool modulated = modulation.defined();
  const auto gate = [&](int place) {
    return modulated ? std::optional(modulation.select(1, place)) : std::nullopt;
  };
  add_product(hidden, out_, attend(attention_input(hidden, modulation), turns, attention, slot),
              gate(kKreaGate), sharded_, sums);
  const at::Tensor normal = modulated
                                ? rms_modulated(hidden, modulation.select(1, kKreaScaleForward),
                                                modulation.select(1, kKreaShiftForward), sizes_.eps)
                                : rms_normed(hidden, before_forward_, sizes_.eps);
  add_product(hidden, narrow_, silu_gated(widen_(normal)), gate(kKreaGateForward), sharded_, sums);
}

void Krea2Block::list_tensors(std::vector<at::Tensor*>& all) {
  for (kernels::Linear* linear : {&query_, &kv_, &out_, &widen_, &narrow_})
    linear->list_tensors(all);
  all.insert(all.end(), {&table_, &norm_q_, &norm_k_, &before_attention_, &before_forward_});
}

int64_t Krea2Block::bytes() const {
  int64_t total = 0;
  for (const auto* linear : {&query_, &kv_, &out_, &widen_, &narrow_})
    total += linear->bytes();
  for (const auto* one : {&table_, &norm_q_, &norm_k_, &before_attention_, &before_forward_})
    if (one->defined()) total += static_cast<int64_t>(one->nbytes());
  return total;
}

Krea2::Krea2(const spec::Krea2Spec& spec, const StagePart& part, const WeightLoader& weights,
             at::ScalarType compute, at::Device device)
    : TransformerStage("krea2", spec::facts_of(spec), part, compute, device),
      spec_(spec),
      time_first_(weights.linear("time_embed.linear_1", spec.timestep_embed_dim, spec.inner_dim())),
      time_second_(weights.linear("time_embed.linear_2", spec.inner_dim(), spec.inner_dim())),
      modulate_(weights.linear("time_mod_proj", spec.inner_dim(), 6 * spec.inner_dim())) {
  const int64_t width = spec.inner_dim(), text = spec.text_hidden_dim;
  if (part.embeds) {
    embedding_ = {weights.linear("img_in", spec.in_channels, width),
                  weights.linear("txt_in.linear_1", text, width),
                  weights.linear("txt_in.linear_2", width, width),
                  weights.copy("txt_in.norm.weight", {text}),
                  weights.whole("text_fusion.projector.weight", {1, spec.num_text_layers}).clone(),
                  {},
                  {}};
    WeightLoader as_computed = weights.detached();
    as_computed.type = kernels::WeightType::as_computed;
    const auto add = [&](std::vector<Krea2Block>& to, const std::string& prefix) {
      to.emplace_back(spec.text_block(), prefix, false, WeightShard{}, as_computed);
    };
    for (int64_t block = 0; block < spec.num_layerwise_text_blocks; ++block)
      add(embedding_->layerwise, spec::krea2_layerwise_prefix(block));
    for (int64_t block = 0; block < spec.num_refiner_text_blocks; ++block)
      add(embedding_->refiners, spec::krea2_refiner_prefix(block));
  }
  for (int block = part.blocks.begin; block < part.blocks.end; ++block) {
    const std::string prefix = spec::krea2_block_prefix(block);
    blocks_.add(weights,
                [sizes = spec.block(), prefix, shard = part.shard](const WeightLoader& from) {
                  return Krea2Block(sizes, prefix, true, shard, from);
                });
  }
  if (part.projects) {
    ending_ = {weights.linear("final_layer.linear", width, spec.in_channels),
               weights.copy("final_layer.scale_shift_table", {2, width}),
               weights.copy("final_layer.norm.weight", {width})};
  }
}

int64_t Krea2::bytes() const {
  const auto of = [](const at::Tensor& tensor) { return static_cast<int64_t>(tensor.nbytes()); };
  int64_t total = time_first_.bytes() + time_second_.bytes() + modulate_.bytes() + blocks_.bytes();
  if (ending_) total += ending_->project.bytes() + of(ending_->table) + of(ending_->norm);
  if (!embedding_) return total;
  const Embedding& first = *embedding_;
  total += first.patch.bytes() + first.text_first.bytes() + first.text_second.bytes() +
           of(first.text_norm) + of(first.projector);
  for (const auto* blocks : {&first.layerwise, &first.refiners})
    for (const Krea2Block& block : *blocks)
      total += block.bytes();
  return total;
}

at::Tensor Krea2::fused(const at::Tensor& states) const {
  const Embedding& with = *embedding_;
  LocalAttention attention;
  WholeWeights whole;
  const auto run = [&](const std::vector<Krea2Block>& blocks, at::Tensor& hidden) {
    for (const Krea2Block& block : blocks)
      block.run(hidden, {}, {}, attention, 0, whole);
  };
  std::vector<at::Tensor> parts;
  for (int64_t begin = 0; begin < states.size(0); begin += kFusedAtOnce) {
    at::Tensor some =
        states.slice(0, begin, begin + kFusedAtOnce).clone(at::MemoryFormat::Contiguous);
    run(with.layerwise, some);
    parts.push_back(at::matmul(with.projector, some).squeeze(1));
  }
  at::Tensor hidden = at::cat(parts).unsqueeze(0);
  run(with.refiners, hidden);
  return with.text_second(
      gelu_tanh(with.text_first(rms_normed(hidden, with.text_norm, spec_.norm_eps))));
}

Caption Krea2::caption_of(const std::vector<EncoderOutput>& text) const {
  const at::Tensor& states = text.at(0).states;
  const int64_t layers = spec_.num_text_layers, width = spec_.text_hidden_dim;
  if (states.dim() != 3 || states.size(2) != layers * width)
    refuse_shape(family_, "the text's states", states, {-1, -1, layers * width});
  const at::Tensor all = on_device(states).unflatten(2, {layers, width});
  const int64_t longest = text[0].lengths.max().item<int64_t>();
  at::Tensor made = at::zeros({all.size(0), longest, spec_.inner_dim()}, all.options());
  for (int64_t item = 0; item < all.size(0); ++item) {
    const int64_t own = text[0].lengths[item].item<int64_t>();
    made[item].slice(0, 0, own).copy_(fused(all[item].slice(0, 0, own))[0]);
  }
  return {made, {}};
}

RotaryAngles Krea2::turns_of(PictureSize size) const {
  const int64_t rows = size.latent_height / patch_size(),
                columns = size.latent_width / patch_size();
  const auto options = at::TensorOptions().dtype(at::kDouble);
  const at::Tensor places[] = {at::zeros({rows * columns}, options),
                               at::arange(rows, options).repeat_interleave(columns),
                               at::arange(columns, options).repeat({rows})};
  std::vector<at::Tensor> parts;
  for (int64_t axis = 0; axis < 3; ++axis) {
    parts.push_back(
        rotary_angles(places[axis], spec_.axes_dims_rope[axis], at::kDouble, spec_.rope_theta));
  }
  const at::Tensor angle = at::cat(parts, 1);
  return {at::cos(angle).to(device_, at::kFloat), at::sin(angle).to(device_, at::kFloat)};
}

std::unique_ptr<StepCondition> Krea2::condition(const StepInput& input,
                                                const CaptionCache& caption) const {
  const int64_t batch = text_of<JointCaption>(caption).batch(), width = spec_.inner_dim();
  const at::Tensor time = at::full({1}, timestep_of_flux(input.timestep), at::kFloat);
  const at::Tensor sines = on_device(sine_features(time, 1, spec_.timestep_embed_dim));
  const at::Tensor embedded = time_second_(gelu_tanh(time_first_(sines)));
  const at::Tensor shared =
      modulate_(gelu_tanh(embedded.clone())).view({1, 6, width}).repeat({batch, 1, 1});
  auto step = std::make_unique<Krea2Step>();
  step->batch = batch;
  if (blocks_.streamed()) step->shared = shared;
  for (int i = 0; i < std::ssize(blocks_) && !blocks_.streamed(); ++i)
    step->blocks.push_back(blocks_[i].modulation(shared));
  if (ending_) {
    at::Tensor last = (embedded.unsqueeze(1) + ending_->table).to(at::kFloat);
    last.select(1, 0).add_(1).mul_(with_one(ending_->norm));
    step->last = last.to(compute_).repeat({batch, 1, 1});
  }
  step->picture = turns_of(input.size);
  return step;
}

at::Tensor Krea2::tokens_of(const at::Tensor& latents, PictureSize, TokenRows) const {
  return embedding_->patch(tokens_of_latents(latents, patch_size()));
}

at::Tensor Krea2::compute(at::Tensor hidden, const StepCondition& condition, const CaptionCache&,
                          const BlockCall& call) const {
  const auto& step = step_of<Krea2Step>(condition);
  const CallTokens& tokens = call.tokens;
  if (!step.shared.defined()) require_blocks(step.blocks.size());
  // The text's tokens all stand where the picture's first one does, and are turned by nothing.
  const RotaryAngles turns = with_unrotated(
      rotary_angles_of_rows(step.picture, tokens.rows, tokens.size.latent_width / patch_size()),
      tokens.text());
  hidden = hidden.contiguous();
  for (int i = call.begin; i < call.end; ++i) {
    const Krea2Block& block = blocks_[i];
    block.run(hidden, step.of(block, i), turns, call.attention, part_.blocks.begin + i, call.sums);
  }
  return hidden;
}

at::Tensor Krea2::signal_of(const at::Tensor& picture, const StepCondition& condition) const {
  const auto& step = step_of<Krea2Step>(condition);
  return blocks_[0].attention_input(picture, step.of(blocks_[0], 0));
}

at::Tensor Krea2::prediction_of(const at::Tensor& hidden, const StepCondition& condition,
                                int64_t columns) const {
  const at::Tensor& last = step_of<Krea2Step>(condition).last;
  const at::Tensor normal =
      rms_modulated(hidden, last.select(1, 0), last.select(1, 1), spec_.norm_eps);
  return latents_of_tokens(ending_->project(normal), columns, patch_size(),
                           TokenOrder::channels_first);
}

}  // namespace troupe::models
