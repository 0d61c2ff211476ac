#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "transport/tensor/fd.h"

namespace troupe::tensor::testing {

/// A running `tensor_peer`, killed with its handle.
class PeerProcess {
 public:
  explicit PeerProcess(const std::vector<std::string>& arguments);
  ~PeerProcess();
  PeerProcess(PeerProcess&& other) noexcept;

  /// Reads the process's next line; throws after ten seconds.
  std::string line();
  void say(const std::string& text);
  void signal(int number);
  /// Returns once the process has ended, and leaves it to be reaped.
  void await_end() const;

 private:
  UniqueFd input_;
  UniqueFd output_;
  std::string buffer_;
  pid_t pid_ = -1;
};

}  // namespace troupe::tensor::testing
