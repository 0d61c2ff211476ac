#pragma once
#include <array>
#include <string_view>

#include "models/image/png_text.h"

namespace troupe::models {

/// Place in a video file of the text that a PNG has under a keyword: in MP4 the item of iTunes'
/// list, in WebM the name of the tag.
struct ClipTextPlace {
  std::string_view keyword, mp4, webm;
};
inline constexpr auto kClipTextPlaces =
    std::to_array<ClipTextPlace>({{"parameters", "desc", "DESCRIPTION"},
                                  {"troupe",
                                   "\xa9"
                                   "cmt",
                                   "COMMENT"}});

/// Returns whether the file is an MP4 or a WebM by its first bytes.
bool is_video_file(std::string_view file);

/// The texts of an MP4 or WebM file under the keywords that they have in a PNG; frames are not
/// looked at. A comment that is no JSON object is somebody else's, and has the keyword "comment".
/// All of them together may have kMostTextBytes. Throws std::runtime_error for another file, for
/// one whose boxes or elements do not lie within each other, for more text, and for a text that is
/// not UTF-8.
PngText read_clip_text(std::string_view file);

/// Returns the texts of a PNG, MP4 or WebM file, as read_png_text and read_clip_text do.
PngText read_file_text(std::string_view file);

}  // namespace troupe::models
