#pragma once
#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>

namespace troupe::testing {

/// Returns whether a shell command line ends with exit code 0.
bool does(const std::string& line);

/// Hosts "a" (10.77.0.1) and "b" (10.77.0.2) as network namespaces of this machine, and the cable
/// between them. Needs root.
class TwoHosts {
 public:
  TwoHosts();
  ~TwoHosts();
  TwoHosts(const TwoHosts&) = delete;
  TwoHosts& operator=(const TwoHosts&) = delete;
  /// False if this machine has no namespaces to be had.
  static bool possible();

  void cut();
  void mend();
  /// Cuts one direction: messages of b are lost, those of a arrive.
  void cut_one_way();
  void mend_one_way();

  std::string on_a(const std::string& line) const;
  std::string on_b(const std::string& line) const;
  /// Runs `action` on a thread that lives on host "a", and so do the threads that it starts. What
  /// it throws is thrown here.
  void be_on_a(const std::function<void()>& action) const;

 private:
  std::string a_;
  std::string b_;
};

/// A shell command line in the background; killed with SIGKILL when it goes before its end.
class Background {
 public:
  explicit Background(const std::string& line);
  ~Background();
  Background(const Background&) = delete;
  Background& operator=(const Background&) = delete;
  pid_t pid() const { return pid_; }
  /// Waits for the exit code; -1 at the deadline, or when a signal ended the process.
  int wait(std::chrono::milliseconds deadline);

 private:
  pid_t pid_;
};

}  // namespace troupe::testing
