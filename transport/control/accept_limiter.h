#pragma once
#include <sys/socket.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "base/file_handle.h"
#include "transport/control/pending_connections.h"

namespace troupe::control {

/// Stands at every door of this process that a Server opens: bounds the connections that have been
/// accepted and have said no hello, in all and of one address, and how long they may take; and
/// never lets connections take the last descriptors.
///
/// ZeroMQ accepts on its I/O thread without any bound and, over ipc, ends the process when there is
/// no descriptor left (ipc_listener.cpp). So a program that has doors gives it an `accept4` of its
/// own (accept.cpp), as malloc is replaced, which asks here. Thread-safe.
class AcceptLimiter {
 public:
  static AcceptLimiter& of_process();

  /// Same as ::accept4, which ZeroMQ believes it calls. At a door of ours a connection that may not
  /// stay is closed, and the call fails with ECONNABORTED, which every listener lives with.
  int accept(int listener, sockaddr* address, socklen_t* length, int flags);

  /// Notes that the peer at that connection is known from now on. Returns the link for `parted`, if
  /// the peer was not known before.
  std::optional<AcceptedLink> greeted(int descriptor);
  /// Notes that the peer is no longer known: it has the time of a stranger to read what it was
  /// told.
  void parted(const AcceptedLink& link);
  /// Ends pending connections that have had their time.
  void expire();
  /// Number of connections that were ended here.
  std::uint64_t turned_away() const { return turned_away_; }

 private:
  friend class WatchedEndpoint;
  AcceptLimiter();
  void open(const std::string& name);
  void close(const std::string& name);

  bool is_door(int listener);
  /// Takes what waits at the door and closes it, although there is no descriptor left for it.
  void send_one_away(int listener);
  void admit(int descriptor);
  void prune();
  void end(const AcceptedLink& link);

  std::mutex mutex_;
  std::map<std::string, int> doors_;
  PendingConnections pending_;
  FileHandle spare_;
  std::atomic<std::uint64_t> turned_away_ = 0;
};

/// A bound endpoint (`ipc://…`, `tcp://…:PORT`) whose connections the accept limiter looks at.
class WatchedEndpoint {
 public:
  WatchedEndpoint() = default;
  explicit WatchedEndpoint(const std::string& endpoint);
  ~WatchedEndpoint();
  WatchedEndpoint(WatchedEndpoint&& other) noexcept : name_(std::exchange(other.name_, {})) {}
  WatchedEndpoint& operator=(WatchedEndpoint&& other) noexcept {
    std::swap(name_, other.name_);
    return *this;
  }

 private:
  std::string name_;
};

}  // namespace troupe::control
