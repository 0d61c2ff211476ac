#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "models/dit/diffusion_transformer.h"

namespace troupe::models {

/// By what angles queries and keys are turned: cosines and sines [tokens, d / 2], for channel pairs
/// (2i, 2i + 1). Both undefined: not at all.
struct Turns {
  at::Tensor cosine, sine;
};

/// Angles of one coordinate: positions [n] times the `width` / 2 frequencies of rotary positions,
/// [n, width / 2] float64. Source: get_1d_rotary_pos_embed of diffusers.
at::Tensor rotary_angles(const at::Tensor& positions, int64_t width);

/// Of all the picture's tokens, those of `rows`.
Turns turns_of_rows(const Turns& all, const std::vector<TokenRows>& rows, int64_t columns);

/// `tokens` turns by nothing before `turns`.
Turns with_unturned(const Turns& turns, int64_t tokens);

}  // namespace troupe::models
