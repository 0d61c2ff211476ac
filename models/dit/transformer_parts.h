#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "kernels/linear.h"
#include "models/dit/diffusion_transformer.h"
#include "models/dit/weight_loader.h"

namespace troupe::models {

/// Angles by which queries and keys are turned: cosines and sines [tokens, d / 2], for channel
/// pairs (2i, 2i + 1). If both are undefined, nothing is turned.
struct RotaryAngles {
  at::Tensor cosine, sine;

  /// Returns those of tokens [begin, end).
  RotaryAngles part(int64_t begin, int64_t end) const;
  /// Returns those of all tokens of several, one run behind the other.
  static RotaryAngles joined(const std::vector<RotaryAngles>& runs);
};

/// Angles of one coordinate: positions [n] times the `width` / 2 frequencies of rotary positions,
/// powers of 1 / `theta`: [n, width / 2], all computed in `type`. Source: get_1d_rotary_pos_embed
/// of diffusers.
at::Tensor rotary_angles(const at::Tensor& positions, int64_t width,
                         at::ScalarType type = at::kDouble, double theta = 10000);

/// Returns the turns of the picture's tokens in `rows`, from those of `all` its tokens.
RotaryAngles rotary_angles_of_rows(const RotaryAngles& all, const std::vector<TokenRows>& rows,
                                   int64_t columns);

/// Returns `turns` with `tokens` turns by nothing put before them.
RotaryAngles with_unrotated(const RotaryAngles& turns, int64_t tokens);

/// Returns a timestep as FLUX's and FLUX.2's models see it: their pipelines divide it by 1000 and
/// the models multiply it again, in float32.
double timestep_of_flux(double timestep);

inline constexpr int64_t kSineFeatures = 256;
/// Sines of `values` [n] at `features` / 2 frequencies: [n, features], cosines first, in float32;
/// the angles are multiplied by `scale` at last. Source: Timesteps of diffusers with
/// flip_sin_to_cos and no frequency shift.
at::Tensor sine_features(const at::Tensor& values, double scale = 1,
                         int64_t features = kSineFeatures);

/// Places of the values that modulate a block: first those of its attention, then those of its
/// feed-forward half, then those of a second attention.
enum { kShift, kScale, kGate, kShiftForward, kScaleForward, kGateForward, kSecond };

/// Epsilon of the norms in diffusers' transformers.
inline constexpr double kEps = 1e-6;

/// Latents [B, C, rows · patch, w] as tokens [B, tokens, C · patch²], channels first in a token.
at::Tensor tokens_of_latents(const at::Tensor& latents, int64_t patch);

/// Order in which the outputs of a token are laid out.
enum class TokenOrder { pixels_first, channels_first };
/// Tokens [B, rows · columns, C · patch²] as latents [B, C, rows · patch, columns · patch].
at::Tensor latents_of_tokens(const at::Tensor& tokens, int64_t columns, int64_t patch,
                             TokenOrder order);

/// Brings what is beyond the range of float16 to its ends, in place; other types stay as they are.
void clip_half(at::Tensor& hidden);

/// hidden += gate · product(x), of all shards together where there are several; without a gate,
/// += product(x). hidden [B, N, D], contiguous; gate [B, D].
void add_product(at::Tensor& hidden, const kernels::Linear& product, const at::Tensor& x,
                 const std::optional<at::Tensor>& gate, bool sharded, TensorParallelPort& sums);

/// The first half of x's last dimension after SiLU, times the second half.
at::Tensor silu_gated(const at::Tensor& x);

/// Two products with SiLU between. Source: TimestepEmbedding, PixArtAlphaTextProjection.
class SiluMlp {
 public:
  SiluMlp() = default;
  SiluMlp(const WeightLoader& weights, const std::string& name, int64_t in, int64_t wide,
          int64_t out, bool bias = true);
  at::Tensor operator()(const at::Tensor& x) const;
  int64_t bytes() const { return first_.bytes() + second_.bytes(); }

 private:
  kernels::Linear first_, second_;
};

/// The last norm, modulated by the condition, and the product that follows.
/// Source: AdaLayerNormContinuous without weights, and proj_out.
class LastLayer {
 public:
  LastLayer() = default;
  /// The product may have `stored_channels`, of whose pixels-first order the first `channels` are
  /// kept.
  LastLayer(const WeightLoader& weights, int64_t width, int64_t patch, int64_t channels,
            int64_t stored_channels, TokenOrder order, bool bias = true);
  /// Leaves it to the caller to make what modulates the norm: its scale, then its shift.
  LastLayer(const WeightLoader& weights, int64_t width, int64_t patch, int64_t channels,
            TokenOrder order);
  /// embedded [B, D] after SiLU → [B, 2, D].
  at::Tensor modulation(const at::Tensor& embedded) const;
  at::Tensor operator()(const at::Tensor& hidden, const at::Tensor& modulation,
                        int64_t columns) const;
  int64_t bytes() const { return condition_.bytes() + project_.bytes(); }

 private:
  int64_t patch_ = 1;
  TokenOrder order_ = TokenOrder::pixels_first;
  kernels::Linear condition_, project_;
};

}  // namespace troupe::models
