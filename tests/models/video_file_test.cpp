#include "models/image/clip_file.h"

#include <png.h>
#include <vpx/vp8dx.h>
#include <vpx/vpx_decoder.h>
#include <wels/codec_api.h>

#include <cmath>
#include <map>
#include <memory>
#include <vector>

#include "base/endian.h"
#include "models/image/clip_text.h"
#include "models/image/frames.h"
#include "models/image/png_text.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::models;

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

struct Planes {
  const unsigned char* data[3];
  int stride[3];
};

/// Returns the likeness of luma to what was drawn, in dB; checks that in the middle of the disc
/// colour is that of the disc.
double likeness(const Planes& planes, int frame) {
  const auto rgb = clip_pixels(frame);
  double sum = 0;
  for (int y = 0; y < kHeight; ++y) {
    for (int x = 0; x < kWidth; ++x) {
      const unsigned char* p = &rgb[static_cast<std::size_t>(y * kWidth + x) * 3];
      const double luma = 16 + (0.2126 * p[0] + 0.7152 * p[1] + 0.0722 * p[2]) * 219 / 255;
      const double off = luma - planes.data[0][y * planes.stride[0] + x];
      sum += off * off;
    }
  }
  const auto value = [&](int plane, int x, int y) {
    return planes.data[plane][y * planes.stride[plane] + x] - (plane == 0 ? 16. : 128.);
  };
  const int x = 12 + frame, y = 20;
  const double luma = value(0, x, y) / 219, blue = value(1, x / 2, y / 2) / 224,
               red = value(2, x / 2, y / 2) / 224;
  CHECK(std::abs(255 * (luma + 1.5748 * red) - 230) < 12);
  CHECK(std::abs(255 * (luma - 0.1873 * blue - 0.4681 * red) - 30) < 12);
  CHECK(std::abs(255 * (luma + 1.8556 * blue) - 20) < 12);
  return 10 * std::log10(255 * 255 * kWidth * kHeight / sum);
}

std::string drawn_clip(int frames_per_second) {
  std::vector<std::string> pngs;
  for (int frame = 0; frame < kFrames; ++frame)
    pngs.push_back(clip_frame(frame));
  return join_frames(pngs, {}, frames_per_second);
}

/// The boxes of a file and its frames. Source: ISO/IEC 14496-12.
class Mp4Reader {
 public:
  explicit Mp4Reader(std::string_view file) : file_(file) {
    walk(file, "");
    const auto sizes = at("stsz");
    REQUIRE(png_number(sizes, 4) == 0);
    std::size_t begin = png_number(at("stco"), 8);
    frames_at = begin;
    for (std::size_t i = 0; i < png_number(sizes, 8); ++i) {
      const std::size_t size = png_number(sizes, 12 + 4 * i);
      REQUIRE(begin + size <= file.size());
      samples.push_back(file.substr(begin, size));
      begin += size;
    }
    frames_end = begin;
  }

  /// Returns what a box has after its head; there is one of that type.
  std::string_view at(const std::string& type) const {
    REQUIRE(boxes_.contains(type));
    return boxes_.at(type);
  }
  std::vector<std::string> order;  // of the outermost boxes
  std::vector<std::string_view> samples;
  std::size_t frames_at = 0, frames_end = 0;

 private:
  void walk(std::string_view bytes, const std::string& parent) {
    while (!bytes.empty()) {
      REQUIRE(bytes.size() >= 8);
      const std::string type(bytes.substr(4, 4));
      std::size_t size = png_number(bytes, 0), head = 8;
      if (size == 1) {
        REQUIRE(png_number(bytes, 8) == 0);
        size = png_number(bytes, 12);
        head = 16;
      }
      REQUIRE(size >= head);
      REQUIRE(size <= bytes.size());
      const auto data = bytes.substr(head, size - head);
      CHECK(boxes_.emplace(type, data).second);
      if (parent.empty()) order.push_back(type);
      if (type == "moov" || type == "trak" || type == "mdia" || type == "minf" || type == "stbl" ||
          type == "dinf")
        walk(data, type);
      if (type == "stsd") walk(data.substr(8), type);
      if (type == "avc1") walk(data.substr(78), type);
      bytes.remove_prefix(size);
    }
  }
  std::string_view file_;
  std::map<std::string, std::string_view> boxes_;
};

struct EndOfDecoder {
  void operator()(ISVCDecoder* decoder) const {
    decoder->Uninitialize();
    WelsDestroyDecoder(decoder);
  }
};

/// The NAL units of a sample, each after a start code instead of its length.
std::string with_start_codes(std::string_view sample) {
  std::string stream;
  while (!sample.empty()) {
    const std::size_t size = png_number(sample, 0);
    REQUIRE(size >= 1);
    REQUIRE(size <= sample.size() - 4);
    const int type = sample[4] & 31;
    CHECK((type == 1 || type == 5));  // a slice; parameter sets stand in avcC
    stream += big_endian(1, 4) + std::string(sample.substr(4, size));
    sample.remove_prefix(4 + size);
  }
  return stream;
}

/// The parameter sets of avcC, one of each kind, after start codes.
std::string parameter_sets(std::string_view settings) {
  REQUIRE(settings.substr(0, 1) == "\1");
  REQUIRE(settings.substr(4, 2) == "\xff\xe1");
  const std::size_t sps = png_number(settings, 4) & 0xffff;
  CHECK(settings.substr(1, 3) == settings.substr(9, 3));  // profile and level
  REQUIRE(settings[8 + sps] == 1);
  const std::size_t pps = png_number(settings, 7 + sps) & 0xffff;
  REQUIRE(settings.size() == 11 + sps + pps);
  return big_endian(1, 4) + std::string(settings.substr(8, sps)) + big_endian(1, 4) +
         std::string(settings.substr(11 + sps));
}

std::string message_of(const std::string& png, std::stop_token stop = {}) {
  try {
    clip_file(png, ClipFormat::mp4, 90, stop);
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a clip becomes a WebM file whose frames are those of the clip, in time") {
  const std::string clip = drawn_clip(8), still = clip_frame(0);
  CHECK(clip_of(clip).frames == kFrames);
  CHECK(clip_of(clip).frames_per_second == 8);
  CHECK(clip_of(still).frames == 1);
  CHECK(clip_file(clip, ClipFormat::apng) == clip);
  const std::string file = clip_file(clip, ClipFormat::webm);
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
    CHECK(likeness({{image->planes[0], image->planes[1], image->planes[2]},
                    {image->stride[0], image->stride[1], image->stride[2]}},
                   frame) > 35);
  }
  vpx_codec_destroy(&decoder);
  CHECK(clip_file(clip, ClipFormat::webm, 10).size() < file.size());
  CHECK(WebmReader(clip_file(still, ClipFormat::webm)).blocks.size() == 1);
  CHECK_THROWS_AS(clip_file("GIF89a", ClipFormat::webm), std::runtime_error);
  CHECK_THROWS_AS(clip_file(clip.substr(0, clip.size() / 2), ClipFormat::webm), std::runtime_error);
}

TEST_CASE("an MP4 file's boxes say where its frames are, and how long each is shown") {
  constexpr std::uint32_t kSpeed = 2;
  const std::string file = clip_file(drawn_clip(kSpeed), ClipFormat::mp4);
  const Mp4Reader read(file);
  CHECK(read.order == std::vector<std::string>{"ftyp", "moov", "mdat"});
  REQUIRE(read.samples.size() == kFrames);
  CHECK(file.substr(read.frames_at - 12, 4) == "mdat");
  CHECK(read.frames_at == file.size() - read.at("mdat").size());
  CHECK(read.frames_end == file.size());
  CHECK(read.at("stsc").substr(4) ==
        big_endian(1, 4) + big_endian(1, 4) + big_endian(kFrames, 4) + big_endian(1, 4));
  CHECK(read.at("stts").substr(4) == big_endian(1, 4) + big_endian(kFrames, 4) + big_endian(1, 4));
  for (const char* head : {"mvhd", "mdhd"}) {
    CHECK(png_number(read.at(head), 12) == kSpeed);
    CHECK(png_number(read.at(head), 16) == kFrames);
  }
  CHECK(png_number(read.at("tkhd"), 20) == kFrames);
  // Whole pairs of rows and columns.
  CHECK(png_number(read.at("tkhd"), 76) == 66 << 16);
  CHECK(png_number(read.at("tkhd"), 80) == 48 << 16);
  CHECK(png_number(read.at("avc1"), 24) == (66 << 16 | 48));
  CHECK(read.at("hdlr").substr(8, 4) == "vide");
  // A key frame each 16 seconds.
  CHECK(read.at("stss").substr(4) == big_endian(2, 4) + big_endian(1, 4) + big_endian(33, 4));
  for (std::size_t i = 0; i < read.samples.size(); ++i)
    CHECK((read.samples[i][4] & 31) == (i == 0 || i == 32 ? 5 : 1));
}

TEST_CASE("the frames of an MP4 file are those of the clip") {
  const std::string clip = drawn_clip(2), file = clip_file(clip, ClipFormat::mp4);
  const Mp4Reader read(file);
  ISVCDecoder* made = nullptr;
  REQUIRE(WelsCreateDecoder(&made) == 0);
  const std::unique_ptr<ISVCDecoder, EndOfDecoder> decoder(made);
  SDecodingParam settings{};
  settings.sVideoProperty.eVideoBsType = VIDEO_BITSTREAM_AVC;
  REQUIRE(decoder->Initialize(&settings) == 0);
  int frames = 0;
  unsigned char* planes[3] = {};
  SBufferInfo info{};
  const auto look = [&] {
    if (info.iBufferStatus != 1) return;  // it holds frames back that others could come before
    const auto& buffer = info.UsrData.sSystemBuffer;
    CHECK(buffer.iWidth == 66);
    CHECK(buffer.iHeight == 48);
    CHECK(likeness({{planes[0], planes[1], planes[2]},
                    {buffer.iStride[0], buffer.iStride[1], buffer.iStride[1]}},
                   frames++) > 35);
  };
  for (std::size_t i = 0; i < read.samples.size(); ++i) {
    const std::string stream =
        (i == 0 ? parameter_sets(read.at("avcC")) : "") + with_start_codes(read.samples[i]);
    REQUIRE(decoder->DecodeFrameNoDelay(reinterpret_cast<const unsigned char*>(stream.data()),
                                        static_cast<int>(stream.size()), planes,
                                        &info) == dsErrorFree);
    look();
  }
  int held = 0;
  decoder->GetOption(DECODER_OPTION_NUM_OF_FRAMES_REMAINING_IN_BUFFER, &held);
  for (; held > 0; --held) {
    REQUIRE(decoder->FlushFrame(planes, &info) == dsErrorFree);
    look();
  }
  CHECK(frames == kFrames);
  CHECK(clip_file(clip, ClipFormat::mp4, 10).size() < file.size());
  // What does not move is no reason to leave a frame out.
  const std::string still = clip_frame(0);
  CHECK(Mp4Reader(clip_file(join_frames({still, still, still}, {}, 16), ClipFormat::mp4))
            .samples.size() == 3);
  const std::string single = clip_file(still, ClipFormat::mp4);
  const Mp4Reader one(single);
  CHECK(one.samples.size() == 1);
  CHECK(png_number(one.at("mdhd"), 12) == 1);
}

TEST_CASE("what no MP4 file can be made of is refused with the reason") {
  const std::string clip = drawn_clip(16), still = clip_frame(0);
  CHECK(message_of("GIF89a") == "it is no PNG file");
  CHECK_FALSE(message_of(clip.substr(0, clip.size() / 2)).empty());
  std::stop_source ended;
  ended.request_stop();
  CHECK(message_of(clip, ended.get_token()) == "the encoding was stopped");
  const auto of_size = [&](std::uint32_t width, std::uint32_t height) {
    return still.substr(0, 16) + big_endian(width, 4) + big_endian(height, 4) + still.substr(24);
  };
  CHECK(message_of(of_size(4096, 2320)).starts_with("4096 x 2320 pixels: H.264"));
  CHECK(message_of(of_size(8704, 64)).starts_with("8704 x 64 pixels: H.264"));
  CHECK(message_of(of_size(64, 14)).starts_with("64 x 14 pixels: H.264"));
  CHECK(message_of(of_size(1 << 31, 1 << 31)) == "a frame has too many pixels");
}

TEST_CASE("a video file has the texts of its clip, and the frames that it would have without") {
  const std::string clip = drawn_clip(8);
  const PngText texts{{"parameters", "a c\xc3\xa4t \xf0\x9f\x90\x88\nSteps: 20"},
                      {"troupe", "{\"prompt\": \"" + std::string(100'000, 'a') + "\"}"}};
  const std::string told = add_png_text(clip, texts);
  CHECK(read_file_text(told) == texts);
  const std::string mp4 = clip_file(told, ClipFormat::mp4),
                    webm = clip_file(told, ClipFormat::webm);
  CHECK(read_file_text(mp4) == texts);
  CHECK(read_file_text(webm) == texts);
  CHECK(Mp4Reader(mp4).samples == Mp4Reader(clip_file(clip, ClipFormat::mp4)).samples);
  const std::string without = clip_file(clip, ClipFormat::webm);
  const auto blocks = WebmReader(webm).blocks, others = WebmReader(without).blocks;
  REQUIRE(blocks.size() == others.size());
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    CHECK(blocks[i].coded == others[i].coded);
    CHECK(blocks[i].milliseconds == others[i].milliseconds);
  }
  CHECK(read_file_text(without).empty());
  // What has no place in a video file is left out.
  const std::string more = clip_file(add_png_text(clip, {{"other", "x"}}), ClipFormat::mp4);
  CHECK(read_file_text(more).empty());
  CHECK(more == clip_file(clip, ClipFormat::mp4));
}

TEST_CASE("texts of video files that others wrote, or that are damaged") {
  using namespace std::string_literals;
  const auto box = [](const std::string& type, const std::string& data) {
    return big_endian(data.size() + 8, 4) + type + data;
  };
  const auto mp4 = [&](const std::string& list, const std::string& meta_begin = big_endian(0, 4)) {
    return box("ftyp", "isom") +
           box("moov", box("udta", box("meta", meta_begin + box("hdlr", "") + box("ilst", list)) +
                                       big_endian(0, 4)));
  };
  const auto comment = [&](const std::string& text, int type = 1) {
    return box(
        "\xa9"
        "cmt",
        box("data", big_endian(type, 4) + big_endian(0, 4) + text));
  };
  CHECK(read_file_text(mp4(comment("on holiday"))) == PngText{{"comment", "on holiday"}});
  CHECK(read_file_text(mp4(comment("{}"), "")) == PngText{{"troupe", "{}"}});
  CHECK(read_file_text(mp4(comment("{}", 13))).empty());  // a picture
  CHECK(read_file_text(mp4("")).empty());
  // Of eight bytes, and to the end of the file.
  CHECK(read_file_text(big_endian(1, 4) + "ftyp" + big_endian(20, 8) + "isom" + big_endian(0, 4) +
                       "mdat")
            .empty());
  const auto element = [](const std::string& id, const std::string& data) {
    return id + "\x10"s + big_endian(data.size(), 3) + data;
  };
  const auto tags = [&](const std::string& name, const std::string& text) {
    return element("\x12\x54\xc3\x67",
                   element("\x73\x73", element("\x67\xc8", element("\x45\xa3", name) +
                                                               element("\x44\x87", text))));
  };
  const std::string head = "\x1a\x45\xdf\xa3\x80"s, segment = "\x18\x53\x80\x67"s;
  const std::string told = tags("COMMENT\0\0"s, "{}\0"s);
  CHECK(read_file_text(head + element(segment, told)) == PngText{{"troupe", "{}"}});
  CHECK(read_file_text(head + element(segment, tags("TITLE", "{}"))).empty());
  // As it is sent while it is made: no lengths; behind the first frames nothing is found.
  const std::string open = head + segment + "\x01\xff\xff\xff\xff\xff\xff\xff",
                    cluster = "\x1f\x43\xb6\x75\xff";
  CHECK(read_file_text(open + told + cluster + "\xe7\x81\1") == PngText{{"troupe", "{}"}});
  CHECK(read_file_text(open + cluster + told).empty());

  const auto refused = [](const std::string& file, const std::string& why) {
    CHECK_THROWS_WITH_AS(read_file_text(file), doctest::Contains(why.c_str()), std::runtime_error);
  };
  refused("GIF89a", "neither a PNG nor an MP4 or WebM file");
  refused("", "neither a PNG nor an MP4 or WebM file");
  refused(mp4(comment("{\xff}")), "the text \"troupe\" is not UTF-8");
  refused(mp4(box("desc", box("data", "\0\0\0\1"s))), "a text of an MP4 file is cut off");
  refused(mp4("\0\0\0\7desc"s), "ends outside of what it is in");
  refused(mp4("\0\0\0\x20"
              "desc"s),
          "ends outside of what it is in");
  refused(mp4("\0\0"s), "cut off within a box");
  refused(box("ftyp", "") + "\0\0\0\1moov\0\0"s, "cut off within a box");
  refused(box("ftyp", "") + "\0\0\0\1moov\xff\xff\xff\xff\xff\xff\xff\xff"s, "ends outside");
  refused(head + element(segment, told).substr(0, 40), "ends outside of what it is in");
  refused(head + "\x18\x53", "a WebM file is cut off");
  refused(head + "\x08\x80", "an element without a length");
  refused(head + element(segment, tags("COMMENT", "{\xff}")), "is not UTF-8");
  std::string many;
  for (int i = 0; i < 3; ++i)
    many += comment(std::string(6 << 20, 'a'));
  refused(mp4(many), "texts of more than 16 MiB");
  many.clear();
  for (int i = 0; i < 140'000; ++i)
    many += comment("");
  refused(mp4(many), "texts of more than 16 MiB");
}

TEST_CASE("an animation whose frames would take far more memory than its file is refused") {
  std::string text;  // that every frame repeats
  for (std::uint32_t state = 1; text.size() < (8u << 20);)
    text += static_cast<char>('!' + ((state = state * 1103515245 + 12345) >> 16) % 90);
  const auto clip_of_frames = [&](int frames) {
    return join_frames(std::vector<std::string>(frames, clip_frame(0)), {{"parameters", text}}, 16);
  };
  CHECK(split_frames(clip_of_frames(3)).size() == 3);
  CHECK_THROWS_WITH(split_frames(clip_of_frames(60)), doctest::Contains("too many frames"));
}
