#pragma once

#include <sys/socket.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/files.h"
#include "transport/control/types.h"

namespace troupe::control {

/// A connection that was accepted, and how to know it again: numbers of descriptors are given anew.
struct AcceptedLink {
  int descriptor = -1;
  std::uint64_t cookie = 0;  // the kernel's, given once
  bool operator==(const AcceptedLink&) const = default;
};

/// Links that were accepted and have not said hello yet, or whose peer was lost: which of them go
/// when there are too many, or when they take too long. Pure: no descriptor is touched here.
class PendingConnections {
 public:
  struct Bounds {
    std::size_t most = 1;
    std::size_t most_of_one = 1;  // address
    Milliseconds patience{5000};
  };

  /// Adds a link from that address. Returns the links that have to go for it: the oldest of the
  /// same address where that has its share, else of the address that has most.
  std::vector<AcceptedLink> came(AcceptedLink link, const std::string& address,
                                 Clock::time_point now, const Bounds& bounds);
  /// Forgets a link that has said hello, or is gone. Returns the link, if it was here.
  std::optional<AcceptedLink> forget(int descriptor);
  /// Takes a link that has to go for a reason that has nothing to do with an address.
  std::optional<AcceptedLink> oldest_of_most();
  /// Returns links that have had their time.
  std::vector<AcceptedLink> overdue(Clock::time_point now, const Bounds& bounds);

  std::vector<AcceptedLink> all() const;
  std::size_t size() const { return links_.size(); }
  std::size_t of(const std::string& address) const;

 private:
  struct Stranger {
    AcceptedLink link;
    std::string address;
    Clock::time_point since;
  };
  AcceptedLink take_oldest(const std::string& address);

  std::map<std::uint64_t, Stranger> links_;  // in the order in which they came
  std::map<int, std::uint64_t> by_descriptor_;
  std::map<std::string, std::map<std::uint64_t, int>> by_address_;
  std::uint64_t last_ = 0;
};

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
