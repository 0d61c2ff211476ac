#pragma once
#include <sys/types.h>

#include <optional>
#include <string>

#include "transport/control/endpoint.h"

namespace troupe::control {

/// The process that listens on an ipc socket.
struct ListenerProcess {
  pid_t pid = 0;
  bool stopped = false;  // by SIGSTOP, SIGTSTP or a debugger
};

/// Returns the process that listens there, whether it answers or not; nothing where the system does
/// not tell: over tcp, for a process in another PID namespace, or where nobody listens. Never
/// blocks.
std::optional<ListenerProcess> listener_process(const Endpoint& endpoint);

/// Returns the listening process in words: "process 77, which is stopped (`kill -CONT 77` lets it
/// go on)"; if it is not stopped "process 77" and `otherwise`, if it is unknown `otherwise` alone.
std::string listener_text(const std::string& endpoint, const std::string& otherwise = {});

}  // namespace troupe::control
