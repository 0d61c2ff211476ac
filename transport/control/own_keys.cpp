#include "transport/control/own_keys.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <thread>

#include "base/file_handle.h"
#include "base/format.h"

namespace troupe::control {
namespace fs = std::filesystem;
namespace {

constexpr std::chrono::seconds kLockDeadline{3};

/// Locks the folder. Of two processes that make the keys at once, one waits and finds them made.
FileHandle lock_folder(const std::string& folder) {
  FileHandle lock(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  const auto until = std::chrono::steady_clock::now() + kLockDeadline;
  while (lock && flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
    if (std::chrono::steady_clock::now() > until)
      throw std::runtime_error("[keys] " + folder + ": another process is changing it; try again");
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  if (!lock) throw std::runtime_error("[keys] " + folder + ": " + std::strerror(errno));
  return lock;
}

/// Throws unless only this user could have put into the folder what lies in it.
void check_runtime_folder(const std::string& folder) {
  struct stat info {};
  if (lstat(folder.c_str(), &info) != 0 || !S_ISDIR(info.st_mode)) {
    throw std::runtime_error(folder + ": is not a folder");
  }
  if (info.st_uid != getuid()) throw std::runtime_error(folder + ": belongs to another user");
  if ((info.st_mode & 022) != 0) {
    throw std::runtime_error(folder +
                             ": other users can write in it, and what is there may be theirs; "
                             "remove it, or empty it and give it mode 0700");
  }
  if ((info.st_mode & 077) != 0 && chmod(folder.c_str(), 0700) != 0) {
    throw std::runtime_error(folder +
                             ": is open to others and cannot be closed: " + std::strerror(errno));
  }
}

/// Returns whether all keys are there.
bool made(const KeyFolder& keys) {
  std::error_code ignored;
  return fs::exists(keys.clients_file(), ignored);  // the last of all
}

}  // namespace

std::string runtime_folder() {
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  if (runtime != nullptr && runtime[0] == '/') return std::string(runtime) + "/troupe";
  return fmt::format("/tmp/troupe-{}", getuid());
}

std::string make_runtime_folder() {
  const std::string folder = runtime_folder();
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    throw std::runtime_error(folder + ": cannot be made: " + std::strerror(errno));
  }
  check_runtime_folder(folder);
  return folder;
}

KeyFolder own_keys() {
  const std::string runtime = make_runtime_folder();
  const KeyFolder keys(fs::path(runtime) / "keys");
  if (made(keys)) return keys;
  const FileHandle lock = lock_folder(runtime);
  if (!made(keys)) keys.make(true);
  return keys;
}

std::optional<ClientKeys> keys_for(const Endpoint& endpoint, const std::string& folder) {
  if (endpoint.ipc || folder == kNoKeys) return std::nullopt;
  if (!folder.empty()) return KeyFolder(folder).client();
  if (!endpoint.loopback()) {
    throw std::runtime_error(
        "[control] " + endpoint.text +
        ": without keys anybody could listen there: give --keys DIR or set TROUPE_KEYS (`troupe "
        "keys add` makes them where the cluster runs); --keys none trusts whoever it is");
  }
  const std::string runtime = runtime_folder();
  const KeyFolder own(fs::path(runtime) / "keys");
  std::error_code ignored;
  if (fs::exists(fs::symlink_status(runtime, ignored))) check_runtime_folder(runtime);
  if (!made(own)) {
    throw NoOwnKeys("[control] " + endpoint.text + ": there are none of this user's own keys in " +
                    own.path().string() + ", which a cluster there makes as it starts. " +
                    kWithoutOwnKeys);
  }
  auto keys = own.client();
  keys.own_users = true;
  return keys;
}

}  // namespace troupe::control
