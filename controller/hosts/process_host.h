#pragma once
#include <cstdint>
#include <functional>
#include <string>

#include "controller/hosts/exit_cause.h"
#include "controller/hosts/line_log.h"
#include "transport/wire/host_messages.h"

namespace troupe::cluster {

using wire::ProcessOwner;

/// Starts and ends the processes of one host, whosever they are: in this process (LocalProcessHost)
/// or over a link to one (RemoteProcessHost).
class ProcessHost {
 public:
  using OnExit =
      std::function<void(const ProcessOwner&, std::uint64_t incarnation, const ExitCause&)>;

  virtual ~ProcessHost() = default;
  /// Starts a process and returns its pid, 0 where that will be known later. A process that is
  /// there already is not started again. Throws std::runtime_error naming program and cause.
  virtual std::uint32_t start(const wire::StartProcess& launch) = 0;
  /// False when there is no process of that owner here.
  virtual bool signal(const ProcessOwner& owner, int signal) = 0;
  /// Ends for sure (SIGKILL) the process that runs here for the owner, and says why in its log, if
  /// there is a reason; its exit is told as any other.
  virtual void end(const ProcessOwner& owner, const std::string& why) = 0;
  /// Returns the lines that an actor's processes have written, and that they began and ended.
  virtual const LineLog& lines(std::uint32_t actor) = 0;
  virtual std::size_t running() const = 0;
};

}  // namespace troupe::cluster
