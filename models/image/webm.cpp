#include "models/image/clip_writer.h"

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
#include <matroska/KaxTag.h>
#include <matroska/KaxTags.h>
#include <matroska/KaxTracks.h>
#include <vpx/vp8cx.h>
#include <vpx/vpx_encoder.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <vector>

#include "models/image/clip_text.h"

namespace troupe::models {
namespace {

constexpr std::uint64_t kMillisecond = 1'000'000;  // the unit of the file's times, in nanoseconds

struct Coded {
  std::string bytes;
  std::int64_t frame = 0;  // its number
  bool key = false;
};

class Vp9Encoder {
 public:
  explicit Vp9Encoder(const ClipShape& shape) {
    constexpr int kSpeed = 5;  // 0 to 9, of which the first are slow
    vpx_codec_enc_cfg_t config{};
    check(vpx_codec_enc_config_default(vpx_codec_vp9_cx(), &config, 0));
    config.g_w = static_cast<unsigned>(shape.width);
    config.g_h = static_cast<unsigned>(shape.height);
    config.g_timebase = {1, shape.frames_per_second};
    config.g_threads = 4;
    config.rc_end_usage = VPX_Q;
    config.kf_max_dist = static_cast<unsigned>(key_interval(shape.frames_per_second));
    check(vpx_codec_enc_init(&context_, vpx_codec_vp9_cx(), &config, 0));
    vpx_codec_control(&context_, VP8E_SET_CPUUSED, kSpeed);
    vpx_codec_control(&context_, VP8E_SET_CQ_LEVEL,
                      static_cast<unsigned>(63 - 55 * shape.quality / 100));
    vpx_codec_control(&context_, VP9E_SET_ROW_MT, 1u);
    vpx_codec_control(&context_, VP9E_SET_COLOR_SPACE, VPX_CS_BT_709);
    vpx_codec_control(&context_, VP9E_SET_COLOR_RANGE, VPX_CR_STUDIO_RANGE);
  }
  ~Vp9Encoder() { vpx_codec_destroy(&context_); }
  Vp9Encoder(const Vp9Encoder&) = delete;
  Vp9Encoder& operator=(const Vp9Encoder&) = delete;

  /// Encodes an image. A null image means the end: the frames that are still inside the encoder
  /// come out.
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
class WebmFile {
 public:
  WebmFile(const ClipShape& shape, std::int64_t frames)
      : frames_per_second_(static_cast<std::uint64_t>(shape.frames_per_second)) {
    using namespace libmatroska;
    libebml::EbmlHead head;
    put<libebml::EDocType>(head, std::string("webm"));
    put<libebml::EDocTypeVersion>(head, std::uint64_t{2});
    put<libebml::EDocTypeReadVersion>(head, std::uint64_t{2});
    head.Render(file_, true);
    segment_.WriteHead(file_, 8);
    room_for_index_.SetSize(140);
    room_for_index_.Render(file_);

    info_ = &libebml::GetChild<KaxInfo>(segment_);
    put<KaxTimecodeScale>(*info_, std::uint64_t{kMillisecond});
    put<KaxDuration>(*info_, 1e3 * static_cast<double>(frames) / shape.frames_per_second);
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
    put<KaxVideoPixelWidth>(video, static_cast<std::uint64_t>(shape.width));
    put<KaxVideoPixelHeight>(video, static_cast<std::uint64_t>(shape.height));
    tracks_->Render(file_);
    write_text(shape.text);
    cues_.SetGlobalTimecodeScale(kMillisecond);
  }

  /// Writes one cluster: a key frame, and the frames up to the next one.
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
    if (tags_) index.IndexThis(*tags_, segment_);
    index.IndexThis(cues_, segment_);
    room_for_index_.ReplaceWith(index, file_);
    segment_.ForceSize(size - segment_.GetElementPosition() - segment_.HeadSize());
    segment_.OverwriteHead(file_);
    return {reinterpret_cast<const char*>(file_.GetDataBuffer()), size};
  }

 private:
  void write_text(const PngText& texts) {
    using namespace libmatroska;
    for (const auto& [keyword, text] : texts) {
      for (const auto& place : kClipTextPlaces) {
        if (keyword != place.keyword) continue;
        if (!tags_) tags_ = &libebml::GetChild<KaxTags>(segment_);
        auto& tag = libebml::AddNewChild<KaxTagSimple>(libebml::GetChild<KaxTag>(*tags_));
        libebml::GetChild<KaxTagName>(tag).SetValueUTF8(std::string(place.webm));
        libebml::GetChild<KaxTagString>(tag).SetValueUTF8(text);
      }
    }
    if (tags_) tags_->Render(file_);
  }
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
  libmatroska::KaxTags* tags_ = nullptr;         // likewise; none without texts
  libmatroska::KaxCues cues_;
};

class WebmWriter : public ClipWriter {
 public:
  explicit WebmWriter(const ClipShape& shape) : shape_(shape), encoder_(shape) {}

  void write(const ClipFrame& frame) override {
    vpx_image_t image{};
    vpx_img_wrap(&image, VPX_IMG_FMT_I420, static_cast<unsigned>(shape_.width),
                 static_cast<unsigned>(shape_.height), 1,
                 const_cast<unsigned char*>(frame.plane(0)));
    for (int plane = 0; plane < 3; ++plane) {
      image.planes[plane] = const_cast<unsigned char*>(frame.plane(plane));
      image.stride[plane] = frame.stride(plane);
    }
    encoder_.take(&image, frames_++, coded_);
  }

  std::string end() override {
    encoder_.take(nullptr, 0, coded_);
    WebmFile file(shape_, frames_);
    for (auto begin = coded_.begin(); begin != coded_.end();) {
      const auto end =
          std::find_if(begin + 1, coded_.end(), [](const Coded& frame) { return frame.key; });
      file.write(begin, end);
      begin = end;
    }
    return file.end();
  }

 private:
  ClipShape shape_;
  Vp9Encoder encoder_;
  std::vector<Coded> coded_;
  std::int64_t frames_ = 0;
};

}  // namespace

std::unique_ptr<ClipWriter> webm_writer(const ClipShape& shape) {
  return std::make_unique<WebmWriter>(shape);
}

}  // namespace troupe::models
