#pragma once
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <ctime>
#include <string>

namespace troupe {

/// "2026-11-21T09:41:02.123Z": UTC, as ISO 8601 has it.
inline std::string utc_text(std::chrono::system_clock::time_point time) {
  const auto since = time.time_since_epoch();
  const auto milliseconds =
      std::chrono::duration_cast<std::chrono::milliseconds>(since).count() % 1000;
  const std::time_t seconds = std::chrono::system_clock::to_time_t(time);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[40];
  const auto length = std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &parts);
  std::snprintf(text + length, sizeof text - length, ".%03dZ", static_cast<int>(milliseconds));
  return text;
}

/// One line on standard error, "troupe: TEXT". Where that is a file, a log that is read later and
/// perhaps not of one process alone, it is "TIME troupe[PID]: TEXT".
inline void log_line(std::string text) {
  for (char& c : text)
    c = c == '\n' ? ' ' : c;
  struct stat info {};
  const bool file = fstat(STDERR_FILENO, &info) == 0 && S_ISREG(info.st_mode);
  const std::string who = file ? utc_text(std::chrono::system_clock::now()) + " troupe[" +
                                     std::to_string(getpid()) + "]"
                               : "troupe";
  std::fprintf(stderr, "%s: %s\n", who.c_str(), text.c_str());
}

}  // namespace troupe
