#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace troupe::spec {

/// Tensor that a caller may pass instead of a prompt: a text encoder would have made it; its name
/// is that in diffusers' pipeline.
struct PromptTensor {
  enum class Kind {
    states,  ///< [prompts, tokens, width]
    mask,    ///< [prompts, tokens]: ones, then zeros
    pooled,  ///< [prompts, width]
  };
  std::string name;
  Kind kind = Kind::states;
  std::int64_t width = 0;
  /// Number of tokens that the tensor must have; 0: any.
  std::int64_t tokens = 0;
  /// Index of the text encoder's output that the tensor belongs to, among those that the
  /// transformer projects together.
  std::size_t output = 0;
};

}  // namespace troupe::spec
