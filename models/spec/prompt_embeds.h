#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "models/spec/model_spec.h"
#include "models/spec/user_spec.h"

namespace troupe::spec {

/// Returns the tensors that stand for a prompt of this model, all of which it needs. The negative
/// branch's tensors have the same shapes, and kNegativeTensor before their names.
std::vector<PromptTensor> prompt_tensors(const ModelSpec& model);

inline constexpr std::string_view kNegativeTensor = "negative_";

/// Tensors that a safetensors file has in place of prompts, as float32 whatever their type in the
/// file (masks are mostly whole numbers).
struct PromptEmbedsFile {
  struct Tensor {
    std::vector<std::int64_t> shape;
    std::vector<float> data;  ///< row-major, finite
  };
  std::map<std::string, Tensor> tensors;
  std::size_t prompts = 0;  ///< first extent of `prompt_embeds`
};

/// `bytes`: the file, which errors call `name`. Throws std::runtime_error naming it, the tensor and
/// the cause: no such file, a header of more than 1 MiB, a value that is not finite, more than
/// `most_values` values, no tensor `prompt_embeds`, not 1 to `most_prompts` prompts.
PromptEmbedsFile parse_prompt_embeds(std::string_view bytes, const std::string& name,
                                     std::size_t most_values, std::size_t most_prompts);

}  // namespace troupe::spec
