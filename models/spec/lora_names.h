#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "models/spec/transformer_spec.h"

namespace troupe::spec {

/// Rows [from, from + rows) of a product under its other name are rows [to, to + rows) of a tensor.
struct LoraPart {
  std::string tensor;  ///< "transformer_blocks.0.attn.to_q.weight"
  std::int64_t from = 0;
  std::int64_t to = 0;
  std::int64_t rows = 0;

  bool operator==(const LoraPart&) const = default;
};

/// A product as the model's authors name it, often several of diffusers' in one.
struct LoraAlias {
  std::string name;  ///< "double_blocks.0.img_attn.qkv"
  std::vector<LoraPart> parts;

  bool operator==(const LoraAlias&) const = default;
};

/// Returns the names that the authors of FLUX.1, SD3 and Stable Diffusion's U-Nets give their
/// products; other families have none here. Source: diffusers' conversions of the original
/// checkpoints.
std::vector<LoraAlias> original_names(const TransformerSpec& spec);

}  // namespace troupe::spec
