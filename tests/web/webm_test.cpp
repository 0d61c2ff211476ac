#include "web/webm.h"

#include <png.h>
#include <vpx/vp8dx.h>
#include <vpx/vpx_decoder.h>

#include <cmath>
#include <memory>
#include <vector>

#include "models/image/frames.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::web;

namespace {

constexpr int kWidth = 65, kHeight = 47, kFrames = 40;

/// A red disc that goes to the right before a green slope.
std::vector<unsigned char> clip_pixels(int frame) {
  std::vector<unsigned char> rgb;
  for (int y = 0; y < kHeight; ++y) {
    for (int x = 0; x < kWidth; ++x) {
      const bool disc = std::hypot(x - 12 - frame, y - 20) < 10;
      for (const int value : {disc ? 230 : 20, disc ? 30 : 3 * y, disc ? 20 : 2 * x})
        rgb.push_back(static_cast<unsigned char>(value));
    }
  }
  return rgb;
}

std::string clip_frame(int frame) {
  png_image image{};
  image.version = PNG_IMAGE_VERSION;
  image.width = kWidth;
  image.height = kHeight;
  image.format = PNG_FORMAT_RGB;
  std::string png(PNG_IMAGE_PNG_SIZE_MAX(image), '\0');
  png_alloc_size_t size = png.size();
  REQUIRE(png_image_write_to_memory(&image, png.data(), &size, 0, clip_pixels(frame).data(), 0,
                                    nullptr));
  png.resize(size);
  return png;
}

struct Block {
  int milliseconds = 0;
  bool key = false;
  std::string_view coded;
};

/// The simple blocks of a file. Source: RFC 8794, RFC 9559.
class WebmReader {
 public:
  explicit WebmReader(std::string_view file) { walk(file); }
  std::vector<Block> blocks;
  std::string kind;

 private:
  static std::uint64_t number(std::string_view& bytes, bool with_mark) {
    const auto first = static_cast<unsigned char>(bytes.at(0));
    int length = 1;
    while (length < 8 && !(first >> (8 - length) & 1))
      ++length;
    std::uint64_t value = with_mark ? first : first & ((1u << (8 - length)) - 1);
    for (int i = 1; i < length; ++i)
      value = value << 8 | static_cast<unsigned char>(bytes.at(static_cast<std::size_t>(i)));
    bytes.remove_prefix(static_cast<std::size_t>(length));
    return value;
  }
  static int unsigned_of(std::string_view bytes) {
    int value = 0;
    for (const char byte : bytes)
      value = value << 8 | static_cast<unsigned char>(byte);
    return value;
  }
  void walk(std::string_view bytes) {
    while (!bytes.empty()) {
      const auto id = number(bytes, true);
      const auto size = number(bytes, false);
      REQUIRE(size <= bytes.size());
      const auto data = bytes.substr(0, size);
      bytes.remove_prefix(size);
      if (id == 0x1A45DFA3 || id == 0x18538067 || id == 0x1F43B675) walk(data);
      if (id == 0x4282) kind = data;
      if (id == 0xE7) cluster_ = unsigned_of(data);
      if (id == 0xA3)
        blocks.push_back(
            {cluster_ + unsigned_of(data.substr(1, 2)), (data[3] & 0x80) != 0, data.substr(4)});
    }
  }
  int cluster_ = 0;
};

/// Mean absolute error of the decoded green, which luma follows, against what was drawn.
double luma_error(const vpx_image_t& image, int frame) {
  const auto rgb = clip_pixels(frame);
  double sum = 0;
  for (int y = 0; y < kHeight; ++y) {
    for (int x = 0; x < kWidth; ++x) {
      const unsigned char* p = &rgb[static_cast<std::size_t>(y * kWidth + x) * 3];
      const double luma = 16 + (0.2126 * p[0] + 0.7152 * p[1] + 0.0722 * p[2]) * 219 / 255;
      sum += std::abs(luma - image.planes[0][y * image.stride[0] + x]);
    }
  }
  return sum / (kWidth * kHeight);
}

}  // namespace

TEST_CASE("a clip becomes a WebM file whose frames are those of the clip, in time") {
  std::vector<std::string> pngs;
  for (int frame = 0; frame < kFrames; ++frame)
    pngs.push_back(clip_frame(frame));
  const std::string clip = models::join_frames(pngs, {}, 8);
  CHECK(clip_of(clip).frames == kFrames);
  CHECK(clip_of(clip).frames_per_second == 8);
  CHECK(clip_of(pngs[0]).frames == 1);
  const std::string file = webm_file(clip, 90);
  const WebmReader read(file);
  CHECK(read.kind == "webm");
  REQUIRE(read.blocks.size() == kFrames);
  CHECK(read.blocks[0].key);
  vpx_codec_ctx_t decoder{};
  REQUIRE(vpx_codec_dec_init(&decoder, vpx_codec_vp9_dx(), nullptr, 0) == VPX_CODEC_OK);
  for (int frame = 0; frame < kFrames; ++frame) {
    const Block& block = read.blocks[static_cast<std::size_t>(frame)];
    CHECK(block.milliseconds == frame * 125);
    REQUIRE(vpx_codec_decode(&decoder, reinterpret_cast<const unsigned char*>(block.coded.data()),
                             static_cast<unsigned>(block.coded.size()), nullptr,
                             0) == VPX_CODEC_OK);
    vpx_codec_iter_t at = nullptr;
    const vpx_image_t* image = vpx_codec_get_frame(&decoder, &at);
    REQUIRE(image != nullptr);
    CHECK(image->d_w == kWidth);
    CHECK(image->d_h == kHeight);
    CHECK(luma_error(*image, frame) < 3);
  }
  vpx_codec_destroy(&decoder);
  CHECK(webm_file(clip, 10).size() < file.size());
  CHECK(WebmReader(webm_file(pngs[0], 90)).blocks.size() == 1);
  CHECK_THROWS_AS(webm_file("GIF89a", 90), std::runtime_error);
  CHECK_THROWS_AS(webm_file(clip.substr(0, clip.size() / 2), 90), std::runtime_error);
}

TEST_CASE("an animation whose frames would take far more memory than its file is refused") {
  std::string text;  // that every frame repeats
  for (std::uint32_t state = 1; text.size() < (8u << 20);)
    text += static_cast<char>('!' + ((state = state * 1103515245 + 12345) >> 16) % 90);
  const auto clip_of_frames = [&](int frames) {
    return models::join_frames(std::vector<std::string>(frames, clip_frame(0)),
                               {{"parameters", text}}, 16);
  };
  CHECK(models::split_frames(clip_of_frames(3)).size() == 3);
  CHECK_THROWS_WITH(models::split_frames(clip_of_frames(60)), doctest::Contains("too many frames"));
}
