#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "models/spec/clip_spec.h"
#include "models/spec/transformer_spec.h"
#include "models/spec/vae_spec.h"
#include "models/spec/wan_vae_spec.h"
#include "models/spec/weight_index.h"

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

/// Returns the names that the authors of FLUX.1, FLUX.2, Chroma, SD3, Wan, Z-Image, Krea 2 and
/// Stable Diffusion's U-Nets give their products, and XLabs FLUX.1's; other families have none
/// here. Source: diffusers' conversions of the original checkpoints and of LoRAs.
std::vector<LoraAlias> original_names(const TransformerSpec& spec);

/// A tensor as the model's authors keep it: rows from `row` on of the `rows` of theirs.
struct OriginalTensor {
  std::string name;  ///< "double_blocks.0.img_attn.qkv.weight"
  std::int64_t row = 0;
  std::int64_t rows = 0;  ///< 0: it has no other rows
  StoredAs stored_as = StoredAs::as_is;

  bool operator==(const OriginalTensor&) const = default;
};
/// Tensors by the names that diffusers gives them.
using OriginalTensors = std::map<std::string, OriginalTensor, std::less<>>;

/// Returns the tensors of FLUX.1, FLUX.2, Chroma, SD3, Wan, Z-Image, Krea 2 and Stable Diffusion's
/// U-Nets in the files of their authors, which ComfyUI and A1111 read, too; other families have
/// none. Source: diffusers' conversions of single files.
OriginalTensors original_tensors(const TransformerSpec& spec);
/// Returns those of both halves of a VAE in the files of Stable Diffusion's and FLUX's authors.
OriginalTensors original_tensors(const VaeSpec& spec);
/// Returns those of both halves of Wan's VAE in 2.1's form; 2.2's has none here.
OriginalTensors original_tensors(const WanVaeSpec& spec);
/// Returns those of a CLIP as OpenCLIP keeps it.
OriginalTensors open_clip_tensors(const ClipSpec& spec);

/// A way in which files spell a component's tensors: each name has the prefix, and is diffusers'
/// where `tensors` is empty.
struct Spelling {
  std::string prefix;
  OriginalTensors tensors = {};
};

/// Returns the component of the file that has the `expected` tensors, under their names, whatever
/// way of spelling it has: the one under which most of them are found, first diffusers' own. What
/// else the file has below that prefix stays, so that it can be refused by name; other components
/// are left out. `spellings` are asked for only where the file lacks some under diffusers' names.
/// Weights in 8-bit floats take the scale that lies beside them. Throws
/// std::runtime_error for a scale that is no single float32.
WeightIndex with_diffusers_names(const WeightIndex& file,
                                 const std::vector<ExpectedTensor>& expected,
                                 const std::function<std::vector<Spelling>()>& spellings);

}  // namespace troupe::spec
