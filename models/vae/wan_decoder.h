#pragma once
#include <functional>
#include <optional>
#include <variant>
#include <vector>

#include "models/spec/wan_vae_spec.h"
#include "models/vae/causal_conv3d.h"
#include "models/vae/layers.h"

namespace troupe::models::vae {

/// RMS norm over the channels of each position. Source: WanRMS_norm of diffusers.
struct ChannelNorm {
  ChannelNorm() = default;
  ChannelNorm(const Loader& load, const std::string& name, std::vector<std::int64_t> shape);
  /// Returns the normed `x` in memory of its own.
  at::Tensor operator()(const at::Tensor& x) const;
  at::Tensor with_silu(const at::Tensor& x) const;

  at::Tensor weight;  // [1, C, 1, 1], times √C
};

/// Source: WanResidualBlock of diffusers.
struct WanResidual {
  WanResidual(const Loader& load, const std::string& name, std::int64_t in, std::int64_t out,
              int& memories);
  at::Tensor operator()(const at::Tensor& x, FrameMemories& memories, const Pass& pass) const;

  ChannelNorm norm1, norm2;
  CausalConv3d conv1, conv2;
  std::optional<Conv2d> conv_shortcut;
};

/// One head over all positions of a frame, with its own norm and residual.
/// Source: WanAttentionBlock of diffusers.
struct WanAttention {
  WanAttention(const Loader& load, const std::string& name, std::int64_t channels);
  at::Tensor operator()(const at::Tensor& x, const Pass& pass) const;

  ChannelNorm norm;
  at::Tensor qkv, qkv_bias, out, out_bias;
};

/// diffusers' WanDecoder3d with post_quant_conv before it. Frames go through it one at a time, each
/// as far as it gets, so that it holds one frame's feature maps at each level and what its
/// convolutions remember, however long the video is.
class WanDecoder {
 public:
  WanDecoder(const spec::WanVaeSpec& spec, const Loader& load);

  /// State between a video's frames.
  struct State {
    FrameMemories memories;
    bool first = true;
  };
  State start() const { return {FrameMemories(memories_), true}; }

  using FrameSink = std::function<void(const at::Tensor& pixels)>;
  /// Decodes the next latent frame [1, C, h, w], unscaled, this shard's rows; the sink gets its
  /// frames [1, 3, h · f, w · f] in order, clamped to [-1, 1].
  void push(at::Tensor x, State& state, const Pass& pass, const Tick& tick,
            const FrameSink& sink) const;

 private:
  /// A convolution of one frame, of the feature map repeated so many times.
  struct FrameConvolution {
    Conv2d conv;
    std::int64_t repeat = 1;
  };
  /// A convolution that makes two frames, side by side in the channels.
  struct DoubledFrames {
    CausalConv3d conv;
  };
  /// A convolution over frames, after its norm and SiLU if the norm has weights.
  struct TimeConvolution {
    ChannelNorm norm;
    CausalConv3d conv;
  };
  using Layer =
      std::variant<FrameConvolution, TimeConvolution, WanResidual, WanAttention, DoubledFrames>;
  /// Runs the layers from `first` on.
  void run(std::size_t first, at::Tensor x, State& state, const Pass& pass, const Tick& tick,
           const FrameSink& sink) const;

  int memories_ = 0;
  std::vector<Layer> layers_;
};

}  // namespace troupe::models::vae
