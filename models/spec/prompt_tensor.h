#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace troupe::spec {

/// What a caller may bring along instead of a prompt: a tensor that a text encoder would have made,
/// under the name that the pipeline of diffusers has for it.
struct PromptTensor {
  enum class Kind {
    states,  ///< [prompts, tokens, width]
    mask,    ///< [prompts, tokens]: ones, then zeros
    pooled,  ///< [prompts, width]
  };
  std::string name;
  Kind kind = Kind::states;
  std::int64_t width = 0;
  /// The only number of tokens that is taken; 0: any.
  std::int64_t tokens = 0;
  /// Which of the outputs it is of that the transformer projects together.
  std::size_t output = 0;
};

}  // namespace troupe::spec
