#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "models/safetensors.h"
#include "models/spec/unet_spec.h"
#include "models/unet/layers.h"
#include "models/unet/unet_port.h"

namespace troupe::models::unet {

/// SDXL's condition beside the text's states.
struct AddedCondition {
  at::Tensor pooled;    ///< text_embeds [B, D]
  at::Tensor time_ids;  ///< [B, n]: original size, crop, target size
};

/// diffusers' UNet2DConditionModel, on the patches of rows that a port has here.
class UNet2DConditionModel {
 public:
  using PackedOf = decltype(Builder::packed);

  /// Throws std::runtime_error naming the tensor that is missing, misshapen or not called for.
  /// `get`, where given, hands out the weights. `products`: how those of products of tokens are
  /// kept; throws where such cannot be computed on `device`. `packed`, where given, returns the
  /// matrix of such a product if it is kept as it is stored.
  UNet2DConditionModel(const spec::UNetSpec& spec, const WeightStore& weights,
                       at::ScalarType dtype = at::kFloat, at::Device device = at::kCPU,
                       vae::Loader::Get get = {},
                       kernels::WeightType products = kernels::WeightType::as_computed,
                       PackedOf packed = {});

  /// The text's keys and values in every cross attention, once a job; `states` [B, L, D].
  std::vector<TextKeys> keys_of(const at::Tensor& states) const;

  /// Returns the condition that the residual blocks add, [B, time_embed_dim], once a step. Throws
  /// std::invalid_argument if `added` is missing or of another shape and the model takes it.
  at::Tensor condition(double timestep, std::int64_t batch,
                       const std::optional<AddedCondition>& added = {}) const;

  /// Latents [B, in_channels, rows, w] of each of the port's patches, to the predictions
  /// [B, out_channels, rows, w].
  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& latents,
                                     const at::Tensor& condition, const std::vector<TextKeys>& text,
                                     UNetPort& port) const;

  /// Values that a call of the model in three parts has computed before its second part. A step may
  /// leave the second part out, and give the third part the result that an earlier step had of it
  /// (DeepCache).
  struct Outer {
    Features entered;  ///< conv_in's
    Features first;    ///< the first layer's
  };
  Outer enter(const std::vector<at::Tensor>& latents, const at::Tensor& condition,
              const std::vector<TextKeys>& text, UNetPort& port) const;
  /// Computes all layers between the first and the last two, which also use the values that `enter`
  /// computed: [B, spec().inner_channels(), rows, w] of each patch.
  Features inner(const Outer& outer, const at::Tensor& condition, const std::vector<TextKeys>& text,
                 UNetPort& port) const;
  std::vector<at::Tensor> leave(const Outer& outer, Features inner, const at::Tensor& condition,
                                const std::vector<TextKeys>& text, UNetPort& port) const;

  /// Computes the prediction of a whole picture.
  at::Tensor whole(const at::Tensor& latents, const at::Tensor& condition,
                   const std::vector<TextKeys>& text) const;

  const spec::UNetSpec& spec() const { return spec_; }
  int levels() const { return static_cast<int>(spec_.levels.size()); }
  /// Number of layers of each kind that look beyond their patch.
  const SiteCounter& sites() const { return sites_; }
  /// Number of bytes by which the weights are smaller in memory than in the compute dtype.
  std::int64_t saved_bytes() const { return saved_bytes_; }

 private:
  struct Layer {
    ResnetBlock2D resnet;
    std::optional<Transformer2DModel> attention;
  };
  struct Block {
    std::vector<Layer> layers;
    std::optional<Conv2d> resample;
  };
  /// `keys` begins with those of the layer's attentions, and is moved beyond them.
  static void run(const Layer& layer, Features& x, const at::Tensor& condition,
                  const TextKeys*& keys, const Call& call);
  Call call_of(const Features& outermost, UNetPort& port) const;
  Layer make_layer(const Builder& build, const std::string& block, std::int64_t i, std::int64_t in,
                   const spec::UNetLevel& level, std::int64_t transformers) const;

  spec::UNetSpec spec_;
  at::ScalarType dtype_;
  at::Device device_;
  SiteCounter sites_;
  std::int64_t saved_bytes_ = 0;
  std::vector<kernels::Linear> time_embedding_, add_embedding_;
  std::vector<Conv2d> ends_;  // conv_in, conv_out
  std::vector<Block> down_blocks_, up_blocks_;
  std::vector<Layer> mid_;  // the first residual block with the attention, and the second
  std::vector<GroupNorm> conv_norm_out_;
};

/// diffusers' get_timestep_embedding: [n] to [n, width], float32.
at::Tensor timestep_embedding(const at::Tensor& times, std::int64_t width, bool flip_sin_to_cos,
                              std::int64_t freq_shift);

}  // namespace troupe::models::unet
