#include "base/text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <regex>
#include <utility>

namespace troupe {

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

}  // namespace troupe
