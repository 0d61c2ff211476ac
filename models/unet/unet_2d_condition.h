#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "models/safetensors.h"
#include "models/spec/unet_spec.h"
#include "models/unet/layers.h"
#include "models/unet/unet_port.h"
#include "models/unet/way_down.h"

namespace troupe::models::unet {

/// Values that ControlNets add to a U-Net's: of the way down, in its order, and of the middle.
struct Residuals {
  std::vector<Features> down;
  Features middle;
};

/// Adds the values of each patch, in place.
void add(Features& x, const Features& more);

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
                       const std::optional<AddedCondition>& added = {}) const {
    return way_down_->condition(timestep, batch, added);
  }

  /// Latents [B, in_channels, rows, w] of each of the port's patches, to the predictions
  /// [B, out_channels, rows, w]; `residuals`: of ControlNets, or null.
  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& latents,
                                     const at::Tensor& condition, const std::vector<TextKeys>& text,
                                     UNetPort& port, const Residuals* residuals = nullptr) const;

  /// Values that a call of the model in three parts has computed before its second part. A step may
  /// leave the second part out, and give the third part the result that an earlier step had of it
  /// (DeepCache).
  static constexpr std::size_t kOuterValues = 2;
  struct Outer {
    Features entered;  ///< conv_in's
    Features first;    ///< the first layer's
  };
  Outer enter(const std::vector<at::Tensor>& latents, const at::Tensor& condition,
              const std::vector<TextKeys>& text, UNetPort& port) const;
  /// Computes all layers between the first and the last two, which also use the values that `enter`
  /// computed: [B, spec().inner_channels(), rows, w] of each patch.
  Features inner(const Outer& outer, const at::Tensor& condition, const std::vector<TextKeys>& text,
                 UNetPort& port, const Residuals* residuals = nullptr) const;
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
  spec::UNetSpec spec_;
  SiteCounter sites_;
  std::int64_t saved_bytes_ = 0;
  std::optional<WayDown> way_down_;
  std::vector<Block> up_blocks_;
  std::optional<GroupNorm> conv_norm_out_;
  std::optional<Conv2d> conv_out_;
};

}  // namespace troupe::models::unet
