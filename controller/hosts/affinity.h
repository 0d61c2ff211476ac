#pragma once
#include <string>
#include <vector>

namespace troupe::cluster {

/// Returns the CPUs that the calling thread may use, ascending: its affinity within its control
/// group's cpuset. None where the kernel does not say.
std::vector<int> allowed_cpus();

/// Binds the calling thread, and what the thread spawns for good, to these CPUs alone while the
/// object lives; with none of them, or where the kernel refuses, the thread runs where it ran
/// before.
class OnCpus {
 public:
  explicit OnCpus(const std::vector<int>& cpus);
  ~OnCpus();
  OnCpus(const OnCpus&) = delete;
  OnCpus& operator=(const OnCpus&) = delete;

  /// Returns why the kernel refused; "" when it did not.
  const std::string& error() const { return error_; }

 private:
  std::vector<int> before_;  // empty = nothing was changed
  std::string error_;
};

}  // namespace troupe::cluster
