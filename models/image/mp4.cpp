#include "models/image/clip_writer.h"

#include <wels/codec_api.h>

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "base/endian.h"
#include "base/format.h"
#include "models/image/clip_text.h"

namespace troupe::models {
namespace {

/// A frame as the file has it: NAL units, each after its length in four bytes.
struct Sample {
  std::string bytes;
  bool key = false;
};

void check_encoder(int error) {
  if (error != cmResultSuccess)
    throw std::runtime_error(fmt::format("no MP4 can be made of it: OpenH264's error {}", error));
}

/// Encoder with one quantizer for all frames: constant quality.
class H264Encoder {
 public:
  explicit H264Encoder(const ClipShape& shape) {
    ISVCEncoder* made = nullptr;
    check_encoder(WelsCreateSVCEncoder(&made));
    encoder_.reset(made);
    int silent = WELS_LOG_QUIET;
    encoder_->SetOption(ENCODER_OPTION_TRACE_LEVEL, &silent);
    SEncParamExt settings{};
    check_encoder(encoder_->GetDefaultParams(&settings));
    settings.iUsageType = CAMERA_VIDEO_REAL_TIME;
    settings.iPicWidth = even(shape.width);
    settings.iPicHeight = even(shape.height);
    settings.fMaxFrameRate = static_cast<float>(shape.frames_per_second);
    settings.iRCMode = RC_OFF_MODE;
    settings.iComplexityMode = HIGH_COMPLEXITY;
    settings.uiIntraPeriod = static_cast<unsigned>(key_interval(shape.frames_per_second));
    settings.eSpsPpsIdStrategy = CONSTANT_ID;  // one for the whole file
    settings.iEntropyCodingModeFlag = 1;       // CABAC
    settings.bEnableFrameSkip = false;
    settings.bEnableAdaptiveQuant = false;
    settings.bEnableBackgroundDetection = false;
    settings.iMultipleThreadIdc = 1;
    SSpatialLayerConfig& layer = settings.sSpatialLayers[0];
    layer.iVideoWidth = settings.iPicWidth;
    layer.iVideoHeight = settings.iPicHeight;
    layer.fFrameRate = settings.fMaxFrameRate;
    layer.uiProfileIdc = PRO_MAIN;
    // H.264's quantizers end with 51, the coarsest.
    layer.iDLayerQp = 51 - 36 * shape.quality / 100;
    layer.bVideoSignalTypePresent = layer.bColorDescriptionPresent = true;
    layer.uiVideoFormat = VF_UNDEF;
    layer.uiColorPrimaries = CP_BT709;
    layer.uiTransferCharacteristics = TRC_BT709;
    layer.uiColorMatrix = CM_BT709;
    check_encoder(encoder_->InitializeExt(&settings));
  }

  Sample encode(const ClipFrame& frame) {
    SSourcePicture picture{};
    picture.iColorFormat = videoFormatI420;
    picture.iPicWidth = frame.even_width();
    picture.iPicHeight = frame.even_height();
    for (int plane = 0; plane < 3; ++plane) {
      picture.pData[plane] = const_cast<unsigned char*>(frame.plane(plane));
      picture.iStride[plane] = frame.stride(plane);
    }
    SFrameBSInfo coded{};
    check_encoder(encoder_->EncodeFrame(&picture, &coded));
    Sample sample{{}, coded.eFrameType == videoFrameTypeIDR};
    for (int i = 0; i < coded.iLayerNum; ++i) {
      const SLayerBSInfo& layer = coded.sLayerInfo[i];
      const char* at = reinterpret_cast<const char*>(layer.pBsBuf);
      for (int nal = 0; nal < layer.iNalCount; ++nal) {
        const auto length = static_cast<std::size_t>(layer.pNalLengthInByte[nal]);
        add({at, length}, sample.bytes);
        at += length;
      }
    }
    if (sample.bytes.empty())
      throw std::runtime_error("no MP4 can be made of it: OpenH264 left a frame out");
    return sample;
  }

  /// Sequence and picture parameter set, which come with each key frame and are the same.
  const std::string& sps() const { return sps_; }
  const std::string& pps() const { return pps_; }

 private:
  /// `nal`: after a start code, zeros and a one.
  void add(std::string_view nal, std::string& sample) {
    constexpr int kSps = 7, kPps = 8;
    nal.remove_prefix(nal.find('\1') + 1);
    const int type = nal.at(0) & 31;
    if (type == kSps)
      sps_ = nal;
    else if (type == kPps)
      pps_ = nal;
    else
      sample.append(big_endian(nal.size(), 4)).append(nal);
  }

  struct End {
    void operator()(ISVCEncoder* encoder) const {
      encoder->Uninitialize();
      WelsDestroySVCEncoder(encoder);
    }
  };
  std::unique_ptr<ISVCEncoder, End> encoder_;
  std::string sps_, pps_;
};

std::string box(std::string_view type, std::initializer_list<std::string_view> parts) {
  std::string data;
  for (const std::string_view part : parts)
    data.append(part);
  return big_endian(data.size() + 8, 4).append(type).append(data);
}

/// A box with a version, 0, and flags.
std::string full_box(std::string_view type, int flags,
                     std::initializer_list<std::string_view> parts) {
  std::string data = big_endian(static_cast<std::uint64_t>(flags), 4);
  for (const std::string_view part : parts)
    data.append(part);
  return box(type, {data});
}

std::string zeros(std::size_t count) {
  return std::string(count, '\0');
}

/// Matrix of a picture that is not turned. The values are fixed point, 16 and 16 bits, in the last
/// column 2 and 30.
std::string matrix() {
  const std::string one = big_endian(1 << 16, 4);
  return one + zeros(12) + one + zeros(12) + big_endian(1 << 30, 4);
}

/// Returns the texts in iTunes' form; "" if there are none.
std::string user_data(const PngText& texts) {
  std::string list;
  for (const auto& [keyword, text] : texts) {
    for (const auto& place : kClipTextPlaces) {
      if (keyword != place.keyword) continue;
      constexpr int kUtf8 = 1;
      list += box(place.mp4, {box("data", {big_endian(kUtf8, 4), zeros(4), text})});
    }
  }
  if (list.empty()) return "";
  const std::string handler = full_box("hdlr", 0, {zeros(4), "mdirappl", zeros(9)});
  return box("udta", {full_box("meta", 0, {handler, box("ilst", {list})})});
}

/// The boxes around the frames; a time's unit is a frame, so each lasts 1. Debian 12 has no library
/// of a permissive licence that writes them. Source: ISO/IEC 14496-12, 14496-15.
class Mp4File {
 public:
  Mp4File(const ClipShape& shape, const std::vector<Sample>& samples, const H264Encoder& encoder)
      : width_(static_cast<std::uint64_t>(even(shape.width))),
        height_(static_cast<std::uint64_t>(even(shape.height))),
        speed_(big_endian(static_cast<std::uint64_t>(shape.frames_per_second), 4)),
        count_(big_endian(samples.size(), 4)),
        user_data_(user_data(shape.text)),
        samples_(samples),
        encoder_(encoder) {}

  std::string bytes() const {
    const std::string begin = box("ftyp", {"isom", big_endian(512, 4), "isomiso2avc1mp41"});
    // mdat's length has eight bytes, behind its type.
    const std::size_t frames_at = begin.size() + movie(0).size() + 16;
    std::size_t size = 16;
    for (const Sample& sample : samples_)
      size += sample.bytes.size();
    std::string file = begin + movie(frames_at) + big_endian(1, 4) + "mdat" + big_endian(size, 8);
    file.reserve(file.size() + size);
    for (const Sample& sample : samples_)
      file += sample.bytes;
    return file;
  }

 private:
  std::string movie(std::size_t frames_at) const {
    const std::string head =
        full_box("mvhd", 0,
                 {zeros(8), speed_, count_, big_endian(1 << 16, 4), big_endian(1 << 8, 2),
                  zeros(10), matrix(), zeros(24), big_endian(2, 4)});
    return box("moov", {head, track(frames_at), user_data_});
  }
  std::string track(std::size_t frames_at) const {
    constexpr int kShown = 3;  // enabled, in the presentation
    const std::string head =
        full_box("tkhd", kShown,
                 {zeros(8), big_endian(1, 4), zeros(4), count_, zeros(16), matrix(),
                  big_endian(width_ << 16, 4), big_endian(height_ << 16, 4)});
    constexpr int kUndetermined = 0x55c4;  // the language: "und" in letters of five bits
    const std::string media_head =
        full_box("mdhd", 0, {zeros(8), speed_, count_, big_endian(kUndetermined, 2), zeros(2)});
    const std::string handler =
        full_box("hdlr", 0, {zeros(4), "vide", zeros(12), std::string("troupe\0", 7)});
    constexpr int kHere = 1;  // the frames are in this file
    const std::string place =
        box("dinf", {full_box("dref", 0, {big_endian(1, 4), full_box("url ", kHere, {})})});
    const std::string info =
        box("minf", {full_box("vmhd", 1, {zeros(8)}), place, table(frames_at)});
    return box("trak", {head, box("mdia", {media_head, handler, info})});
  }
  std::string table(std::size_t frames_at) const {
    const std::string one = big_endian(1, 4);
    std::string sizes, keys;
    std::uint64_t key_count = 0;
    for (std::size_t i = 0; i < samples_.size(); ++i) {
      sizes += big_endian(samples_[i].bytes.size(), 4);
      if (!samples_[i].key) continue;
      keys += big_endian(i + 1, 4);
      ++key_count;
    }
    return box("stbl",
               {full_box("stsd", 0, {one, codec()}), full_box("stts", 0, {one, count_, one}),
                full_box("stss", 0, {big_endian(key_count, 4), keys}),
                full_box("stsc", 0, {one, one, count_, one}),  // all in one chunk
                full_box("stsz", 0, {zeros(4), count_, sizes}),
                full_box("stco", 0, {one, big_endian(frames_at, 4)})});
  }
  std::string codec() const {
    const std::string &sps = encoder_.sps(), &pps = encoder_.pps();
    // Version, profile and level, lengths of four bytes, a parameter set of each kind.
    const std::string settings =
        box("avcC", {"\1", sps.substr(1, 3), "\xff\xe1", big_endian(sps.size(), 2), sps, "\1",
                     big_endian(pps.size(), 2), pps});
    const std::string colour =
        box("colr", {"nclx", big_endian(CP_BT709, 2), big_endian(TRC_BT709, 2),
                     big_endian(CM_BT709, 2), zeros(1)});
    const std::string inch = big_endian(72 << 16, 4);
    return box("avc1", {zeros(6), big_endian(1, 2), zeros(16), big_endian(width_, 2),
                        big_endian(height_, 2), inch, inch, zeros(4), big_endian(1, 2), zeros(32),
                        big_endian(24, 2), "\xff\xff", settings, colour});
  }

  std::uint64_t width_, height_;
  std::string speed_, count_, user_data_;
  const std::vector<Sample>& samples_;
  const H264Encoder& encoder_;
};

class Mp4Writer : public ClipWriter {
 public:
  explicit Mp4Writer(const ClipShape& shape) : shape_(shape), encoder_(checked(shape)) {}
  void write(const ClipFrame& frame) override { samples_.push_back(encoder_.encode(frame)); }
  std::string end() override { return Mp4File(shape_, samples_, encoder_).bytes(); }

 private:
  static const ClipShape& checked(const ClipShape& shape) {
    constexpr int kMostBlocks = 36864;  // of 16 x 16 pixels, by H.264's level 5.2
    constexpr int kLongestSide = 8688;  // likewise
    constexpr int kShortestSide = 15;   // OpenH264's, rounded up to pairs
    const auto blocks = [](int side) { return (side + 15) / 16; };
    const auto [least, most] = std::minmax(shape.width, shape.height);
    if (least < kShortestSide || most > kLongestSide ||
        blocks(shape.width) * blocks(shape.height) > kMostBlocks)
      throw std::runtime_error(
          fmt::format("{} x {} pixels: H.264 takes {} to {} a side here and {} blocks of 16 x 16, "
                      "so ask for webm or png",
                      shape.width, shape.height, kShortestSide, kLongestSide, kMostBlocks));
    return shape;
  }

  ClipShape shape_;
  H264Encoder encoder_;
  std::vector<Sample> samples_;
};

}  // namespace

std::unique_ptr<ClipWriter> mp4_writer(const ClipShape& shape) {
  return std::make_unique<Mp4Writer>(shape);
}

}  // namespace troupe::models
