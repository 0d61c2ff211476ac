#pragma once
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "controller/app/cluster.h"
#include "troupe/client.h"

namespace troupe::testing {

/// A cluster of real actors with one thread each, and a client of it. Actors take seconds to start
/// on a busy machine, so test cases share one: see `cluster`.
class SharedCluster {
 public:
  /// `memory_limit`: of each actor, in bytes; 0 = what is free.
  explicit SharedCluster(int actors, std::uint64_t memory_limit = 0);

  Client& client() { return client_; }
  const std::string& endpoint() const { return cluster_.endpoint(); }

  /// Submits and waits; throws with the cause when the job does not succeed.
  JobResult run(const Submission& submission, Client::OnProgress on_progress = nullptr,
                std::chrono::seconds deadline = std::chrono::seconds(600));
  /// The refusal or failure of a submission that must not succeed; throws when it does.
  Error refusal(const Submission& submission);

 private:
  cluster::Cluster cluster_;
  Client client_;
};

/// The eight actors that the test cases of a runner share, started with the first use.
SharedCluster& shared_cluster();

/// Bytes of each actor's own memory, by its number: without files that it maps and what it shares
/// with its peers.
std::map<std::uint32_t, double> private_memory(SharedCluster& cluster);

/// The degrees above 1, as in "cfg 2 pp 3", with the stages that are listed, or "one actor".
std::string name_of(const Parallelism& degrees);

}  // namespace troupe::testing
