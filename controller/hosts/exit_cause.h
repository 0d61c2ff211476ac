#pragma once
#include <string>
#include <vector>

namespace troupe::cluster {

/// How a child process ended.
struct ExitCause {
  bool by_signal = false;
  int number = 0;  // signal or exit code
  bool core = false;
  std::vector<std::string> log;  // its last lines
  std::string told = {};         // how it ended where no wait status says it; "" = by the above
  /// "killed by signal 9 (SIGKILL)" or "exit code 1", then the last log line where there is one.
  std::string text() const;
};

/// From a wait status, as waitpid gives it.
ExitCause exit_cause(int wait_status, std::vector<std::string> log);

}  // namespace troupe::cluster
