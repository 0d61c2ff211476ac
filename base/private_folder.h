#pragma once
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <optional>
#include <string>
#include <system_error>

namespace troupe {

/// Why a folder is not this user's alone: "belongs to another user", "is open to other users; give
/// it mode 0700", …; nothing where it is.
inline std::optional<std::string> why_not_private(const std::filesystem::path& folder) {
  struct stat info {};
  if (::stat(folder.c_str(), &info) != 0) return std::generic_category().message(errno);
  if (!S_ISDIR(info.st_mode)) return "is not a folder";
  if (info.st_uid != ::geteuid()) return "belongs to another user";
  if (info.st_mode & 077) return "is open to other users; give it mode 0700";
  return std::nullopt;
}

}  // namespace troupe
