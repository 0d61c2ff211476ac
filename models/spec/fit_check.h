#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "models/spec/model_spec.h"

namespace troupe::spec {

/// Model whose parts a family's `check_fit` compares with its settings.
class FitCheck {
 public:
  explicit FitCheck(const ModelSpec& of) : model(of) {}

  const ModelSpec& model;
  /// Throws std::runtime_error naming both unless the transformer's setting `what` equals what `of`
  /// has.
  void require(const char* what, std::int64_t wanted, const std::string& of,
               std::int64_t has) const;
  /// A text encoder, which the pipeline's line says is of this kind.
  const T5Spec& t5(std::size_t encoder) const { return text<T5Spec>(encoder); }
  const ClipSpec& clip(std::size_t encoder) const { return text<ClipSpec>(encoder); }
  const BertSpec& bert(std::size_t encoder) const { return text<BertSpec>(encoder); }

 private:
  template <class Spec>
  const Spec& text(std::size_t encoder) const {
    return std::get<Spec>(model.text_encoders.at(encoder).config);
  }
};

/// Throws unless the folder's components fit together.
void check_fit(const ModelSpec& spec);

}  // namespace troupe::spec
