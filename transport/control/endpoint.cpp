#include "transport/control/endpoint.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <system_error>
#include <thread>
#include <utility>

#include "base/error_text.h"
#include "base/files.h"
#include "base/format.h"

namespace troupe::control {
namespace {

/// Returns whether a process is stopped, by the letter in its stat file that stands behind the
/// name, which may have anything in it.
bool is_stopped(pid_t pid) {
  std::ifstream file(std::string("/proc/").append(std::to_string(pid)).append("/stat"));
  const std::string stat{std::istreambuf_iterator<char>(file), {}};
  const auto name_end = stat.rfind(')');
  if (name_end == std::string::npos || name_end + 2 >= stat.size()) return false;
  return stat[name_end + 2] == 'T' || stat[name_end + 2] == 't';
}

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

namespace fs = std::filesystem;
namespace {

void check_folder(const std::string& endpoint, const fs::path& folder) {
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    fail(endpoint, "cannot make folder " + folder.string() + ": " + error_text(errno));
  }
  if (const auto why = why_not_private(folder))
    fail(endpoint, "folder " + folder.string() + " " + *why);
  if (access(folder.c_str(), W_OK | X_OK) != 0) {
    fail(endpoint, "folder " + folder.string() + " is not writable: " + error_text(errno));
  }
}

sockaddr_un socket_address(const fs::path& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof address.sun_path - 1);
  return address;
}

/// ZeroMQ would unlink whatever is at the path, a live controller's socket included.
void clear_stale_socket(const std::string& endpoint, const fs::path& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) {
    if (errno == ENOENT) return;
    fail(endpoint, error_text(errno));
  }
  if (!S_ISSOCK(info.st_mode)) fail(endpoint, "there is a file of another type at this path");
  FileHandle probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe) fail(endpoint, error_text(errno));
  const sockaddr_un address = socket_address(path);
  if (::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ||
      errno != ECONNREFUSED) {
    throw EndpointInUse("[control] " + endpoint + ": in use by a running process");
  }
  if (unlink(path.c_str()) != 0)
    fail(endpoint, "cannot remove the stale socket: " + error_text(errno));
}

}  // namespace

bool Endpoint::loopback() const {
  if (ipc) return true;
  // Numbers only: a name can mean anything, and ZeroMQ reads more into "a;b" than one address.
  in_addr v4{};
  if (inet_pton(AF_INET, host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  if (!host.starts_with('[') || !host.ends_with(']')) return false;
  in6_addr v6{};
  const std::string bare = host.substr(1, host.size() - 2);
  return inet_pton(AF_INET6, bare.c_str(), &v6) == 1 &&
         (IN6_IS_ADDR_LOOPBACK(&v6) || (IN6_IS_ADDR_V4MAPPED(&v6) && v6.s6_addr[12] == 127));
}

Endpoint parse_endpoint(const std::string& text) {
  Endpoint parsed;
  parsed.text = text;
  // A zero byte above all: ZeroMQ and the system would read no further.
  if (std::any_of(text.begin(), text.end(), [](char c) { return c >= 0 && c < ' '; }))
    fail("endpoint", "there is a control character in it");
  if (text.starts_with("ipc://")) {
    parsed.ipc = true;
    parsed.path = text.substr(6);
    if (!parsed.path.is_absolute() || !parsed.path.has_filename()) {
      fail(text, "ipc needs an absolute path, as in ipc:///folder/name");
    }
    if (parsed.path.native().size() >= sizeof(sockaddr_un::sun_path)) {
      fail(text, fmt::format("path is longer than the {} bytes that a local socket may have",
                             sizeof(sockaddr_un::sun_path) - 1));
    }
    return parsed;
  }
  if (!text.starts_with("tcp://"))
    fail(text, "not an endpoint; use ipc:///folder/name or tcp://host:port");
  const std::string rest = text.substr(6);
  const std::size_t colon = rest.rfind(':');
  if (colon == std::string::npos || colon == 0) fail(text, "no port; use tcp://host:port");
  parsed.host = rest.substr(0, colon);
  const std::string port = rest.substr(colon + 1);
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), parsed.port);
  if (error != std::errc() || end != port.data() + port.size()) {
    fail(text, "port \"" + port + "\" is not a number from 0 to 65535");
  }
  if (parsed.host == "localhost") parsed.host = "127.0.0.1";
  parsed.ipv6 = parsed.host.starts_with('[');
  if (!parsed.ipv6 && parsed.host.find(':') != std::string::npos)
    fail(text, "write IPv6 addresses as [::1]");
  parsed.text = fmt::format("tcp://{}:{}", parsed.host, parsed.port);
  return parsed;
}

namespace {

/// Deadline for the lock of a folder, which others hold for a moment while they bind.
constexpr std::chrono::seconds kLockDeadline{3};

bool lock_within(int file, std::chrono::milliseconds deadline) {
  const auto end = std::chrono::steady_clock::now() + deadline;
  while (flock(file, LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK || std::chrono::steady_clock::now() > end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return true;
}

}  // namespace

std::string bind_endpoint(zmq::socket_t& socket, const std::string& text, bool open_to_others) {
  const Endpoint endpoint = parse_endpoint(text);
  FileHandle folder_lock;
  if (endpoint.ipc) {
    const fs::path folder = endpoint.path.parent_path();
    check_folder(text, folder);
    // Two starting at once must not both find the path free.
    folder_lock = FileHandle(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    if (!folder_lock || !lock_within(folder_lock.get(), kLockDeadline)) {
      fail(text, "another process is binding in " + folder.string());
    }
    clear_stale_socket(text, endpoint.path);
  } else if (!endpoint.loopback() && !open_to_others) {
    fail(text,
         "other machines could reach it and it would ask no one for a key; make keys with `troupe "
         "keys` and give --keys, listen on 127.0.0.1, or allow it with --insecure");
  }
  if (endpoint.ipv6) socket.set(zmq::sockopt::ipv6, true);
  try {
    socket.bind(endpoint.text);
  } catch (const zmq::error_t& error) {
    switch (error.num()) {
      case EADDRINUSE:
        fail(text, endpoint.ipc ? "in use" : "port in use");
      case EADDRNOTAVAIL:
        fail(text, "not an address of this machine");
      case ENODEV:
        fail(text, "no such address or interface on this machine");
      default:
        fail(text, error.what());
    }
  }
  return socket.get(zmq::sockopt::last_endpoint);
}

namespace {

constexpr const char* kFolderPrefix = "troupe-";
constexpr const char* kAliveFile = "alive";  // locked by the process whose folder it is

/// Removes what killed processes left: our folders whose lock no process holds. Young folders stay:
/// their process may be about to lock them.
void sweep_dead_folders(const fs::path& base) {
  std::error_code error;
  const auto old = fs::file_time_type::clock::now() - std::chrono::minutes(1);
  for (const auto& entry : fs::directory_iterator(base, error)) {
    const auto& folder = entry.path();
    if (!folder.filename().native().starts_with(kFolderPrefix) ||
        entry.last_write_time(error) > old)
      continue;
    const FileHandle alive(open((folder / kAliveFile).c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC));
    struct stat owner {};
    if (!alive || fstat(alive.get(), &owner) != 0 || owner.st_uid != geteuid()) continue;
    if (flock(alive.get(), LOCK_EX | LOCK_NB) == 0) fs::remove_all(folder, error);
  }
}

/// The user's runtime folder, or that of temporary files: whichever may be written to, and has a
/// path short enough for those of the sockets in it.
fs::path base_of_folders() {
  constexpr std::size_t kNames = 48;  // bytes of the folder's own name and the longest socket's
  const auto suits = [](const fs::path& base) {
    return !base.empty() && access(base.c_str(), W_OK | X_OK) == 0 &&
           base.native().size() + kNames < sizeof(sockaddr_un::sun_path);
  };
  const char* runtime = std::getenv("XDG_RUNTIME_DIR");
  std::error_code error;
  for (const fs::path& base : {fs::path(runtime ? runtime : ""), fs::temp_directory_path(error)})
    if (suits(base)) return base;
  return "/tmp";
}

}  // namespace

IpcFolder::IpcFolder() {
  const fs::path base = base_of_folders();
  sweep_dead_folders(base);
  std::string name = (base / (std::string(kFolderPrefix) + "XXXXXX")).string();
  if (!mkdtemp(name.data())) {
    throw std::runtime_error("[control] cannot make a folder in " + base.string() + ": " +
                             error_text(errno));
  }
  path_ = name;
  alive_ =
      FileHandle(open((path_ / kAliveFile).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!alive_ || flock(alive_.get(), LOCK_EX | LOCK_NB) != 0) {
    throw std::runtime_error("[control] cannot lock " + path_.string() + ": " + error_text(errno));
  }
}

IpcFolder::~IpcFolder() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

std::string blob_endpoint_of(const std::string& control) {
  const Endpoint endpoint = parse_endpoint(control);
  if (endpoint.ipc) return endpoint.text + ".blobs";
  if (endpoint.port == 0 || endpoint.port == 65535) {
    throw std::runtime_error("[control] " + control +
                             ": the port after it, for blobs, does not exist");
  }
  return fmt::format("{}{}", endpoint.text.substr(0, endpoint.text.rfind(':') + 1),
                     endpoint.port + 1);
}

std::optional<ListenerProcess> listener_process(const Endpoint& endpoint) {
  const std::string path = endpoint.path.string();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (!endpoint.ipc || path.size() >= sizeof address.sun_path) return std::nullopt;
  std::memcpy(address.sun_path, path.c_str(), path.size());
  const FileHandle probe(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  // Known as soon as the kernel has the connection in its queue, whoever takes it from there.
  if (!probe ||
      ::connect(probe.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    return std::nullopt;
  ucred peer{};
  socklen_t size = sizeof peer;
  if (getsockopt(probe.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 || peer.pid <= 0)
    return std::nullopt;
  return ListenerProcess{peer.pid, is_stopped(peer.pid)};
}

std::string listener_text(const std::string& endpoint, const std::string& otherwise) {
  const auto listener = listener_process(parse_endpoint(endpoint));
  if (!listener) return otherwise;
  const auto pid = std::to_string(listener->pid);
  const auto name = std::string("process ").append(pid);
  if (listener->stopped)
    return name + ", which is stopped (`kill -CONT " + pid + "` lets it go on)";
  return otherwise.empty() ? name : name + ", " + otherwise;
}

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
