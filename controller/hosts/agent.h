#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "controller/hosts/exit_cause.h"
#include "controller/hosts/line_log.h"

namespace troupe::cluster {

/// What an actor process is started with.
struct ActorLaunch {
  std::uint32_t id = 0;
  std::uint64_t incarnation = 0;
  std::string control_endpoint = {};
  std::string blob_endpoint = {};
  std::string device = "cpu";
  int threads = 1;
  std::string token = {};
  std::string keys = {};         // CURVE, for the controller; "" = it asks for none
  std::string tensor_host = {};  // where its tensor plane listens for other hosts; "" = 127.0.0.1
};

/// Starts and ends the actors of one host: in this process (NodeAgent) or over a link to one
/// (RemoteAgent).
class Agent {
 public:
  using OnExit = std::function<void(std::uint32_t id, std::uint64_t incarnation, const ExitCause&)>;

  virtual ~Agent() = default;
  /// Starts an actor; answers its pid, 0 where that will be known later. Throws std::runtime_error
  /// naming program and cause.
  virtual std::uint32_t spawn(const ActorLaunch& launch) = 0;
  /// False when it has no process here.
  virtual bool signal(std::uint32_t id, int signal) = 0;
  /// Ends it for sure (SIGKILL), and says why in its log, if there is a reason; its exit is told as
  /// any other.
  virtual void kill(std::uint32_t id, const std::string& why) = 0;
  /// What the actor's processes have written, and that they began and ended.
  virtual const LineLog& lines(std::uint32_t id) = 0;
  virtual std::size_t running() const = 0;
};

}  // namespace troupe::cluster
