#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "models/vae/conv2d.h"
#include "models/vae/group_norm.h"
#include "models/vae/halo_port.h"
#include "models/vae/loader.h"

namespace troupe::models::vae {

/// One head: q [1, n, C] over k, v [N, C], in runs of queries where all scores would be many.
at::Tensor attend(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

/// Called after each block.
using Tick = std::function<void()>;

struct GroupNorm {
  GroupNorm() = default;
  GroupNorm(const Loader& load, const std::string& name, std::int64_t channels,
            std::int64_t num_groups);
  /// Takes the moments of all rows of the picture.
  ChannelAffine over(const at::Tensor& x, const Pass& pass) const;
  /// Returns the norm, with SiLU after it, as an operation that prepares rows.
  Prepare with_silu(const at::Tensor& x, const Pass& pass) const;

  at::Tensor weight, bias;
  std::int64_t groups = 1;
};

/// Writes its result over `x` where the width stays, so at most x and one more feature map are
/// alive at a time.
struct ResnetBlock2D {
  ResnetBlock2D(const Loader& load, const std::string& name, std::int64_t in, std::int64_t out,
                std::int64_t num_groups);
  at::Tensor operator()(at::Tensor x, const Pass& pass) const;

  GroupNorm norm1, norm2;
  Conv2d conv1, conv2;
  std::optional<Conv2d> conv_shortcut;
};

/// One head over all positions of the picture, with its own norm and residual; writes over `x`.
/// A shard answers for its own positions and sees everybody's keys and values.
struct Attention {
  Attention(const Loader& load, const std::string& name, std::int64_t channels,
            std::int64_t num_groups);
  at::Tensor operator()(at::Tensor x, const Pass& pass) const;

  GroupNorm group_norm;
  at::Tensor q, k, v, out;
  at::Tensor q_bias, k_bias, v_bias, out_bias;
};

}  // namespace troupe::models::vae
