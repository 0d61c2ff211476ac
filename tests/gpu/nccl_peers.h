#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

namespace troupe::testing {

/// Running `gpu_nccl_peer` processes that share one GPU: each believes itself on a host of its own
/// (NCCL_HOSTID), so that NCCL lets them. Killed with this.
class NcclPeers {
 public:
  explicit NcclPeers(int count);
  ~NcclPeers();
  NcclPeers(const NcclPeers&) = delete;
  NcclPeers& operator=(const NcclPeers&) = delete;

  /// Has the first `size` of them run the scenario, and returns what each said.
  std::vector<std::string> run(const std::string& scenario, int size,
                               std::chrono::seconds limit = std::chrono::seconds(50));
  /// Same as `run`, but kills the last peer after a while; returns what the others said.
  std::vector<std::string> run_and_kill_last(const std::string& scenario,
                                             std::chrono::milliseconds after);

 private:
  struct Peer {
    pid_t pid;
    int input;
    int output;
    std::string buffer;
    std::string address;
  };
  void tell(const std::string& scenario, int size);
  static std::string line_of(Peer& peer, std::chrono::steady_clock::time_point deadline);

  std::vector<Peer> peers_;
  int runs_ = 0;
};

}  // namespace troupe::testing
