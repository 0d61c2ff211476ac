#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "models/dit/diffusion_transformer.h"
#include "models/dit/transformer_parts.h"
#include "models/spec/hunyuan_spec.h"

namespace troupe::models {

/// HunyuanDiT's text before the blocks: the states of both encoders in one row, padding replaced by
/// learned states, and one vector pooled from T5's. Source: HunyuanDiT2DModel,
/// HunyuanDiTAttentionPool.
class HunyuanText {
 public:
  HunyuanText(const spec::HunyuanSpec& spec, const WeightLoader& weights);
  /// text[0]: BERT's states [B, text_len, C]; text[1]: T5's [B, text_len_t5, C5], all computed.
  Caption operator()(const std::vector<EncoderOutput>& text, at::Device device,
                     at::ScalarType compute) const;
  int64_t bytes() const;

 private:
  static constexpr const char* kFamily = "hunyuan";
  at::Tensor pooled(const at::Tensor& states) const;

  spec::HunyuanSpec spec_;
  SiluMlp widen_;
  at::Tensor padding_, positions_;
  kernels::Linear query_, key_, value_, out_;
};

}  // namespace troupe::models
