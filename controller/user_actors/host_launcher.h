#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace troupe::user {

/// What the process of a user's actor is started with.
struct HostLaunch {
  std::uint64_t id = 0;
  std::uint64_t incarnation = 0;
  std::string host;
  std::string plugin;
  bool torch = false;
  std::string ticket;
  std::string door;  // CURVE keys of its door, as text; "" = it asks for none
  std::vector<std::int32_t> gpus;
};

/// How a process of a user's actor ended.
struct HostExit {
  int signal = 0;  // 0 = it exited
  int code = 0;
  std::string how;     // "killed by signal 9 (SIGKILL)"
  std::string method;  // that it was in; "" = none
  std::vector<std::string> log;
  bool with_host = false;  // its host is lost: nothing else counts as the cause

  std::string text() const;
};

/// Starts and ends the processes of users' actors on the hosts. Ends are told to
/// UserActors::exited.
class HostLauncher {
 public:
  virtual ~HostLauncher() = default;
  /// Answers its pid, 0 where that will be known later. Throws std::runtime_error naming program
  /// and cause.
  virtual std::uint32_t spawn(const HostLaunch& launch) = 0;
  /// Ends for sure what runs there for this actor; the reason goes into its log.
  virtual void kill(const std::string& host, std::uint64_t id, const std::string& why) = 0;
};

}  // namespace troupe::user
