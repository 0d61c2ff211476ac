#pragma once
#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "models/safetensors.h"
#include "models/spec/controlnet_spec.h"
#include "models/unet/unet_2d_condition.h"
#include "models/unet/unet_port.h"
#include "models/unet/way_down.h"

namespace troupe::models::unet {

/// diffusers' ControlNetModel, on the patches of rows that a port has here.
class ControlNetModel {
 public:
  /// The weights, as UNet2DConditionModel takes them.
  ControlNetModel(const spec::ControlNetSpec& spec, const WeightStore& weights,
                  at::ScalarType dtype, at::Device device, vae::Loader::Get get,
                  kernels::WeightType products, UNet2DConditionModel::PackedOf packed);

  /// Returns the embedding of a control picture [1, 3, H, W] from 0 to 1, once a job:
  /// [1, C, h, w] of the whole picture. `tick` is called before each layer.
  at::Tensor embed(const at::Tensor& picture, const std::function<void()>& tick) const;

  /// Returns the text's keys and values in every cross attention, once a job; `states` [B, L, D].
  std::vector<TextKeys> keys_of(const at::Tensor& states) const;

  at::Tensor condition(double timestep, std::int64_t batch,
                       const std::optional<AddedCondition>& added) const {
    return way_down_->condition(timestep, batch, added);
  }

  /// Returns the residuals, times `scale`, for latents [B, in_channels, rows, w] of each of the
  /// port's patches. `embedding`: the rows of `embed` of each patch.
  Residuals operator()(const std::vector<at::Tensor>& latents,
                       const std::vector<at::Tensor>& embedding, const at::Tensor& condition,
                       const std::vector<TextKeys>& text, double scale, UNetPort& port) const;

  const spec::ControlNetSpec& spec() const { return spec_; }
  /// Returns the number of bytes by which the weights are smaller in memory than in the compute
  /// type.
  std::int64_t saved_bytes() const { return saved_bytes_; }

 private:
  struct Convolution {
    at::Tensor weight, bias;
    std::int64_t stride = 1;
  };

  spec::ControlNetSpec spec_;
  at::ScalarType dtype_;
  at::Device device_;
  SiteCounter sites_;
  std::int64_t saved_bytes_ = 0;
  std::optional<WayDown> way_down_;
  std::vector<Convolution> embedding_;
  std::vector<Convolution> residuals_;  // of side 1: of the way down, then of the middle
};

}  // namespace troupe::models::unet
