#include "models/image/frames.h"

#include <zlib.h>

#include <cstdint>
#include <functional>
#include <stdexcept>

#include "base/endian.h"
#include "models/image/png_text.h"

namespace troupe::models {
namespace {

// Source: the PNG specification, third edition: acTL, fcTL and fdAT.
constexpr std::size_t kControl = 26;  // of fcTL
constexpr std::size_t kDelayAt = 20;  // in it: two numbers of two bytes
constexpr std::size_t kMostHeads = std::size_t{1} << 28;

[[noreturn]] void refuse_animation(const std::string& why) {
  throw std::runtime_error("[frames] " + why);
}

void append_chunk(std::string& out, std::string_view type, std::string_view data) {
  const std::size_t begin = out.size() + 4;
  out += big_endian(data.size(), 4);
  out.append(type).append(data);
  const auto* body = reinterpret_cast<const Bytef*>(out.data() + begin);
  out += big_endian(crc32(0, body, static_cast<uInt>(data.size() + 4)), 4);
}

/// The chunks in order, the end chunk not among them.
void each_chunk(std::string_view png, const std::function<void(const PngChunk&)>& visit) {
  if (!png.starts_with(kPngSignature)) refuse_animation("not a PNG file");
  if (!each_png_chunk(png, visit)) refuse_animation("a PNG file is cut off before its end chunk");
}

std::string control(std::uint32_t sequence, const PngSize& size, int frames_per_second) {
  std::string data =
      big_endian(sequence, 4) + big_endian(size.width, 4) + big_endian(size.height, 4);
  data += big_endian(0, 4) + big_endian(0, 4);  // where it stands
  data += big_endian(1, 2) + big_endian(static_cast<std::uint32_t>(frames_per_second), 2);
  return data + std::string(2, '\0');  // it stays, and covers what was there
}

}  // namespace

std::string join_frames(const std::vector<std::string>& pngs, const PngText& text,
                        int frames_per_second) {
  if (pngs.empty()) throw std::invalid_argument("[frames] there is no frame to join");
  if (pngs.size() == 1) return add_png_text(pngs.front(), text);
  std::string out(kPngSignature), header;
  std::uint32_t sequence = 0;
  for (std::size_t i = 0; i < pngs.size(); ++i) {
    bool begun = false;
    const PngSize size = read_png_size(pngs[i]);
    each_chunk(pngs[i], [&](const PngChunk& chunk) {
      if (chunk.type == "IHDR") {
        if (i > 0 && chunk.data != header)
          throw std::invalid_argument("[frames] frame " + std::to_string(i) +
                                      " has another size or form than the first");
        header = chunk.data;
      }
      if (chunk.type != "IDAT") {
        if (i == 0 && !begun) append_chunk(out, chunk.type, chunk.data);
        return;
      }
      if (!begun) {
        const auto count = static_cast<std::uint32_t>(pngs.size());
        if (i == 0) append_chunk(out, "acTL", big_endian(count, 4) + big_endian(0, 4));
        append_chunk(out, "fcTL", control(sequence++, size, frames_per_second));
        begun = true;
      }
      if (i == 0) return append_chunk(out, "IDAT", chunk.data);
      append_chunk(out, "fdAT", big_endian(sequence++, 4) + std::string(chunk.data));
    });
    if (!begun) throw std::invalid_argument("[frames] frame " + std::to_string(i) + " is empty");
  }
  append_chunk(out, "IEND", {});
  return add_png_text(out, text);
}

std::vector<std::string> split_frames(std::string_view png) {
  std::vector<std::string> frames;
  std::string head(kPngSignature);
  const PngSize size = read_png_size(png);
  bool animated = false;
  each_chunk(png, [&](const PngChunk& chunk) {
    if (chunk.type == "acTL") {
      animated = true;
    } else if (chunk.type == "fcTL") {
      if (chunk.data.size() != kControl || png_number(chunk.data, 4) != size.width ||
          png_number(chunk.data, 8) != size.height) {
        refuse_animation("frame " + std::to_string(frames.size()) + " is not a whole picture");
      }
      if ((frames.size() + 1) * head.size() > kMostHeads) refuse_animation("too many frames");
      frames.push_back(head);
    } else if (chunk.type == "fdAT") {
      if (frames.empty() || chunk.data.size() < 4)
        refuse_animation("a frame without its beginning");
      append_chunk(frames.back(), "IDAT", chunk.data.substr(4));
    } else if (chunk.type == "IDAT") {
      if (animated && !frames.empty()) append_chunk(frames.back(), "IDAT", chunk.data);
    } else if (frames.empty()) {
      append_chunk(head, chunk.type, chunk.data);
    }
  });
  if (frames.empty()) return {std::string(png)};
  for (std::string& frame : frames)
    append_chunk(frame, "IEND", {});
  return frames;
}

std::string at_speed(std::string_view png, int frames_per_second) {
  std::string out(kPngSignature);
  each_chunk(png, [&](const PngChunk& chunk) {
    if (chunk.type != "fcTL" || chunk.data.size() != kControl)
      return append_chunk(out, chunk.type, chunk.data);
    std::string data(chunk.data);
    data.replace(kDelayAt, 4,
                 big_endian(1, 2) + big_endian(static_cast<std::uint32_t>(frames_per_second), 2));
    append_chunk(out, chunk.type, data);
  });
  append_chunk(out, "IEND", {});
  return out;
}

}  // namespace troupe::models
