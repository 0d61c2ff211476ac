#pragma once

#include <stdexcept>
#include <string>

#include <ATen/core/Tensor.h>

#include "models/dit/diffusion_transformer.h"

namespace troupe::models {

/// Checks of arguments that all families share. `family` begins the error's text. All throw
/// std::invalid_argument.
[[noreturn]] void refuse_shape(const char* family, const char* what, const at::Tensor& given,
                               at::IntArrayRef expected);
const StagePart& checked_part(const char* family, const StagePart& part, int64_t blocks);
void check_rows(const char* family, const char* who, int64_t patch, PictureSize size,
                TokenRows rows);
void check_latents(const char* family, const at::Tensor& latents, int64_t channels, int64_t patch,
                   PictureSize size, TokenRows rows);

void require_block_0(const char* family, const StagePart& part);
/// The call's blocks, counted from the stage's first one. Throws where the stage lacks one of them.
BlockRange own_blocks(const char* family, const StagePart& part, const CallTokens& call);

/// The family's own kind of a condition or a caption.
template <class T, class Base>
const T& as(const char* family, const Base& given, const char* what) {
  const T* found = dynamic_cast<const T*>(&given);
  if (!found) {
    throw std::invalid_argument("[" + std::string(family) + "] " + what + " of another model");
  }
  return *found;
}

}  // namespace troupe::models
