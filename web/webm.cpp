#include "web/webm.h"

#include <ebml/EbmlHead.h>
#include <ebml/EbmlSubHead.h>
#include <ebml/EbmlVoid.h>
#include <ebml/MemIOCallback.h>
#include <matroska/KaxBlock.h>
#include <matroska/KaxCluster.h>
#include <matroska/KaxCues.h>
#include <matroska/KaxCuesData.h>
#include <matroska/KaxInfo.h>
#include <matroska/KaxInfoData.h>
#include <matroska/KaxSeekHead.h>
#include <matroska/KaxSegment.h>
#include <matroska/KaxSemantic.h>
#include <matroska/KaxTracks.h>
#include <png.h>
#include <vpx/vp8cx.h>
#include <vpx/vpx_encoder.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include "models/image/frames.h"
#include "models/image/png_bytes.h"

namespace troupe::web {
namespace {

constexpr std::uint64_t kMillisecond = 1'000'000;  // the unit of the file's times, in nanoseconds

struct Coded {
  std::string bytes;
  std::int64_t frame = 0;  // its number
  bool key = false;
};

/// Planes of a frame that is to be coded. Source: ITU-R BT.709, studio range.
class FrameImage {
 public:
  FrameImage(unsigned width, unsigned height)
      : image_(vpx_img_alloc(nullptr, VPX_IMG_FMT_I420, width, height, 1)) {
    if (!image_) throw std::bad_alloc();
  }

  const vpx_image_t* image() const { return image_.get(); }

  /// `png`: of this size.
  void read(const std::string& png) {
    png_image picture{};
    picture.version = PNG_IMAGE_VERSION;
    if (!png_image_begin_read_from_memory(&picture, png.data(), png.size()))
      throw std::runtime_error(std::string("a frame cannot be read: ") + picture.message);
    picture.format = PNG_FORMAT_RGB;
    rgb_.resize(PNG_IMAGE_SIZE(picture));
    if (!png_image_finish_read(&picture, nullptr, rgb_.data(), 0, nullptr)) {
      const std::string why = picture.message;
      png_image_free(&picture);
      throw std::runtime_error("a frame cannot be read: " + why);
    }
    fill();
  }

 private:
  void fill() {
    const int width = static_cast<int>(image_->d_w), height = static_cast<int>(image_->d_h);
    for (int y = 0; y < height; ++y) {
      for (int x = 0; x < width; ++x) {
        const unsigned char* p = pixel(x, y);
        set(0, x, y, 16 + 0.1826 * p[0] + 0.6142 * p[1] + 0.0620 * p[2]);
      }
    }
    for (int y = 0; y < height; y += 2) {
      for (int x = 0; x < width; x += 2) {
        double sum[3] = {};
        for (int i = 0; i < 4; ++i)
          for (int c = 0; c < 3; ++c)
            sum[c] +=
                pixel(std::min(x + i % 2, width - 1), std::min(y + i / 2, height - 1))[c] / 4.;
        set(1, x / 2, y / 2, 128 - 0.1006 * sum[0] - 0.3386 * sum[1] + 0.4392 * sum[2]);
        set(2, x / 2, y / 2, 128 + 0.4392 * sum[0] - 0.3989 * sum[1] - 0.0403 * sum[2]);
      }
    }
  }
  const unsigned char* pixel(int x, int y) const {
    return &rgb_[(static_cast<std::size_t>(y) * image_->d_w + static_cast<std::size_t>(x)) * 3];
  }
  void set(int plane, int x, int y, double value) {
    image_->planes[plane][y * image_->stride[plane] + x] = static_cast<unsigned char>(value + 0.5);
  }

  struct Free {
    void operator()(vpx_image_t* image) const { vpx_img_free(image); }
  };
  std::unique_ptr<vpx_image_t, Free> image_;
  std::vector<unsigned char> rgb_;
};

class Vp9Encoder {
 public:
  Vp9Encoder(unsigned width, unsigned height, int frames_per_second, int quality) {
    constexpr int kLongestSeconds = 16;  // without a key frame: where players may begin
    constexpr int kSpeed = 5;            // 0 to 9, of which the first are slow
    vpx_codec_enc_cfg_t config{};
    check(vpx_codec_enc_config_default(vpx_codec_vp9_cx(), &config, 0));
    config.g_w = width;
    config.g_h = height;
    config.g_timebase = {1, frames_per_second};
    config.g_threads = 4;
    config.rc_end_usage = VPX_Q;
    config.kf_max_dist =
        static_cast<unsigned>(std::clamp(frames_per_second * kLongestSeconds, 1, 128));
    check(vpx_codec_enc_init(&context_, vpx_codec_vp9_cx(), &config, 0));
    vpx_codec_control(&context_, VP8E_SET_CPUUSED, kSpeed);
    vpx_codec_control(&context_, VP8E_SET_CQ_LEVEL,
                      static_cast<unsigned>(63 - 55 * std::clamp(quality, 1, 100) / 100));
    vpx_codec_control(&context_, VP9E_SET_ROW_MT, 1u);
    vpx_codec_control(&context_, VP9E_SET_COLOR_SPACE, VPX_CS_BT_709);
    vpx_codec_control(&context_, VP9E_SET_COLOR_RANGE, VPX_CR_STUDIO_RANGE);
  }
  ~Vp9Encoder() { vpx_codec_destroy(&context_); }
  Vp9Encoder(const Vp9Encoder&) = delete;
  Vp9Encoder& operator=(const Vp9Encoder&) = delete;

  /// Of no image: the end, after which what is still inside comes out.
  void take(const vpx_image_t* image, std::int64_t frame, std::vector<Coded>& out) {
    bool more = true;
    while (more) {
      check(vpx_codec_encode(&context_, image, frame, 1, 0, VPX_DL_GOOD_QUALITY));
      const std::size_t before = out.size();
      vpx_codec_iter_t at = nullptr;
      while (const vpx_codec_cx_pkt_t* packet = vpx_codec_get_cx_data(&context_, &at)) {
        if (packet->kind != VPX_CODEC_CX_FRAME_PKT) continue;
        const auto& coded = packet->data.frame;
        out.push_back({std::string(static_cast<const char*>(coded.buf), coded.sz), coded.pts,
                       (coded.flags & VPX_FRAME_IS_KEY) != 0});
      }
      more = image == nullptr && out.size() > before;
    }
  }

 private:
  static void check(vpx_codec_err_t error) {
    if (error != VPX_CODEC_OK)
      throw std::runtime_error(std::string("no WebM can be made of it: ") +
                               vpx_codec_err_to_string(error));
  }
  vpx_codec_ctx_t context_{};
};

template <class Child, class Value, class Parent>
void put(Parent& parent, const Value& value) {
  libebml::GetChild<Child>(parent).SetValue(value);
}

/// Source: the WebM container guidelines; libmatroska's test/mux/test6.cpp.
class WebmWriter {
 public:
  WebmWriter(unsigned width, unsigned height, int frames_per_second, std::size_t frames)
      : frames_per_second_(static_cast<std::uint64_t>(frames_per_second)) {
    using namespace libmatroska;
    libebml::EbmlHead head;
    put<libebml::EDocType>(head, std::string("webm"));
    put<libebml::EDocTypeVersion>(head, std::uint64_t{2});
    put<libebml::EDocTypeReadVersion>(head, std::uint64_t{2});
    head.Render(file_, true);
    segment_.WriteHead(file_, 8);
    room_for_index_.SetSize(100);
    room_for_index_.Render(file_);

    info_ = &libebml::GetChild<KaxInfo>(segment_);
    put<KaxTimecodeScale>(*info_, std::uint64_t{kMillisecond});
    put<KaxDuration>(*info_, 1e3 * static_cast<double>(frames) / frames_per_second);
    put<KaxMuxingApp>(*info_, libebml::UTFstring(L"troupe"));
    put<KaxWritingApp>(*info_, libebml::UTFstring(L"troupe"));
    info_->Render(file_);

    tracks_ = &libebml::GetChild<KaxTracks>(segment_);
    track_ = &libebml::GetChild<KaxTrackEntry>(*tracks_);
    track_->SetGlobalTimecodeScale(kMillisecond);
    put<KaxTrackNumber>(*track_, std::uint64_t{1});
    put<KaxTrackUID>(*track_, std::uint64_t{1});
    put<KaxTrackType>(*track_, std::uint64_t{track_video});
    put<KaxTrackFlagLacing>(*track_, std::uint64_t{0});
    put<KaxCodecID>(*track_, std::string("V_VP9"));
    auto& video = libebml::GetChild<KaxTrackVideo>(*track_);
    put<KaxVideoPixelWidth>(video, std::uint64_t{width});
    put<KaxVideoPixelHeight>(video, std::uint64_t{height});
    tracks_->Render(file_);
    cues_.SetGlobalTimecodeScale(kMillisecond);
  }

  /// One cluster: a key frame, and what follows up to the next one.
  void write(std::vector<Coded>::iterator begin, std::vector<Coded>::iterator end) {
    using namespace libmatroska;
    KaxCluster cluster;
    cluster.SetParent(segment_);
    cluster.InitTimecode(time_of(begin->frame) / kMillisecond, kMillisecond);
    const KaxSimpleBlock* first = nullptr;
    for (auto at = begin; at != end; ++at) {
      auto& block = libebml::AddNewChild<KaxSimpleBlock>(cluster);
      block.SetParent(cluster);
      // The block frees the buffer, whose bytes stay ours.
      auto* buffer = new DataBuffer(reinterpret_cast<binary*>(at->bytes.data()),
                                    static_cast<std::uint32_t>(at->bytes.size()));
      block.AddFrame(*track_, time_of(at->frame), *buffer, LACING_NONE);
      block.SetKeyframe(at->key);
      block.SetDiscardable(false);
      if (!first) first = &block;
    }
    cluster.Render(file_, cues_);
    libebml::AddNewChild<KaxCuePoint>(cues_).PositionSet(*first, kMillisecond);
  }

  std::string end() {
    cues_.Render(file_);
    const auto size = file_.getFilePointer();
    libmatroska::KaxSeekHead index;
    index.IndexThis(*info_, segment_);
    index.IndexThis(*tracks_, segment_);
    index.IndexThis(cues_, segment_);
    room_for_index_.ReplaceWith(index, file_);
    segment_.ForceSize(size - segment_.GetElementPosition() - segment_.HeadSize());
    segment_.OverwriteHead(file_);
    return {reinterpret_cast<const char*>(file_.GetDataBuffer()), size};
  }

 private:
  std::uint64_t time_of(std::int64_t frame) const {
    return static_cast<std::uint64_t>(frame) * 1'000 / frames_per_second_ * kMillisecond;
  }

  std::uint64_t frames_per_second_;
  libebml::MemIOCallback file_;
  libmatroska::KaxSegment segment_;
  libebml::EbmlVoid room_for_index_;
  libmatroska::KaxInfo* info_ = nullptr;         // the segment's
  libmatroska::KaxTracks* tracks_ = nullptr;     // likewise
  libmatroska::KaxTrackEntry* track_ = nullptr;  // the tracks'
  libmatroska::KaxCues cues_;
};

}  // namespace

Clip clip_of(std::string_view png) {
  constexpr std::size_t kDelayAt = 20;  // in fcTL: two numbers of two bytes
  Clip clip;
  if (!models::begins_as_png(png)) return clip;
  models::each_png_chunk(png, [&](const models::PngChunk& chunk) {
    if (chunk.type == "acTL" && chunk.data.size() >= 8)
      clip.frames = std::max(1, static_cast<int>(models::png_number(chunk.data, 0)));
    if (chunk.type != "fcTL" || chunk.data.size() < kDelayAt + 4) return;
    const auto delay = models::png_number(chunk.data, kDelayAt);
    const double speed = static_cast<double>(delay & 0xffff) / std::max(1u, delay >> 16);
    clip.frames_per_second = std::clamp(static_cast<int>(speed + 0.5), 1, 1000);
  });
  return clip;
}

std::string webm_file(std::string_view png, int quality, std::stop_token stop) {
  const auto size = models::png_size(png);
  if (size.width == 0 || size.height == 0) throw std::runtime_error("it is no PNG file");
  const int speed = clip_of(png).frames_per_second;
  const auto frames = models::split_frames(png);
  FrameImage image(size.width, size.height);
  Vp9Encoder encoder(size.width, size.height, speed, quality);
  std::vector<Coded> coded;
  for (std::size_t i = 0; i < frames.size(); ++i) {
    if (stop.stop_requested()) throw std::runtime_error("the encoding was stopped");
    image.read(frames[i]);
    encoder.take(image.image(), static_cast<std::int64_t>(i), coded);
  }
  encoder.take(nullptr, 0, coded);
  WebmWriter writer(size.width, size.height, speed, frames.size());
  for (auto begin = coded.begin(); begin != coded.end();) {
    const auto end =
        std::find_if(begin + 1, coded.end(), [](const Coded& frame) { return frame.key; });
    writer.write(begin, end);
    begin = end;
  }
  return writer.end();
}

}  // namespace troupe::web
