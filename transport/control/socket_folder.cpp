#include "transport/control/socket_folder.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "base/error_text.h"
#include "base/format.h"

namespace troupe::control {
namespace {

[[noreturn]] void fail(const std::string& endpoint, const std::string& why) {
  throw std::runtime_error("[control] " + endpoint + ": " + why);
}

bool trusted(uid_t user) {
  return user == geteuid() || user == 0;
}

std::string another_user(uid_t user) {
  return fmt::format("belongs to another user ({}), who could pose as the controller", user);
}

}  // namespace

std::optional<SocketFolder> SocketFolder::open(const Endpoint& endpoint) {
  const auto path = endpoint.path.parent_path();
  FileHandle folder(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!folder) {
    if (errno == ENOENT) return std::nullopt;
    fail(endpoint.text, "folder " + path.string() + ": " + error_text(errno));
  }
  struct stat info {};
  if (fstat(folder.get(), &info) != 0)
    fail(endpoint.text, "folder " + path.string() + ": " + error_text(errno));
  if (!trusted(info.st_uid))
    fail(endpoint.text, "folder " + path.string() + " " + another_user(info.st_uid));
  if (info.st_mode & 022)
    fail(endpoint.text, "other users can write in folder " + path.string() +
                            ", and pose as the controller; give it mode 0700, or choose another");
  return SocketFolder(endpoint, std::move(folder));
}

SocketFolder::SocketFolder(const Endpoint& endpoint, FileHandle folder)
    : endpoint_(endpoint.text),
      name_(endpoint.path.filename().string()),
      address_(endpoint.text),
      folder_(std::move(folder)) {
  const std::string held = fmt::format("/proc/self/fd/{}", folder_.get());
  if (access(held.c_str(), F_OK) == 0) address_ = "ipc://" + held + "/" + name_;
}

bool SocketFolder::check_listener() const {
  struct stat info {};
  if (fstatat(folder_.get(), name_.c_str(), &info, AT_SYMLINK_NOFOLLOW) != 0) return true;
  if (!trusted(info.st_uid)) fail(endpoint_, "the socket " + another_user(info.st_uid));
  if (S_ISLNK(info.st_mode)) fail(endpoint_, "a link is no socket");
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  std::strncpy(to.sun_path, address_.c_str() + std::strlen("ipc://"), sizeof to.sun_path - 1);
  const FileHandle probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!probe || ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&to), sizeof to) != 0)
    return false;
  ucred listener{};
  socklen_t size = sizeof listener;
  if (getsockopt(probe.get(), SOL_SOCKET, SO_PEERCRED, &listener, &size) != 0) return false;
  if (!trusted(listener.uid))
    fail(endpoint_, fmt::format("process {}, which listens there, {}", listener.pid,
                                another_user(listener.uid)));
  return true;
}

}  // namespace troupe::control
