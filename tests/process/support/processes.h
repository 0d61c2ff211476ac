#pragma once
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/support/patience.h"

namespace troupe::testing {

/// The living processes whose parent is `parent`.
std::vector<pid_t> children_of(pid_t parent);
/// The living actor processes whose parent is `parent`.
std::vector<pid_t> actors_of(pid_t parent);
/// False once a process has ended, reaped or not.
bool is_alive(pid_t pid);
/// Bytes of a field of /proc/PID/status, such as VmRSS; 0 when the process is gone.
double status_bytes(std::uint32_t pid, const std::string& field);
/// Waits until none of them lives any more; false when some do not end.
bool gone(const std::vector<pid_t>& pids);

/// Names in /dev/shm that could be ours, whose makers have ended, and that were not there when this
/// program began.
std::vector<std::string> shared_memory();
/// Returns these names in one line; "" if there are none.
std::string left_in_memory();

/// Program as a shell command line would start it, without the shell: `troupe ARGUMENTS` as a child
/// with its output in files of `folder`. Killed with SIGKILL when it goes out of scope before its
/// end.
class Command {
 public:
  Command(const std::vector<std::string>& arguments, const std::string& folder,
          const std::vector<std::string>& environment = {},
          const std::string& program = TROUPE_BINARY_DIR "/bin/troupe");
  ~Command();
  Command(const Command&) = delete;
  Command& operator=(const Command&) = delete;

  pid_t pid() const { return pid_; }
  void signal(int number) const;
  /// 128 + signal for a process that a signal ended; -1 at the deadline.
  int wait(std::chrono::milliseconds deadline);
  std::string out() const;
  std::string err() const;

 private:
  std::string name_;
  pid_t pid_ = -1;
  int exit_code_ = -1;
};

}  // namespace troupe::testing
