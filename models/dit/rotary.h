#pragma once

#include <vector>

#include <ATen/core/Tensor.h>

#include "models/dit/diffusion_transformer.h"

namespace troupe::models {

/// Angles by which queries and keys are turned: cosines and sines [tokens, d / 2], for channel
/// pairs (2i, 2i + 1). If both are undefined, nothing is turned.
struct RotaryAngles {
  at::Tensor cosine, sine;
};

/// Angles of one coordinate: positions [n] times the `width` / 2 frequencies of rotary positions,
/// [n, width / 2] float64. Source: get_1d_rotary_pos_embed of diffusers.
at::Tensor rotary_angles(const at::Tensor& positions, int64_t width);

/// Returns the turns of the picture's tokens in `rows`, from those of `all` its tokens.
RotaryAngles rotary_angles_of_rows(const RotaryAngles& all, const std::vector<TokenRows>& rows,
                                   int64_t columns);

/// Returns `turns` with `tokens` turns by nothing put before them.
RotaryAngles with_unrotated(const RotaryAngles& turns, int64_t tokens);

}  // namespace troupe::models
