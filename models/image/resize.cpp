#include "models/image/resize.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <sstream>
#include <stdexcept>
#include <vector>

namespace troupe::models {
namespace {

std::int64_t scaled(std::int64_t side, double ratio, std::int64_t wanted) {
  return std::max(static_cast<std::int64_t>(static_cast<double>(side) * ratio), wanted);
}

constexpr int kLobes = 3;
constexpr int kCubicLobes = 2;
constexpr int kBits = 32 - 8 - 2;  // of fixed point: a sum of products stays below 2^31
constexpr std::int64_t kChannels = 3;

double sinc(double x) {
  if (x == 0) return 1;
  x *= std::numbers::pi;
  return std::sin(x) / x;
}

double lanczos(double x) {
  return x >= -kLobes && x < kLobes ? sinc(x) * sinc(x / kLobes) : 0;
}

double cubic(double x) {
  constexpr double kSlope = -0.5;
  x = std::abs(x);
  if (x < 1) return ((kSlope + 2.0) * x - (kSlope + 3.0)) * x * x + 1;
  return x < kCubicLobes ? (((x - 5) * x + 8) * x - 4) * kSlope : 0;
}

/// Filter of Pillow: its value at a distance in pixels, and how far it reaches.
struct Filter {
  double (*at)(double distance);
  int lobes = 0;
};

/// Pixels that one pixel is made of, from `begin` on.
struct Taps {
  std::int64_t begin = 0;
  std::vector<std::int32_t> weights;
};

std::vector<Taps> taps_of(const Filter& filter, std::int64_t from, std::int64_t to) {
  const double scale = static_cast<double>(from) / static_cast<double>(to);
  const double stretch = std::max(scale, 1.0);
  const double support = filter.lobes * stretch;
  std::vector<Taps> all;
  for (std::int64_t i = 0; i < to; ++i) {
    const double center = (static_cast<double>(i) + 0.5) * scale;
    const auto begin = std::max<std::int64_t>(0, static_cast<std::int64_t>(center - support + 0.5));
    const auto end = std::min(from, static_cast<std::int64_t>(center + support + 0.5));
    std::vector<double> weights;
    double sum = 0;
    for (std::int64_t k = begin; k < end; ++k) {
      weights.push_back(filter.at((static_cast<double>(k) - center + 0.5) * (1.0 / stretch)));
      sum += weights.back();
    }
    Taps taps{begin, {}};
    for (double weight : weights) {
      if (sum != 0) weight /= sum;
      const double fixed = weight * (1 << kBits);
      taps.weights.push_back(static_cast<std::int32_t>(fixed < 0 ? fixed - 0.5 : fixed + 0.5));
    }
    all.push_back(std::move(taps));
  }
  return all;
}

std::uint8_t rounded(std::int64_t sum) {
  return static_cast<std::uint8_t>(std::clamp<std::int64_t>(sum >> kBits, 0, 255));
}

/// Rows are axis 0, columns axis 1.
at::Tensor resize_axis(const at::Tensor& rgb, const Filter& filter, int axis, std::int64_t to) {
  const std::int64_t from = rgb.size(axis);
  if (from == to) return rgb;
  auto sizes = rgb.sizes().vec();
  sizes[axis] = to;
  const at::Tensor out = at::empty(sizes, rgb.options());
  const std::int64_t lines = axis == 0 ? 1 : rgb.size(0);
  const std::int64_t inner = axis == 0 ? rgb.size(1) * kChannels : kChannels;
  const auto taps = taps_of(filter, from, to);
  const auto* source = rgb.const_data_ptr<std::uint8_t>();
  auto* target = out.mutable_data_ptr<std::uint8_t>();
  for (std::int64_t line = 0; line < lines; ++line) {
    for (std::int64_t i = 0; i < to; ++i) {
      const auto& [begin, weights] = taps[i];
      for (std::int64_t k = 0; k < inner; ++k) {
        std::int64_t sum = std::int64_t{1} << (kBits - 1);
        for (std::size_t tap = 0; tap < weights.size(); ++tap) {
          const auto at = (line * from + begin + static_cast<std::int64_t>(tap)) * inner + k;
          sum += std::int64_t{source[at]} * weights[tap];
        }
        target[(line * to + i) * inner + k] = rounded(sum);
      }
    }
  }
  return out;
}

at::Tensor resize(const at::Tensor& rgb, const Filter& filter, std::int64_t height,
                  std::int64_t width) {
  if (rgb.dim() != 3 || rgb.size(2) != kChannels || rgb.scalar_type() != at::kByte ||
      rgb.numel() == 0 || height < 1 || width < 1) {
    throw std::invalid_argument("[resize] uint8 [H, W, 3] is needed");
  }
  // A picture that loses much more height than width loses its height first, as in Pillow 13.
  const std::int64_t lower = rgb.size(0) - height, narrower = rgb.size(1) - width;
  const int first = lower > 0 && lower > 2 * narrower ? 0 : 1;
  const std::int64_t sides[] = {height, width};
  return resize_axis(resize_axis(rgb.contiguous(), filter, first, sides[first]), filter, 1 - first,
                     sides[1 - first]);
}

}  // namespace

at::Tensor resize_and_crop(const at::Tensor& pictures, std::int64_t height, std::int64_t width) {
  if (pictures.dim() != 4 || !pictures.is_floating_point() || height <= 0 || width <= 0) {
    std::ostringstream text;
    text << "[resize_and_crop] " << pictures.scalar_type() << " " << pictures.sizes() << " to "
         << height << " x " << width << ": a floating [B, C, H, W] and a positive size are needed";
    throw std::invalid_argument(text.str());
  }
  const std::int64_t old_height = pictures.size(2);
  const std::int64_t old_width = pictures.size(3);
  if (old_height == height && old_width == width) return pictures;
  const double ratio = std::max(static_cast<double>(height) / static_cast<double>(old_height),
                                static_cast<double>(width) / static_cast<double>(old_width));
  const std::int64_t new_height = scaled(old_height, ratio, height);
  const std::int64_t new_width = scaled(old_width, ratio, width);
  const at::Tensor resized =
      at::upsample_bilinear2d(pictures, {new_height, new_width}, /*align_corners=*/false);
  return resized.narrow(2, (new_height - height) / 2, height)
      .narrow(3, (new_width - width) / 2, width);
}

at::Tensor resize_lanczos(const at::Tensor& rgb, std::int64_t height, std::int64_t width) {
  return resize(rgb, {lanczos, kLobes}, height, width);
}

at::Tensor resize_bicubic(const at::Tensor& rgb, std::int64_t height, std::int64_t width) {
  return resize(rgb, {cubic, kCubicLobes}, height, width);
}

at::Tensor to_unit_range(const at::Tensor& rgb) {
  return (rgb.to(at::kFloat) / 255.0).permute({2, 0, 1}).unsqueeze(0).contiguous();
}

at::Tensor to_model_range(const at::Tensor& rgb) {
  return 2.0 * to_unit_range(rgb) - 1.0;
}

at::Tensor painted_pixels(const at::Tensor& rgb) {
  if (rgb.dim() != 3 || rgb.size(2) != 3 || rgb.scalar_type() != at::kByte)
    throw std::invalid_argument("[painted_pixels] uint8 [H, W, 3] is needed");
  const auto pixels = rgb.to(at::kInt).unbind(2);
  // ITU-R 601, in fixed point of 16 bits.
  const auto gray =
      (pixels[0] * 19595 + pixels[1] * 38470 + pixels[2] * 7471 + 0x8000).bitwise_right_shift(16);
  return gray.ge(128).to(at::kFloat).unsqueeze(0).unsqueeze(0);
}

at::Tensor latent_mask(const at::Tensor& rgb, std::int64_t latent_height,
                       std::int64_t latent_width) {
  if (rgb.dim() != 3 || latent_height < 1 || latent_width < 1 || rgb.size(0) % latent_height != 0 ||
      rgb.size(1) % latent_width != 0) {
    throw std::invalid_argument(
        "[latent_mask] uint8 [H, W, 3] is needed, multiples of the latents' sides");
  }
  return painted_pixels(rgb.slice(0, 0, at::nullopt, rgb.size(0) / latent_height)
                            .slice(1, 0, at::nullopt, rgb.size(1) / latent_width));
}

}  // namespace troupe::models
