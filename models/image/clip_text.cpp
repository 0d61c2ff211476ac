#include "models/image/clip_text.h"

#include <cstdint>
#include <stdexcept>

#include "base/text.h"
#include "models/image/png_text.h"

namespace troupe::models {
namespace {

[[noreturn]] void refuse_clip(const std::string& why) {
  throw std::runtime_error("[read_clip_text] " + why);
}

class ClipTexts {
 public:
  void add(std::string_view keyword, std::string_view text) {
    constexpr std::size_t kBeside = 128;  // that a text takes beside its bytes
    if (text.size() + kBeside > left_)
      refuse_clip("texts of more than " + std::to_string(kMostTextBytes >> 20U) + " MiB");
    left_ -= text.size() + kBeside;
    if (!is_utf8(text)) refuse_clip("the text \"" + std::string(keyword) + "\" is not UTF-8");
    if (keyword == "troupe" && !text.starts_with('{')) keyword = "comment";
    texts_.emplace_back(keyword, text);
  }
  PngText take() { return std::move(texts_); }

 private:
  PngText texts_;
  std::size_t left_ = kMostTextBytes;
};

/// Calls with the type of each box and what it has after its head. Source: ISO/IEC 14496-12.
template <class Visit>
void each_box(std::string_view boxes, Visit&& visit) {
  constexpr std::size_t kHead = 8, kLongHead = 16;
  while (!boxes.empty()) {
    // QuickTime may end a list so.
    if (boxes == std::string_view("\0\0\0\0", 4)) return;
    if (boxes.size() < kHead) refuse_clip("an MP4 file is cut off within a box");
    std::uint64_t size = png_number(boxes, 0);
    std::size_t head = kHead;
    if (size == 1) {
      if (boxes.size() < kLongHead) refuse_clip("an MP4 file is cut off within a box");
      size = std::uint64_t{png_number(boxes, 8)} << 32 | png_number(boxes, 12);
      head = kLongHead;
    } else if (size == 0) {
      size = boxes.size();
    }
    if (size < head || size > boxes.size())
      refuse_clip("a box of an MP4 file ends outside of what it is in");
    visit(boxes.substr(4, 4), boxes.substr(head, size - head));
    boxes.remove_prefix(size);
  }
}

template <class Visit>
void in_box(std::string_view boxes, std::string_view wanted, Visit&& visit) {
  each_box(boxes, [&](std::string_view type, std::string_view data) {
    if (type == wanted) visit(data);
  });
}

PngText mp4_text(std::string_view file) {
  constexpr std::uint32_t kUtf8 = 1;
  ClipTexts texts;
  const auto item = [&](std::string_view type, std::string_view data) {
    for (const auto& place : kClipTextPlaces) {
      if (type != place.mp4) continue;
      in_box(data, "data", [&](std::string_view value) {
        if (value.size() < 8) refuse_clip("a text of an MP4 file is cut off");
        if (png_number(value, 0) == kUtf8) texts.add(place.keyword, value.substr(8));
      });
    }
  };
  in_box(file, "moov", [&](std::string_view movie) {
    in_box(movie, "udta", [&](std::string_view user) {
      in_box(user, "meta", [&](std::string_view meta) {
        if (meta.size() < 8) refuse_clip("a list of an MP4 file is cut off");
        // QuickTime's has no version.
        const bool plain = meta.substr(4, 4) == "hdlr";
        in_box(meta.substr(plain ? 0 : 4), "ilst",
               [&](std::string_view list) { each_box(list, item); });
      });
    });
  });
  return texts.take();
}

struct Element {
  std::uint64_t id = 0;
  bool is_open = false;  // it says no length: `data` is all that follows
  std::string_view data;
};

/// Takes a number whose first byte gives its length by the place of the highest bit that is set.
/// `marked`: the number contains that bit.
std::uint64_t take_number(std::string_view& bytes, int longest, bool marked) {
  if (bytes.empty()) refuse_clip("a WebM file is cut off");
  const auto first = static_cast<std::uint8_t>(bytes[0]);
  int length = 1;
  while (length <= longest && (first >> (8 - length) & 1) == 0)
    ++length;
  if (length > longest) refuse_clip("a WebM file has an element without a length");
  if (bytes.size() < static_cast<std::size_t>(length)) refuse_clip("a WebM file is cut off");
  std::uint64_t value = marked ? first : first & ((1u << (8 - length)) - 1);
  bool all_set = (first & ((1u << (8 - length)) - 1)) == (1u << (8 - length)) - 1;
  for (int i = 1; i < length; ++i) {
    const auto byte = static_cast<std::uint8_t>(bytes[static_cast<std::size_t>(i)]);
    value = value << 8 | byte;
    all_set = all_set && byte == 0xff;
  }
  bytes.remove_prefix(static_cast<std::size_t>(length));
  return !marked && all_set ? UINT64_MAX : value;
}

/// Calls with each element until it says false. Source: RFC 8794.
template <class Visit>
void each_element(std::string_view bytes, Visit&& visit) {
  while (!bytes.empty()) {
    Element element;
    element.id = take_number(bytes, 4, true);
    const auto size = take_number(bytes, 8, false);
    element.is_open = size == UINT64_MAX;
    if (!element.is_open && size > bytes.size())
      refuse_clip("an element of a WebM file ends outside of what it is in");
    element.data = bytes.substr(0, element.is_open ? bytes.size() : size);
    bytes.remove_prefix(element.data.size());
    if (!visit(element)) return;
  }
}

void webm_tag(std::string_view tag, ClipTexts& texts) {
  constexpr std::uint64_t kName = 0x45a3, kString = 0x4487;
  std::string_view name, text;
  each_element(tag, [&](const Element& part) {
    // A zero byte ends a text before its element's end.
    if (part.id == kName) name = part.data.substr(0, part.data.find('\0'));
    if (part.id == kString) text = part.data.substr(0, part.data.find('\0'));
    return true;
  });
  for (const auto& place : kClipTextPlaces)
    if (name == place.webm) texts.add(place.keyword, text);
}

/// Source: RFC 9559.
PngText webm_text(std::string_view file) {
  constexpr std::uint64_t kSegment = 0x18538067, kTags = 0x1254c367, kTag = 0x7373,
                          kSimpleTag = 0x67c8;
  ClipTexts texts;
  const auto of_tag = [&](const Element& element) {
    if (element.id == kSimpleTag) webm_tag(element.data, texts);
    return true;
  };
  const auto of_tags = [&](const Element& element) {
    if (element.id == kTag) each_element(element.data, of_tag);
    return true;
  };
  const auto of_segment = [&](const Element& element) {
    if (element.id == kTags) each_element(element.data, of_tags);
    return !element.is_open;  // where frames were written as they came, nothing tells what follows
  };
  each_element(file, [&](const Element& element) {
    if (element.id == kSegment) each_element(element.data, of_segment);
    return true;
  });
  return texts.take();
}

constexpr std::string_view kWebmBegin = "\x1a\x45\xdf\xa3";

bool is_mp4(std::string_view file) {
  return file.size() >= 8 && file.substr(4, 4) == "ftyp";
}

}  // namespace

bool is_video_file(std::string_view file) {
  return is_mp4(file) || file.starts_with(kWebmBegin);
}

PngText read_clip_text(std::string_view file) {
  if (is_mp4(file)) return mp4_text(file);
  if (!file.starts_with(kWebmBegin)) refuse_clip("neither an MP4 nor a WebM file");
  return webm_text(file);
}

PngText read_file_text(std::string_view file) {
  if (is_video_file(file)) return read_clip_text(file);
  if (!file.starts_with(kPngSignature))
    throw std::runtime_error("[read_file_text] neither a PNG nor an MP4 or WebM file");
  return read_png_text(file);
}

}  // namespace troupe::models
