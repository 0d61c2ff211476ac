#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace troupe::spec {

struct ClipPictureSpec;
struct ModelSpec;

/// Height and width of a picture in pixels.
struct PixelSize {
  std::int64_t height = 0;
  std::int64_t width = 0;

  bool operator==(const PixelSize&) const = default;
};

/// Way in which a pipeline changes a size to one that its model was trained at.
enum class Binning {
  ratios,  ///< The nearest aspect ratio is taken; the picture is brought back to the size asked
           ///< for.
  shapes,  ///< One of a few shapes is taken; the picture comes out in it.
};

/// Returns the way of a pipeline class of diffusers 0.42 (`use_resolution_binning`); nothing if the
/// class has no bins.
std::optional<Binning> binning_of(const std::string& pipeline_class);

/// The size, of those that PixArt was trained at, whose aspect ratio is nearest to the wanted one;
/// of two equally near the flatter. `sample_size` is the transformer's, in latent pixels, and picks
/// the table: 32, 64, 128 and 256 have bins of about 256, 512, 1024 and 2048 pixels a side. Throws
/// std::invalid_argument for another sample_size and for a size that is not positive.
/// Source: ASPECT_RATIO_*_BIN and classify_height_width_bin of diffusers 0.42.
PixelSize nearest_bin(std::int64_t sample_size, PixelSize wanted);

/// The shape, of those that HunyuanDiT was trained at: of the nearest ratio of width to height the
/// one of nearest area, of equally near ones the first; a size that is such a shape is kept. Throws
/// std::invalid_argument for a size that is not positive.
/// Source: map_to_standard_shapes and SUPPORTED_SHAPE of diffusers 0.42.
PixelSize nearest_shape(PixelSize wanted);

/// Sizes that a picture to edit has on its way to the VAE's encoder: it is resized, then cut in the
/// middle. `seen`: the size in which the pipeline shows it to a text encoder with a vision tower.
struct EditedSize {
  PixelSize resized, cut, seen;
};

/// Returns the sizes as the model's pipeline has them; a picture of no size has none. Source:
/// Flux2KleinPipeline, FluxKontextPipeline, QwenImageEditPipeline and QwenImageEditPlusPipeline of
/// diffusers 0.42.
EditedSize edited_size(const ModelSpec& model, PixelSize picture);

/// Returns the size that a picture is brought to before its middle is cut out for CLIP's tower.
PixelSize seen_size(const ClipPictureSpec& spec, PixelSize picture);

/// Returns the tokens that a picture to edit is in a text: 0 where no text encoder sees it.
std::int64_t seen_tokens(const ModelSpec& model, PixelSize picture);

}  // namespace troupe::spec
