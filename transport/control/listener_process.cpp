#include "transport/control/listener_process.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cstring>
#include <fstream>
#include <iterator>

#include "base/file_handle.h"

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

}  // namespace

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

}  // namespace troupe::control
