#include "models/dit/pixart_embeddings.h"

#include <cmath>

#include <ATen/ATen.h>

namespace troupe::models {

at::Tensor axis_positions(int64_t count, int64_t base, double interpolation, int64_t width) {
  const double stretch = static_cast<double>(count) / static_cast<double>(base);
  const at::Tensor position =
      at::arange(count, at::TensorOptions().dtype(at::kFloat)).div(stretch).div(interpolation);
  const at::Tensor exponent = at::arange(width / 2, at::TensorOptions().dtype(at::kDouble))
                                  .div(static_cast<double>(width) / 2.0);
  const at::Tensor frequency = at::reciprocal(at::pow(10000.0, exponent));
  const at::Tensor angle = position.to(at::kDouble).unsqueeze(1) * frequency.unsqueeze(0);
  return at::cat({at::sin(angle), at::cos(angle)}, 1).to(at::kFloat);
}

PixArtCondition::PixArtCondition(const spec::PixArtSpec& spec, const WeightLoader& weights)
    : width_(spec.inner_dim()), sizes_(spec.use_additional_conditions) {
  const std::string prefix = "adaln_single.emb.";
  const auto load = [&](const char* name, int64_t width) {
    return SiluMlp(weights, prefix + name, kSineFeatures, width, width);
  };
  timestep_ = load("timestep_embedder", width_);
  if (sizes_) {
    resolution_ = load("resolution_embedder", spec.condition_dim());
    aspect_ratio_ = load("aspect_ratio_embedder", spec.condition_dim());
  }
  modulation_ = weights.linear("adaln_single.linear", width_, 6 * width_);
}

PixArtCondition::Values PixArtCondition::operator()(double timestep, int64_t batch, int64_t height,
                                                    int64_t width, at::ScalarType dtype,
                                                    at::Device device) const {
  const auto features = [&](const at::Tensor& values) {
    return sine_features(values).to(device, dtype);
  };
  const auto floats = [](std::initializer_list<double> values) {
    return at::tensor(std::vector<double>(values)).to(at::kFloat);
  };
  at::Tensor embedded = timestep_(features(floats({timestep})));
  if (sizes_) {
    const double pixels_high = static_cast<double>(height),
                 pixels_wide = static_cast<double>(width);
    const at::Tensor resolution = floats({pixels_high, pixels_wide}).to(dtype);
    const at::Tensor aspect_ratio = floats({pixels_high / pixels_wide}).to(dtype);
    embedded = embedded + at::cat({resolution_(features(resolution)).reshape({1, -1}),
                                   aspect_ratio_(features(aspect_ratio)).reshape({1, -1})},
                                  1);
  }
  const at::Tensor modulation = modulation_(at::silu(embedded)).view({1, 6, width_});
  return {modulation.expand({batch, 6, width_}), embedded.expand({batch, width_})};
}

int64_t PixArtCondition::bytes() const {
  return timestep_.bytes() + resolution_.bytes() + aspect_ratio_.bytes() + modulation_.bytes();
}

PixArtEmbedding::PixArtEmbedding(const spec::PixArtSpec& spec, const WeightLoader& weights)
    : spec_(spec) {
  const int64_t width = spec.inner_dim(), patch = spec.patch_size;
  const at::Tensor kernel =
      weights.whole("pos_embed.proj.weight", {width, spec.in_channels, patch, patch});
  patch_ =
      kernels::Linear(kernel.reshape({width, -1}), weights.copy("pos_embed.proj.bias", {width}));
  caption_first_ = weights.linear("caption_projection.linear_1", spec.caption_channels, width);
  caption_second_ = weights.linear("caption_projection.linear_2", width, width);
}

at::Tensor PixArtEmbedding::caption(const at::Tensor& states) const {
  return caption_second_(caption_first_.gelu(states));
}

at::Tensor PixArtEmbedding::tokens(const at::Tensor& latents, PictureSize size,
                                   TokenRows rows) const {
  const int64_t patch = spec_.patch_size, width = spec_.inner_dim(), half = width / 2;
  const int64_t batch = latents.size(0), count = rows.end - rows.begin;
  const int64_t columns = size.latent_width / patch;
  at::Tensor hidden =
      patch_(tokens_of_latents(latents, patch)).view({batch, count, columns, width});

  const int64_t base = spec_.sample_size / patch;
  const auto positions = [&](int64_t number) {
    return axis_positions(number, base, spec_.interpolation_scale, half).to(latents.device());
  };
  const at::Tensor across = positions(columns).view({1, 1, columns, half});
  const at::Tensor down = positions(size.latent_height / patch)
                              .slice(0, rows.begin, rows.end)
                              .view({1, count, 1, half});
  const at::Tensor wide = hidden.to(at::kFloat);
  wide.slice(3, 0, half).add_(across);
  wide.slice(3, half).add_(down);
  return wide.to(hidden.scalar_type()).view({batch, count * columns, width});
}

int64_t PixArtEmbedding::bytes() const {
  return patch_.bytes() + caption_first_.bytes() + caption_second_.bytes();
}

}  // namespace troupe::models
