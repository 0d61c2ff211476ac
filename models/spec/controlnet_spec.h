#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "models/spec/config.h"
#include "models/spec/planned_tensors.h"
#include "models/spec/unet_spec.h"

namespace troupe::spec {

/// `config.json` of a ControlNetModel: a U-Net's way down, which adds an embedding of the control
/// picture to what it begins with, and products that make residuals of its values.
struct ControlNetSpec {
  static constexpr std::string_view kClass = "ControlNetModel";
  static constexpr std::int64_t kPictureChannels = 3;
  /// Refuses what is not supported by key and value.
  static ControlNetSpec read(const ConfigReader& config);

  UNetSpec network;
  /// Widths of the embedding's convolutions; each but the first begins at half the size.
  std::vector<std::int64_t> embedding_widths = {16, 32, 96, 256};
  /// True if blue comes first in the picture's channels.
  bool blue_first = false;

  /// Returns the pixels of the picture that one latent stands for.
  std::int64_t scale_factor() const { return std::int64_t{1} << (embedding_widths.size() - 1); }
  /// Returns the channels of each value of the way down that gets a residual, in their order: what
  /// it begins with, then each layer's and each resolution's end.
  std::vector<std::int64_t> residual_channels() const;

  bool operator==(const ControlNetSpec&) const = default;
};

/// Every tensor, in diffusers' names, with what plans must know of it.
std::vector<PlannedTensor> planned_tensors(const ControlNetSpec& spec);
std::vector<ExpectedTensor> expected_tensors(const ControlNetSpec& spec);

/// Throws std::runtime_error naming the key unless the residuals fit the values of `unet`, and the
/// text and the picture those that its pipeline has; `vae_scale`: pixels of a latent.
void check_fit(const ControlNetSpec& spec, const ConfigReader& config, const UNetSpec& unet,
               std::int64_t vae_scale);

}  // namespace troupe::spec
