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

/// Who listens there, whether it answers or not; nothing where the system does not tell: over tcp,
/// of a process in another PID namespace, or where nobody listens. Never blocks.
std::optional<ListenerProcess> listener_process(const Endpoint& endpoint);

/// The same in words: "process 77, which is stopped (`kill -CONT 77` lets it go on)"; of one that
/// is not stopped "process 77" and `otherwise`, of an unknown one that alone.
std::string listener_text(const std::string& endpoint, const std::string& otherwise = {});

}  // namespace troupe::control
