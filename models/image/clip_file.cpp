#include "models/image/clip_file.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <stdexcept>

#include "models/image/clip_writer.h"
#include "models/image/frames.h"
#include "models/image/limits.h"
#include "models/image/png_text.h"

namespace troupe::models {

Clip clip_of(std::string_view png) {
  constexpr std::size_t kDelayAt = 20;  // in fcTL: two numbers of two bytes
  Clip clip;
  if (!begins_as_png(png)) return clip;
  each_png_chunk(png, [&](const PngChunk& chunk) {
    if (chunk.type == "acTL" && chunk.data.size() >= 8)
      clip.frames = std::max(1, static_cast<int>(png_number(chunk.data, 0)));
    if (chunk.type != "fcTL" || chunk.data.size() < kDelayAt + 4) return;
    const auto delay = png_number(chunk.data, kDelayAt);
    const double speed = static_cast<double>(delay & 0xffff) / std::max(1u, delay >> 16);
    clip.frames_per_second = std::clamp(static_cast<int>(speed + 0.5), 1, 1000);
  });
  return clip;
}

std::string clip_file(std::string_view png, ClipFormat format, int quality, std::stop_token stop) {
  if (format == ClipFormat::apng) return std::string(png);
  const auto size = png_size(png);
  if (size.width == 0 || size.height == 0) throw std::runtime_error("it is no PNG file");
  if (std::uint64_t{size.width} * size.height > kMaxPicturePixels)
    throw std::runtime_error("a frame has too many pixels");
  const ClipShape shape{static_cast<int>(size.width), static_cast<int>(size.height),
                        clip_of(png).frames_per_second, std::clamp(quality, 1, 100),
                        read_png_text(png)};
  const auto frames = split_frames(png);
  const auto writer = format == ClipFormat::webm ? webm_writer(shape) : mp4_writer(shape);
  ClipFrame frame(shape.width, shape.height);
  for (const std::string& each : frames) {
    if (stop.stop_requested()) throw std::runtime_error("the encoding was stopped");
    frame.read(each);
    writer->write(frame);
  }
  return writer->end();
}

}  // namespace troupe::models
