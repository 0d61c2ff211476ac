#include "controller/journal/folder_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <stdexcept>

namespace troupe::journal {

control::FileHandle lock_folder(const std::string& folder) {
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
  const std::string file = folder + "/lock";
  control::FileHandle lock(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!lock) fail(std::string("cannot be written: ") + std::strerror(errno));
  char text[32] = {};
  if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    const auto got = ::read(lock.get(), text, sizeof text - 1);
    fail("is in use by another controller" +
         (got > 0 ? " (pid " + std::string(text) + ")" : std::string()));
  }
  const std::string own = std::to_string(::getpid());
  if (::ftruncate(lock.get(), 0) != 0 ||
      ::pwrite(lock.get(), own.data(), own.size(), 0) != static_cast<ssize_t>(own.size()))
    fail(std::string("cannot be written: ") + std::strerror(errno));
  return lock;
}

}  // namespace troupe::journal
