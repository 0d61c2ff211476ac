#include "models/spec/resolution_bins.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdlib>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/format.h"
#include "models/spec/model_spec.h"

namespace troupe::spec {
namespace {

/// A size in sixteenths of the native side, and the ratio of height to width that it is known by:
/// rounded to two places, and by that number nearness is judged.
struct Bin {
  double ratio;
  int height;
  int width;
};

// clang-format off
constexpr Bin kBins[] = {
  {0.25, 8, 32}, {0.28, 8, 29}, {0.32, 9, 28}, {0.33, 9, 27}, {0.35, 9, 26}, {0.4, 10, 25},
  {0.42, 10, 24}, {0.48, 11, 23}, {0.5, 11, 22}, {0.52, 11, 21}, {0.57, 12, 21}, {0.6, 12, 20},
  {0.68, 13, 19}, {0.72, 13, 18}, {0.78, 14, 18}, {0.82, 14, 17}, {0.88, 15, 17}, {0.94, 15, 16},
  {1.0, 16, 16}, {1.07, 16, 15}, {1.13, 17, 15}, {1.21, 17, 14}, {1.29, 18, 14}, {1.38, 18, 13},
  {1.46, 19, 13}, {1.67, 20, 12}, {1.75, 21, 12}, {2.0, 22, 11}, {2.09, 23, 11}, {2.4, 24, 10},
  {2.5, 25, 10}, {3.0, 27, 9}, {4.0, 32, 8},
};
// PixArt-Σ's largest model has more of the flat and the tall ones.
constexpr Bin kLargestBins[] = {
  {0.25, 8, 32}, {0.26, 8, 31}, {0.27, 8, 30}, {0.28, 8, 29}, {0.32, 9, 28}, {0.33, 9, 27},
  {0.35, 9, 26}, {0.4, 10, 25}, {0.42, 10, 24}, {0.48, 11, 23}, {0.5, 11, 22}, {0.52, 11, 21},
  {0.57, 12, 21}, {0.6, 12, 20}, {0.68, 13, 19}, {0.72, 13, 18}, {0.78, 14, 18}, {0.82, 14, 17},
  {0.88, 15, 17}, {0.94, 15, 16}, {1.0, 16, 16}, {1.07, 16, 15}, {1.13, 17, 15}, {1.21, 17, 14},
  {1.29, 18, 14}, {1.38, 18, 13}, {1.46, 19, 13}, {1.67, 20, 12}, {1.75, 21, 12}, {2.0, 22, 11},
  {2.09, 23, 11}, {2.4, 24, 10}, {2.5, 25, 10}, {2.89, 26, 9}, {3.0, 27, 9}, {3.11, 28, 9},
  {3.62, 29, 8}, {3.75, 30, 8}, {3.88, 31, 8}, {4.0, 32, 8},
};
// clang-format on

/// Shapes of one ratio of width to height.
struct Shapes {
  double ratio;
  std::vector<PixelSize> sizes;
};

const std::array<Shapes, 5>& shapes() {
  static const std::array<Shapes, 5> all = {{
      {1.0, {{1024, 1024}, {1280, 1280}}},
      {4.0 / 3.0, {{768, 1024}, {864, 1152}, {960, 1280}}},
      {3.0 / 4.0, {{1024, 768}, {1152, 864}, {1280, 960}}},
      {16.0 / 9.0, {{768, 1280}}},
      {9.0 / 16.0, {{1280, 768}}},
  }};
  return all;
}

void require_positive(const char* who, PixelSize size) {
  if (size.height > 0 && size.width > 0) return;
  throw std::invalid_argument(
      fmt::format("[{}] {} x {} is no size of a picture", who, size.height, size.width));
}

}  // namespace

std::optional<Binning> binning_of(const std::string& pipeline_class) {
  if (pipeline_class == "PixArtAlphaPipeline" || pipeline_class == "PixArtSigmaPipeline")
    return Binning::ratios;
  if (pipeline_class == "HunyuanDiTPipeline") return Binning::shapes;
  return std::nullopt;
}

PixelSize nearest_bin(std::int64_t sample_size, PixelSize wanted) {
  if (sample_size != 32 && sample_size != 64 && sample_size != 128 && sample_size != 256) {
    throw std::invalid_argument(fmt::format(
        "[nearest_bin] sample_size is {}: there are resolution bins for 32, 64, 128 and 256",
        sample_size));
  }
  require_positive("nearest_bin", wanted);
  const double ratio = static_cast<double>(wanted.height) / static_cast<double>(wanted.width);
  const std::span<const Bin> bins = sample_size == 256 ? std::span<const Bin>(kLargestBins) : kBins;
  const auto bin = std::ranges::min_element(
      bins, {}, [ratio](const Bin& candidate) { return std::abs(candidate.ratio - ratio); });
  const std::int64_t unit = sample_size / 2;  // eight pixels a latent pixel, sixteen units a side
  return {bin->height * unit, bin->width * unit};
}

PixelSize nearest_shape(PixelSize wanted) {
  require_positive("nearest_shape", wanted);
  for (const auto& [ratio, sizes] : shapes()) {
    if (std::ranges::find(sizes, wanted) != sizes.end()) return wanted;
  }
  const double ratio = static_cast<double>(wanted.width) / static_cast<double>(wanted.height);
  const auto of_ratio = std::ranges::min_element(
      shapes(), {}, [ratio](const Shapes& of) { return std::abs(of.ratio - ratio); });
  const std::int64_t area = wanted.height * wanted.width;
  return *std::ranges::min_element(of_ratio->sizes, {}, [area](const PixelSize& size) {
    return std::abs(size.height * size.width - area);
  });
}

namespace {

// clang-format off
/// Widths and heights that FLUX.1 Kontext was trained at.
constexpr PixelSize kKontextSizes[] = {
  {1568, 672}, {1504, 688}, {1456, 720}, {1392, 752}, {1328, 800}, {1248, 832}, {1184, 880},
  {1104, 944}, {1024, 1024}, {944, 1104}, {880, 1184}, {832, 1248}, {800, 1328}, {752, 1392},
  {720, 1456}, {688, 1504}, {672, 1568},
};
// clang-format on

/// Largest area that FLUX.2 encodes a picture in.
constexpr std::int64_t kMegapixel = 1024 * 1024;

/// Returns the size of the nearest ratio, of equally near ones the narrower.
PixelSize nearest_kontext(PixelSize picture) {
  const auto ratio = [](PixelSize of) {
    return static_cast<double>(of.width) / static_cast<double>(of.height);
  };
  const auto distance = [&](PixelSize of) { return std::abs(ratio(picture) - ratio(of)); };
  return std::ranges::min(kKontextSizes, {}, distance);
}

PixelSize within_megapixel(PixelSize picture) {
  if (picture.width * picture.height <= kMegapixel) return picture;
  const double scale = std::sqrt(static_cast<double>(kMegapixel) /
                                 static_cast<double>(picture.width * picture.height));
  const auto scaled = [scale](std::int64_t side) {
    return static_cast<std::int64_t>(static_cast<double>(side) * scale);
  };
  return {scaled(picture.height), scaled(picture.width)};
}

/// Returns the size of so many pixels, about, and the picture's ratio, in whole units of 32 pixels.
/// Source: calculate_dimensions of QwenImageEditPipeline.
PixelSize of_area(std::int64_t area, PixelSize picture) {
  constexpr double kUnit = 32;
  const double ratio = static_cast<double>(picture.width) / static_cast<double>(picture.height);
  const double width = std::sqrt(static_cast<double>(area) * ratio);
  // Halves go to the even number, as Python rounds.
  const auto rounded = [](double side) {
    return static_cast<std::int64_t>(std::nearbyint(side / kUnit) * kUnit);
  };
  return {rounded(width / ratio), rounded(width)};
}

}  // namespace

EditedSize edited_size(const ModelSpec& model, PixelSize picture) {
  if (picture.height < 1 || picture.width < 1) return {};
  const std::int64_t unit = model.pixel_multiple();
  const auto whole = [unit](PixelSize of) {
    return PixelSize{of.height / unit * unit, of.width / unit * unit};
  };
  if (model.inputs.edited == EditedFit::trained) {
    const PixelSize size = whole(nearest_kontext(picture));
    return {size, size, {}};
  }
  if (model.inputs.edited == EditedFit::of_megapixel) {
    const PixelSize size = of_area(kMegapixel, picture);
    const std::int64_t seen = model.inputs.seen_area;
    return {size, whole(size), seen > 0 ? of_area(seen, picture) : size};
  }
  const PixelSize resized = within_megapixel(picture);
  return {resized, whole(resized), {}};
}

PixelSize seen_size(const ClipPictureSpec& spec, PixelSize picture) {
  const std::int64_t edge = spec.shortest_edge;
  if (edge == 0) return {spec.height, spec.width};
  return picture.width > picture.height ? PixelSize{edge, edge * picture.width / picture.height}
                                        : PixelSize{edge * picture.height / picture.width, edge};
}

std::int64_t seen_tokens(const ModelSpec& model, PixelSize picture) {
  if (picture.height < 1 || picture.width < 1) return 0;
  std::int64_t tokens = 0;
  for (const auto& encoder : model.text_encoders) {
    const auto* vision = encoder.vision();
    if (!vision) continue;
    const PixelSize size = seen_size(*vision, edited_size(model, picture).seen);
    tokens += size.height / vision->token_side() * (size.width / vision->token_side());
  }
  return tokens;
}

}  // namespace troupe::spec
