#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "models/spec/planned_tensors.h"
#include "models/spec/transformer_facts.h"

namespace troupe::spec {

/// Tensor that a caller may pass instead of a prompt: a text encoder would have made it; its name
/// is that in diffusers' pipeline.
struct PromptTensor {
  enum class Kind {
    states,  ///< [prompts, tokens, width], or [prompts, tokens, layers, width]
    mask,    ///< [prompts, tokens]: ones, then zeros
    pooled,  ///< [prompts, width]
  };
  std::string name;
  Kind kind = Kind::states;
  std::int64_t width = 0;
  /// Number of layers whose states the tensor has; 0: it has no such axis.
  std::int64_t layers = 0;
  /// True if zeros may stand between a mask's ones: where a token stands changes nothing.
  bool in_any_order = false;
  /// Number of tokens that the tensor must have; 0: any.
  std::int64_t tokens = 0;
  /// Index of the text encoder's output that the tensor belongs to, among those that the
  /// transformer projects together.
  std::size_t output = 0;
};

class FitCheck;

/// `transformer/config.json` as a model plugin has read it (docs/adding-a-model.md). Immutable, and
/// used from several threads.
class UserTransformer {
 public:
  virtual ~UserTransformer() = default;
  /// Returns the numbers that plans and actors need of the transformer.
  virtual TransformerFacts facts() const = 0;
  /// Returns every tensor of the folder's safetensors, once.
  virtual std::vector<PlannedTensor> tensors() const = 0;
  /// Throws by `fit.require` if the text encoders do not go with the transformer.
  virtual void check_fit(const FitCheck& fit) const = 0;
  /// Returns the tensors that replace the prompts in a request with the text encoders' output
  /// (`--prompt-embeds`); empty: such requests are refused.
  virtual std::vector<PromptTensor> prompt_tensors() const { return {}; }
};

/// A transformer whose family came in a shared library. Two are equal that were read by the same
/// class from the same settings.
struct UserSpec {
  std::string class_name;
  std::string config;  // JSON
  std::shared_ptr<const UserTransformer> transformer;

  bool operator==(const UserSpec& other) const {
    return class_name == other.class_name && config == other.config;
  }
};

inline std::vector<PlannedTensor> planned_tensors(const UserSpec& spec) {
  return spec.transformer->tensors();
}
inline TransformerFacts facts_of(const UserSpec& spec) {
  return spec.transformer->facts();
}
inline void check_fit(const UserSpec& spec, const FitCheck& fit) {
  spec.transformer->check_fit(fit);
}

}  // namespace troupe::spec
