#pragma once
#include <sys/types.h>

#include <string>
#include <vector>

namespace troupe::testing {

/// `troupe ARGUMENTS` in a terminal of its own, with somebody at the keys. Killed with SIGKILL when
/// it goes out of scope before its end.
class Terminal {
 public:
  /// `environment`: "NAME=VALUE", before this process's own.
  Terminal(const std::vector<std::string>& arguments, const std::vector<std::string>& environment);
  ~Terminal();
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  void type(const std::string& keys);
  /// Waits until `text` stands behind what was waited for before; false at the deadline. What moves
  /// the cursor or colours is left out.
  bool shows(const std::string& text);
  /// Returns all that was written so far.
  const std::string& screen() const { return screen_; }
  /// Waits for the exit code; -1 at the deadline, or when a signal ended the process.
  int wait();

 private:
  /// Reads for a moment; false at the end.
  bool read();

  pid_t pid_ = -1;
  int terminal_ = -1;
  int code_ = -1;
  bool ended_ = false;
  std::string screen_, raw_;
  std::size_t seen_ = 0;
};

}  // namespace troupe::testing
