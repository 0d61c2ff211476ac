#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "models/spec/wan_vae_spec.h"
#include "models/vae/halo_port.h"
#include "models/vae/layers.h"

namespace troupe::models::vae {

/// The inputs of a convolution at the two frames before; undefined where there were none: zeros.
struct FrameMemory {
  at::Tensor before, last;
  std::int64_t seen = 0;  ///< number of frames that came so far, where every second one counts

  void keep(const at::Tensor& frame);
};

/// Memories of all layers of a network that look at frames before, while a video goes through it;
/// none where it has one frame.
using FrameMemories = std::vector<FrameMemory>;

/// A convolution over this frame and the two before it, three frames of weights of `side` × `side`.
/// Frames come one at a time. Source: WanCausalConv3d of diffusers with its feature cache.
class CausalConv3d {
 public:
  CausalConv3d() = default;
  /// Takes the next memory, of which `memories` counts them; if `memories` is null, there is one
  /// frame, and no weights of the frames before it are kept. `side` 1 or 3.
  CausalConv3d(const Loader& load, const std::string& name, std::int64_t in, std::int64_t out,
               std::int64_t side, int* memories);

  /// x [1, in, h, w], this shard's rows, which stays in its memory → [1, out, h, w].
  at::Tensor operator()(const at::Tensor& x, FrameMemories& memories, const Pass& pass) const;
  int memory() const { return memory_; }

 private:
  Conv2d now_, last_, before_;
  int memory_ = 0;
};

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
              int* memories);
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

/// diffusers' WanDecoder3d with post_quant_conv before it, or WanEncoder3d with quant_conv behind
/// it. Frames go through it one at a time, each as far as it gets, so that it holds one frame's
/// feature maps at each level and what its convolutions remember, however long the video is.
class WanCoder {
 public:
  WanCoder(const spec::WanVaeSpec& spec, spec::VaeHalf half, const Loader& load);

  /// State between a video's frames.
  struct State {
    FrameMemories memories;
    bool first = true;
  };
  State start() const { return {FrameMemories(memories_), true}; }

  using FrameSink = std::function<void(const at::Tensor& made)>;
  /// Decodes the next latent frame [1, C, h, w], unscaled, this shard's rows; the sink gets its
  /// frames [1, 3, h · f, w · f] in order, clamped to [-1, 1]. An encoder takes the next frame
  /// [1, 3, h · f, w · f] in [-1, 1], and its sink gets a latent frame [1, 2 · C, h, w] where one
  /// is finished: the mean and the logarithm of the variance.
  void push(at::Tensor x, State& state, const Pass& pass, const Tick& tick,
            const FrameSink& sink) const;

 private:
  /// A convolution of one frame, of the feature map repeated so many times, or of stride 2.
  struct FrameConvolution {
    Conv2d conv;
    std::int64_t repeat = 1;
  };
  /// A convolution that makes two frames, side by side in the channels.
  struct DoubledFrames {
    CausalConv3d conv;
  };
  /// A convolution that every second frame comes out of, and the first as it is.
  struct HalvedFrames {
    CausalConv3d conv;
  };
  /// A layer that adds a level's input, which was kept, to a frame that comes out of it.
  struct KeptInput {
    std::vector<at::Tensor> channels;  // which the first frame made of it gets, and the second
    std::int64_t repeat = 1;           // of rows and of columns
  };
  /// A layer that adds the mean of a level's input over neighbouring rows, columns and channels,
  /// and over two frames where the level halves them.
  struct KeptMean {
    bool of_two_frames = false;
    int memory = -1;            // of the frame before; none where there is one frame
    std::int64_t side = 1;      // rows, and columns, of a mean
    std::int64_t channels = 1;  // that come out
  };
  /// A layer that keeps its input for the next KeptInput or KeptMean, which has the memory if the
  /// frame before counts, too.
  struct Keep {
    int memory = -1;
  };
  /// A convolution over frames, after its norm and SiLU if the norm has weights.
  struct TimeConvolution {
    ChannelNorm norm;
    CausalConv3d conv;
  };
  using Layer = std::variant<FrameConvolution, TimeConvolution, WanResidual, WanAttention,
                             DoubledFrames, HalvedFrames, Keep, KeptInput, KeptMean>;
  /// A frame within the network: what was kept last, and which of the two frames it is that were
  /// made since.
  struct Frame {
    at::Tensor x, kept;
    std::size_t half = 0;
  };
  static KeptInput kept_input(const spec::VaeLayer& layer, bool doubles, at::Device device);
  /// Runs the layers from `first` on.
  void run(std::size_t first, Frame frame, State& state, const Pass& pass, const Tick& tick,
           const FrameSink& sink) const;

  static at::Tensor mean_of(const KeptMean& layer, const Frame& frame, const State& state);

  bool decodes_ = true;
  int memories_ = 0;
  std::int64_t patch_size_ = 1;
  std::vector<Layer> layers_;
};

}  // namespace troupe::models::vae

namespace troupe::models {

/// One half of diffusers' AutoencoderKLWan or AutoencoderKLQwenImage, in float32. Videos of a batch
/// are coded one at a time, and of each a frame at a time. Latents and pixels are laid out as tall
/// pictures: frame below frame. Methods throw std::invalid_argument for another shape.
class AutoencoderKLWan {
 public:
  /// Throws std::runtime_error naming the tensor that is missing or misshapen.
  AutoencoderKLWan(const spec::WanVaeSpec& spec, const WeightStore& weights, at::Device device,
                   spec::VaeHalf half = spec::VaeHalf::decoder);

  /// Gets frame `frame` of video `video`, [1, 3, rows · f, w · f] in [-1, 1].
  using FrameSink =
      std::function<void(std::int64_t video, std::int64_t frame, const at::Tensor& pixels)>;

  /// Final latents [B, z_dim, frames · h, w], as the sampler leaves them, in latent frames. Every
  /// shard passes all of them, and its sink gets its own rows of each frame,
  /// RowShards(h, port.shards()).of(port.shard()). Brings them to the decoder's scale itself.
  /// `tick` is called as blocks finish; what it or the sink throws ends the decoding.
  void decode_rows(const at::Tensor& latents, std::int64_t frames, HaloPort& port,
                   const vae::Tick& tick, const FrameSink& sink) const;
  /// Returns the shard's rows of each frame, one below the other, [B, 3, F · rows · f, w · f].
  at::Tensor decode(const at::Tensor& latents, std::int64_t frames, HaloPort& port,
                    const vae::Tick& tick) const;
  /// The whole pictures, [B, 3, F · h · f, w · f].
  at::Tensor decode(const at::Tensor& latents, std::int64_t frames,
                    const vae::Tick& tick = nullptr) const;

  /// Returns frame `frame` of a video that is encoded, [1, 3, h · f, w · f] in [-1, 1].
  using FrameSource = std::function<at::Tensor(std::int64_t frame)>;
  /// Encodes a video of `frames` frames, which are asked for one after the other, as the mean of
  /// the encoder's distribution, scaled as a sampler takes latents. Every shard is given whole
  /// frames and returns its own rows of each latent frame, one below the other,
  /// [1, z_dim, F · rows, w]. A half that encodes.
  at::Tensor encode_rows(std::int64_t frames, const FrameSource& source, HaloPort& port,
                         const vae::Tick& tick) const;
  /// The whole latents, [1, z_dim, F · h, w].
  at::Tensor encode(std::int64_t frames, const FrameSource& source,
                    const vae::Tick& tick = nullptr) const;

  const spec::WanVaeSpec& spec() const { return spec_; }
  /// Feature maps larger than this are computed in runs of rows about as large; at least 1.
  void set_chunk_bytes(std::int64_t bytes) { chunk_bytes_ = bytes; }

 private:
  spec::WanVaeSpec spec_;
  at::Device device_;
  at::MemoryFormat memory_format_;
  std::int64_t chunk_bytes_;
  vae::WanCoder coder_;
  at::Tensor mean_, inverse_std_;  // [1, z, 1, 1]
};

}  // namespace troupe::models
