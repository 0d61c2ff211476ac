#pragma once
#include <string>
#include <vector>

namespace troupe::cluster {

/// End of a child process.
struct ExitCause {
  bool by_signal = false;
  int number = 0;  // signal or exit code
  bool core = false;
  std::vector<std::string> log;  // its last lines
  std::string told = {};         // how it ended where no wait status says it; "" = by the above
  std::string method = {};       // method that a user's actor was in; "" = none
  bool with_host = false;        // the process's host is lost: nothing else counts as the cause
  /// Returns "killed by signal 9 (SIGKILL)" or "exit code 1", then the method and the last log line
  /// where there are such.
  std::string text() const;
};

/// Makes the cause from a wait status, as waitpid gives it.
ExitCause exit_cause(int wait_status, std::vector<std::string> log);

}  // namespace troupe::cluster
