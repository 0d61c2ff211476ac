#include "models/dit/hunyuan_text.h"

#include <cmath>

#include <ATen/ATen.h>

#include "kernels/attention.h"
#include "models/dit/stage_checks.h"

namespace troupe::models {

namespace {

constexpr int64_t kPoolerHeads = 8;

at::Tensor is_token(const EncoderOutput& of) {
  return at::arange(of.states.size(1), at::kLong).unsqueeze(0).lt(of.lengths.unsqueeze(1));
}

}  // namespace

HunyuanText::HunyuanText(const spec::HunyuanSpec& spec, const WeightLoader& weights)
    : spec_(spec),
      widen_(weights, "text_embedder", spec.cross_attention_dim_t5, 4 * spec.cross_attention_dim_t5,
             spec.cross_attention_dim) {
  const int64_t width = spec.cross_attention_dim_t5;
  const std::string pooler = "time_extra_emb.pooler.";
  padding_ = weights.copy("text_embedding_padding",
                          {spec.text_len + spec.text_len_t5, spec.cross_attention_dim});
  positions_ = weights.copy(pooler + "positional_embedding", {spec.text_len_t5 + 1, width});
  query_ = weights.linear(pooler + "q_proj", width, width);
  key_ = weights.linear(pooler + "k_proj", width, width);
  value_ = weights.linear(pooler + "v_proj", width, width);
  out_ = weights.linear(pooler + "c_proj", width, spec.pooled_projection_dim);
}

at::Tensor HunyuanText::pooled(const at::Tensor& states) const {
  const at::Tensor x = at::cat({states.mean(1, true), states}, 1) + positions_.unsqueeze(0);
  const int64_t width = x.size(2) / kPoolerHeads;
  const auto heads = [&](const at::Tensor& t) {
    return t.view({t.size(0), t.size(1), kPoolerHeads, width});
  };
  const at::Tensor first = x.slice(1, 0, 1).contiguous();
  const at::Tensor seen = kernels::attention(heads(query_(first)), heads(key_(x)), heads(value_(x)),
                                             1.0 / std::sqrt(static_cast<double>(width)));
  return out_(seen.view({x.size(0), x.size(2)}));
}

Caption HunyuanText::operator()(const std::vector<EncoderOutput>& text, at::Device device,
                                at::ScalarType compute) const {
  const auto& bert = text.at(0);
  const auto& t5 = text.at(1);
  if (bert.states.dim() != 3 || bert.states.size(1) != spec_.text_len ||
      bert.states.size(2) != spec_.cross_attention_dim) {
    refuse_shape(kFamily, "BERT's states", bert.states,
                 {-1, spec_.text_len, spec_.cross_attention_dim});
  }
  if (t5.states.dim() != 3 || t5.states.size(1) != spec_.text_len_t5 ||
      t5.states.size(2) != spec_.cross_attention_dim_t5) {
    refuse_shape(kFamily, "T5's states", t5.states,
                 {-1, spec_.text_len_t5, spec_.cross_attention_dim_t5});
  }
  const at::Tensor wide = t5.states.to(device, compute);
  const at::Tensor states = at::cat({bert.states.to(device, compute), widen_(wide)}, 1);
  const at::Tensor mask = at::cat({is_token(bert), is_token(t5)}, 1).unsqueeze(2).to(device);
  return {at::where(mask, states, padding_.unsqueeze(0)), pooled(wide)};
}

int64_t HunyuanText::bytes() const {
  return widen_.bytes() + static_cast<int64_t>(padding_.nbytes() + positions_.nbytes()) +
         query_.bytes() + key_.bytes() + value_.bytes() + out_.bytes();
}

}  // namespace troupe::models
