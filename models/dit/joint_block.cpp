#include "models/dit/joint_block.h"

#include <ATen/ATen.h>

#include <optional>

#include "kernels/elementwise.h"

namespace troupe::models {
namespace {

constexpr const char* kPictureNames[] = {"to_q", "to_k", "to_v"};
constexpr const char* kTextNames[] = {"add_q_proj", "add_k_proj", "add_v_proj"};

}  // namespace

TimeTextEmbedding::TimeTextEmbedding(const WeightLoader& weights, int64_t pooled_width,
                                     int64_t width, bool guidance)
    : takes_guidance_(guidance),
      timestep_(weights, "time_text_embed.timestep_embedder", kSineFeatures, width, width),
      text_(weights, "time_text_embed.text_embedder", pooled_width, width, width) {
  if (guidance) {
    guidance_ = SiluMlp(weights, "time_text_embed.guidance_embedder", kSineFeatures, width, width);
  }
}

at::Tensor TimeTextEmbedding::operator()(double timestep, double guidance,
                                         const at::Tensor& pooled) const {
  const auto features = [&](double value) {
    return sine_features(at::tensor({value}).to(at::kFloat))
        .to(pooled.device(), pooled.scalar_type());
  };
  at::Tensor embedded = timestep_(features(timestep));
  if (takes_guidance_) embedded = embedded + guidance_(features(guidance));
  return embedded + text_(pooled);
}

TwoStreams::TwoStreams(const at::Tensor& hidden, int64_t texts)
    : text(hidden.slice(1, 0, texts).contiguous()), picture(hidden.slice(1, texts).contiguous()) {}

at::Tensor TwoStreams::joined() const {
  return text.size(1) == 0 ? picture : at::cat({text, picture}, 1);
}

JointBlock::Attention JointBlock::attention_of(const WeightLoader& weights, const std::string& name,
                                               const char* const names[3], const std::string& out,
                                               const char* norms) const {
  const int64_t width = shape_.width;
  const Slice own{shard_.begin(shape_.heads) * shape_.head_dim,
                  shard_.end(shape_.heads) * shape_.head_dim};
  Attention made;
  made.qkv = weights.joined({name + names[0], name + names[1], name + names[2]}, width, width,
                            shape_.bias, own);
  if (!out.empty()) {
    made.out =
        weights.narrow(name + out, width, width, own, shape_.bias && shard_.rank == 0, shape_.bias);
  }
  if (shape_.qk_norm) {
    made.norm_q = weights.copy(name + norms + "q.weight", {shape_.head_dim});
    made.norm_k = weights.copy(name + norms + "k.weight", {shape_.head_dim});
  }
  return made;
}

JointBlock::Forward JointBlock::forward_of(const WeightLoader& weights,
                                           const std::string& name) const {
  const int64_t width = shape_.width, gated = shape_.gated_forward;
  const int64_t wide = gated > 0 ? gated : 4 * width;
  const Slice columns{shard_.begin(wide), shard_.end(wide)};
  const std::string widen = name + "." + shape_.names.widen;
  const bool bias = shape_.bias;
  return {gated > 0 ? weights.gated(widen, width, gated, columns, bias, shape_.gate_last)
                    : weights.joined({widen}, width, wide, bias, columns),
          weights.narrow(name + "." + shape_.names.narrow, wide, width, columns,
                         bias && shard_.rank == 0, bias)};
}

JointBlock::JointBlock(const spec::JointBlockShape& shape, const std::string& prefix, int slot,
                       WeightShard shard, const WeightLoader& weights)
    : shape_(shape), slot_(slot), shard_(shard), heads_(shard.size(shape.heads)) {
  const int64_t width = shape.width;
  if (shape.modulates) {
    norm_ = weights.linear(prefix + shape.names.norm, width, (shape.dual ? 9 : 6) * width);
    norm_text_ =
        weights.linear(prefix + shape.names.text_norm, width, (shape.last ? 2 : 6) * width);
  }
  picture_ = attention_of(weights, prefix + "attn.", kPictureNames, "to_out.0", "norm_");
  text_ = attention_of(weights, prefix + "attn.", kTextNames, shape.last ? "" : "to_add_out",
                       "norm_added_");
  if (shape.dual)
    second_ = attention_of(weights, prefix + "attn2.", kPictureNames, "to_out.0", "norm_");
  forward_ = forward_of(weights, prefix + shape.names.forward);
  if (!shape.last) forward_text_ = forward_of(weights, prefix + shape.names.text_forward);
}

JointBlock::Modulation JointBlock::modulation(const at::Tensor& embedded) const {
  return {picture_modulation(embedded),
          norm_text_(embedded).view({embedded.size(0), -1, shape_.width})};
}

at::Tensor JointBlock::picture_modulation(const at::Tensor& embedded) const {
  return norm_(embedded).view({embedded.size(0), -1, shape_.width});
}

std::vector<at::Tensor> JointBlock::tensors_of(const std::vector<Modulation>& all) {
  std::vector<at::Tensor> tensors;
  for (const Modulation& one : all) {
    tensors.push_back(one.picture);
    tensors.push_back(one.text);
    if (one.reference.defined()) tensors.push_back(one.reference);
  }
  return tensors;
}

at::Tensor JointBlock::qkv_of(const Attention& of, const at::Tensor& normal,
                              const RotaryAngles& turns) const {
  const at::Tensor qkv =
      of.qkv(normal).view({normal.size(0), normal.size(1), 3, heads_, shape_.head_dim});
  at::Tensor q = qkv.select(2, 0), k = qkv.select(2, 1);
  kernels::norm_rotate(q, of.norm_q, turns.cosine, turns.sine, kEps);
  kernels::norm_rotate(k, of.norm_k, turns.cosine, turns.sine, kEps);
  return qkv;
}

at::Tensor JointBlock::joined(const at::Tensor& heads) const {
  return heads.reshape({heads.size(0), heads.size(1), heads_ * shape_.head_dim});
}

at::Tensor JointBlock::widened(const Forward& forward, const at::Tensor& normal) const {
  return shape_.gated_forward > 0 ? silu_gated(forward.widen(normal)) : forward.widen.gelu(normal);
}

at::Tensor JointBlock::normed(const at::Tensor& picture, const Modulation& modulation, int scale,
                              int shift, int64_t references) const {
  const auto part = [&](const at::Tensor& tokens, const at::Tensor& factors) {
    return kernels::norm_modulate(tokens, factors.select(1, scale), factors.select(1, shift), kEps);
  };
  if (references == 0 || !modulation.reference.defined()) return part(picture, modulation.picture);
  return at::cat({part(picture.slice(1, 0, references).contiguous(), modulation.reference),
                  part(picture.slice(1, references).contiguous(), modulation.picture)},
                 1);
}

void JointBlock::add_gated(at::Tensor& picture, const kernels::Linear& product, const at::Tensor& x,
                           const Modulation& modulation, int gate, int64_t references,
                           TensorParallelPort& sums) const {
  const bool sharded = shard_.degree > 1;
  if (references == 0 || !modulation.reference.defined())
    return add_product(picture, product, x, modulation.picture.select(1, gate), sharded, sums);
  at::Tensor made = at::zeros_like(picture);
  add_product(made, product, x, std::nullopt, sharded, sums);
  const auto add = [&](const at::Tensor& factors, int64_t begin, int64_t end) {
    picture.slice(1, begin, end)
        .addcmul_(factors.select(1, gate).unsqueeze(1), made.slice(1, begin, end));
  };
  add(modulation.reference, 0, references);
  add(modulation.picture, references, picture.size(1));
}

void JointBlock::run(at::Tensor& text, at::Tensor& picture, const Modulation& modulation,
                     const RotaryAngles& turns, AttentionPort& attention, TensorParallelPort& sums,
                     const RotaryAngles& text_turns, int64_t references) const {
  const bool sharded = shard_.degree > 1;
  const int64_t texts = text.size(1);
  const auto factor = [&](int index) { return modulation.picture.select(1, index); };
  const auto text_factor = [&](int index) { return modulation.text.select(1, index); };

  at::Tensor second;
  if (shape_.dual)
    second =
        kernels::norm_modulate(picture, factor(kSecond + kScale), factor(kSecond + kShift), kEps);
  at::Tensor qkv = qkv_of(picture_, normed(picture, modulation, kScale, kShift, references), turns);
  if (texts > 0) {
    // The last block's norm has no gates and names its scale first.
    const auto scale = text_factor(shape_.last ? 0 : kScale);
    const auto shift = text_factor(shape_.last ? 1 : kShift);
    qkv = at::cat(
        {qkv_of(text_, kernels::norm_modulate(text, scale, shift, kEps), text_turns), qkv}, 1);
  }
  const at::Tensor attended = attention.attend(slot_, qkv);
  add_gated(picture, picture_.out, joined(attended.slice(1, texts)), modulation, kGate, references,
            sums);
  if (shape_.dual) {
    const at::Tensor seen =
        attention.attend(slot_ + 1, qkv_of(second_, second, {}), Attend::picture);
    add_product(picture, second_.out, joined(seen), factor(kSecond + kGate), sharded, sums);
  }
  const at::Tensor normal = normed(picture, modulation, kScaleForward, kShiftForward, references);
  add_gated(picture, forward_.narrow, widened(forward_, normal), modulation, kGateForward,
            references, sums);
  if (shape_.clips_half) clip_half(picture);
  if (shape_.last || texts == 0) return;
  add_product(text, text_.out, joined(attended.slice(1, 0, texts)), text_factor(kGate), sharded,
              sums);
  const at::Tensor normal_text =
      kernels::norm_modulate(text, text_factor(kScaleForward), text_factor(kShiftForward), kEps);
  add_product(text, forward_text_.narrow, widened(forward_text_, normal_text),
              text_factor(kGateForward), sharded, sums);
  if (shape_.clips_half) clip_half(text);
}

at::Tensor JointBlock::modulated(const at::Tensor& picture, const Modulation& modulation) const {
  return normed(picture, modulation, kScale, kShift, 0);
}

void JointBlock::Attention::list_tensors(std::vector<at::Tensor*>& all) {
  qkv.list_tensors(all);
  out.list_tensors(all);
  all.insert(all.end(), {&norm_q, &norm_k});
}

void JointBlock::list_tensors(std::vector<at::Tensor*>& all) {
  for (kernels::Linear* linear : {&norm_, &norm_text_, &forward_.widen, &forward_.narrow,
                                  &forward_text_.widen, &forward_text_.narrow})
    linear->list_tensors(all);
  for (Attention* attention : {&picture_, &text_, &second_})
    attention->list_tensors(all);
}

}  // namespace troupe::models
