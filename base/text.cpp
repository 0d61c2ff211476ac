#include "base/text.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <filesystem>
#include <regex>
#include <utility>

namespace troupe {
namespace {

// Bytes that a valid sequence starting with `lead` has, 0 if none starts so.
int sequence_length(std::uint8_t lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead < 0xe0) return 2;
  if (lead >= 0xe0 && lead < 0xf0) return 3;
  return lead >= 0xf0 && lead < 0xf5 ? 4 : 0;
}

}  // namespace

std::string bytes_text(std::uint64_t bytes) {
  const auto [unit, name] = bytes >= 1'000'000'000 ? std::pair(1e9, "GB")
                            : bytes >= 1'000'000   ? std::pair(1e6, "MB")
                                                   : std::pair(1e3, "kB");
  char text[32];
  std::snprintf(text, sizeof text, "%.4g %s", static_cast<double>(bytes) / unit, name);
  return text;
}

std::string seconds_text(double seconds) {
  char text[32];
  if (!std::isfinite(seconds)) return "?";
  if (seconds < 0.1) {
    std::snprintf(text, sizeof text, "%.0f ms", seconds * 1000);
  } else if (seconds < 10) {
    std::snprintf(text, sizeof text, "%.2f s", seconds);
  } else if (seconds < 120) {
    std::snprintf(text, sizeof text, "%.0f s", seconds);
  } else if (seconds < 7200) {
    std::snprintf(text, sizeof text, "%.1f min", seconds / 60);
  } else {
    std::snprintf(text, sizeof text, "%.1f h", seconds / 3600);
  }
  return text;
}

std::string duration_text(double seconds) {
  const auto whole = static_cast<long long>(std::max(0.0, seconds));
  char text[64];
  if (seconds < 10) {
    std::snprintf(text, sizeof text, "%.1f s", std::max(0.0, seconds));
  } else if (whole < 60) {
    std::snprintf(text, sizeof text, "%lld s", whole);
  } else if (whole < 3600) {
    std::snprintf(text, sizeof text, "%lld min %lld s", whole / 60, whole % 60);
  } else {
    std::snprintf(text, sizeof text, "%lld h %lld min", whole / 3600, whole % 3600 / 60);
  }
  return text;
}

std::string choices_text(const std::vector<std::string>& words) {
  std::string text;
  for (std::size_t i = 0; i < words.size(); ++i)
    text += (i == 0 ? "" : i + 1 < words.size() ? ", " : " or ") + words[i];
  return text;
}

std::string last_name(const std::string& path) {
  const auto normal = std::filesystem::path(path).lexically_normal();
  return (normal.has_filename() ? normal : normal.parent_path()).filename().string();
}

std::string without_rooms(const std::string& text) {
  static const std::regex kTags("(^|: |; then )(\\[[A-Za-z_. ]+\\] )+");
  return std::regex_replace(text, kTags, "$1");
}

bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto byte = [&](size_t at) { return static_cast<std::uint8_t>(text[at]); };
    const int length = sequence_length(byte(i));
    if (length == 0 || i + length > text.size()) return false;
    for (int k = 1; k < length; ++k) {
      if ((byte(i + k) & 0xc0) != 0x80) return false;
    }
    if (length == 3 && byte(i) == 0xe0 && byte(i + 1) < 0xa0) return false;   // overlong
    if (length == 3 && byte(i) == 0xed && byte(i + 1) >= 0xa0) return false;  // surrogate
    if (length == 4 && byte(i) == 0xf0 && byte(i + 1) < 0x90) return false;   // overlong
    if (length == 4 && byte(i) == 0xf4 && byte(i + 1) >= 0x90) return false;  // beyond Unicode
    i += length;
  }
  return true;
}

}  // namespace troupe
