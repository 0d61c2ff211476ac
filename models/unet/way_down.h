#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/spec/unet_spec.h"
#include "models/unet/layers.h"
#include "models/unet/unet_port.h"

namespace troupe::models::unet {

/// SDXL's condition beside the text's states.
struct AddedCondition {
  at::Tensor pooled;    ///< text_embeds [B, D]
  at::Tensor time_ids;  ///< [B, n]: original size, crop, target size
};

/// A residual block, and what attends behind it.
struct Layer {
  ResnetBlock2D resnet;
  std::optional<Transformer2DModel> attention;

  /// `keys` begins with those of the layer's attentions, and is moved beyond them.
  void run(Features& x, const at::Tensor& condition, const TextKeys*& keys, const Call& call) const;
  /// Appends the text's keys and values in every cross attention.
  void add_keys(const at::Tensor& text, std::vector<TextKeys>& keys) const;
};

/// Layers of one resolution, and the convolution to the next.
struct Block {
  std::vector<Layer> layers;
  std::optional<Conv2d> resample;
};

/// `block`: "down_blocks.0."; `i`: the layer's number in it.
Layer make_layer(const Builder& build, const spec::UNetSpec& spec, const std::string& block,
                 std::int64_t i, std::int64_t in, const spec::UNetLevel& level,
                 std::int64_t transformers);

/// Layers that U-Nets and their ControlNets have alike: the first convolution, the condition of
/// time and sizes, the blocks on the way down, and the middle.
class WayDown {
 public:
  WayDown(const Builder& build, const spec::UNetSpec& spec, at::ScalarType dtype,
          at::Device device);

  /// Returns the condition that the residual blocks add, [B, time_embed_dim], once a step. Throws
  /// std::invalid_argument if `added` is missing or of another shape and the model takes it.
  at::Tensor condition(double timestep, std::int64_t batch,
                       const std::optional<AddedCondition>& added) const;

  /// Returns the text's states as they are computed with. Throws std::invalid_argument for another
  /// shape than [B, L, D].
  at::Tensor own_states(const at::Tensor& states) const;
  void add_keys(const at::Tensor& text, std::vector<TextKeys>& keys) const;

  /// Returns the first convolution's values of latents [B, in_channels, rows, w] of each of the
  /// port's patches. Throws std::invalid_argument for latents or a condition of another shape.
  Features enter(const std::vector<at::Tensor>& latents, const at::Tensor& condition,
                 UNetPort& port) const;
  void run_first(Features& x, const at::Tensor& condition, const TextKeys*& keys,
                 const Call& call) const {
    down_.front().layers.front().run(x, condition, keys, call);
  }
  /// Runs the other layers of the way down, from what the first layer has made of it, and appends
  /// what each of them and each change of resolution makes to `values`.
  void run_others(Features& x, const at::Tensor& condition, const TextKeys*& keys, const Call& call,
                  std::vector<Features>& values) const;
  void run_middle(Features& x, const at::Tensor& condition, const TextKeys*& keys,
                  const Call& call) const;
  /// Returns a call of the model on maps as wide as this one.
  Call call_of(const Features& outermost, UNetPort& port) const;

 private:
  spec::UNetSpec spec_;
  at::ScalarType dtype_;
  at::Device device_;
  Conv2d conv_in_;
  std::vector<kernels::Linear> time_embedding_, add_embedding_;
  std::vector<Block> down_;
  std::vector<Layer> mid_;  // the first residual block with the attention, and the second
};

/// diffusers' get_timestep_embedding: [n] to [n, width], float32.
at::Tensor timestep_embedding(const at::Tensor& times, std::int64_t width, bool flip_sin_to_cos,
                              std::int64_t freq_shift);

}  // namespace troupe::models::unet
