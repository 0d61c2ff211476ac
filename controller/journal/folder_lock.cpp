#include "controller/journal/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <utility>

#include "base/files.h"
#include "base/format.h"
#include "base/numbers.h"

namespace troupe::journal {

FolderLock lock_folder(const std::string& folder) {
  const auto fail = [&](const std::string& why) {
    throw std::runtime_error("[journal] " + folder + ": " + why);
  };
  namespace fs = std::filesystem;
  std::error_code error;
  if (!fs::exists(folder, error)) {
    const auto parent = fs::path(folder).parent_path();
    if (!parent.empty()) fs::create_directories(parent, error);
    if (error || (::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST))
      fail("cannot be made: " + (error ? error.message() : std::strerror(errno)));
  }
  if (const auto why = why_not_private(folder)) fail(*why);
  const std::string file = folder + "/lock";
  FileHandle lock(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock) fail(std::string("cannot be written: ") + std::strerror(errno));
  FileHandle whole(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!whole) fail(std::string("cannot be read: ") + std::strerror(errno));
  char text[32] = {};
  const bool taken = ::flock(whole.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  if (taken || ::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    const auto got = ::read(lock.get(), text, sizeof text - 1);
    const auto pid = got > 0 ? parse_number<pid_t>(text) : std::nullopt;
    fail("is in use by another controller" +
         (pid ? fmt::format(" (pid {})", *pid) : std::string()));
  }
  // Whose it is, is said to others only: on a full disk there may be no room for that.
  const std::string own = std::to_string(::getpid());
  const auto put = ::pwrite(lock.get(), own.data(), own.size(), 0);
  if (::ftruncate(lock.get(), put < 0 ? 0 : put) != 0)
    fail(std::string("cannot be written: ") + std::strerror(errno));
  return {std::move(whole), std::move(lock)};
}

}  // namespace troupe::journal
