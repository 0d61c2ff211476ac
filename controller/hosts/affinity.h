#pragma once
#include <string>
#include <vector>

namespace troupe::cluster {

/// CPUs that the calling thread may use, ascending: its affinity within its control group's cpuset.
/// None where the kernel does not say.
std::vector<int> allowed_cpus();

/// While it lives the calling thread, and what it spawns for good, runs on these CPUs alone; with
/// none of them, or where the kernel refuses, where it ran before.
class OnCpus {
 public:
  explicit OnCpus(const std::vector<int>& cpus);
  ~OnCpus();
  OnCpus(const OnCpus&) = delete;
  OnCpus& operator=(const OnCpus&) = delete;

  /// Why the kernel refused; "" when it did not.
  const std::string& error() const { return error_; }

 private:
  std::vector<int> before_;  // empty = nothing was changed
  std::string error_;
};

}  // namespace troupe::cluster
