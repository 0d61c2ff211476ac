#include "models/encoders/clip_vision_model.h"

#include <sstream>
#include <stdexcept>

#include "models/encoders/clip_layers.h"
#include "models/image/resize.h"
#include "models/spec/clip_spec.h"
#include "models/spec/resolution_bins.h"

namespace troupe::models {

ClipVisionModel::ClipVisionModel(const spec::ClipVisionSpec& spec, WeightStore weights,
                                 at::ScalarType dtype, at::Device device)
    : spec_(spec), dtype_(dtype), device_(device), weights_(std::move(weights), dtype, device) {
  spec::check_tensors(weights_.index(), expected_tensors(spec_), [this](std::string_view name) {
    return spec::is_ignorable_clip_vision_tensor(spec_, name);
  });
}

at::Tensor ClipVisionModel::encode(const at::Tensor& pixels,
                                   const std::function<void()>& tick) const {
  const std::int64_t side = spec_.image_size, patch = spec_.patch_size;
  if (pixels.dim() != 4 || pixels.sizes().slice(1) != at::IntArrayRef({3, side, side})) {
    std::ostringstream text;
    text << "[clip_vision_model] pixels " << pixels.sizes() << " are not [B, 3, " << side << ", "
         << side << "]";
    throw std::invalid_argument(text.str());
  }
  weights_.end_block();
  const ClipLayers layers(weights_, "vision_model.",
                          {.width = spec_.hidden_size,
                           .heads = spec_.num_attention_heads,
                           .eps = spec_.layer_norm_eps,
                           .quick_gelu = spec_.quick_gelu});
  const at::Tensor squares =
      at::conv2d(pixels.to(device_, dtype_), layers.weight("embeddings.patch_embedding.weight"), {},
                 at::IntArrayRef{patch, patch})
          .flatten(2)
          .transpose(1, 2);
  const at::Tensor whole =
      layers.weight("embeddings.class_embedding").view({1, 1, -1}).expand({pixels.size(0), -1, -1});
  at::Tensor states =
      at::cat({whole, squares}, 1) + layers.weight("embeddings.position_embedding.weight");
  states = layers.norm(states, "pre_layrnorm");
  weights_.end_block();
  for (std::int64_t block = 0; block + 1 < spec_.num_hidden_layers; ++block) {
    states = layers.block(states, spec::clip_layer_prefix(block));
    weights_.end_block();
    if (tick) tick();
  }
  return states;
}

at::Tensor clip_pixels(const at::Tensor& rgb, const spec::ClipPictureSpec& spec) {
  const auto [height, width] = spec::seen_size(spec, {rgb.size(0), rgb.size(1)});
  const at::Tensor cut = resize_bicubic(rgb, height, width)
                             .narrow(0, (height - spec.crop_height) / 2, spec.crop_height)
                             .narrow(1, (width - spec.crop_width) / 2, spec.crop_width);
  const auto by_color = [](const std::array<double, 3>& of) {
    return at::tensor(at::ArrayRef<double>(of.data(), of.size()), at::kFloat);
  };
  return ((cut.to(at::kFloat) / 255.0 - by_color(spec.mean)) / by_color(spec.deviation))
      .permute({2, 0, 1})
      .unsqueeze(0)
      .contiguous();
}

}  // namespace troupe::models
