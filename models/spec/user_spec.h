#pragma once

#include <memory>
#include <string>
#include <vector>

#include "models/spec/planned_tensors.h"
#include "models/spec/prompt_tensor.h"
#include "models/spec/transformer_facts.h"

namespace troupe::spec {

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
