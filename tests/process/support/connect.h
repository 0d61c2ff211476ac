#pragma once
#include <troupe/client.h>

#include <chrono>
#include <stdexcept>
#include <string>
#include <utility>

#include "controller/app/cluster.h"
#include "tests/support/patience.h"

namespace troupe::testing {

inline constexpr std::chrono::seconds kReadyDeadline{180};

/// The value, or an exception that says what did not work.
template <class T>
T take(Result<T> result, const std::string& what) {
  if (!result) throw std::runtime_error("[tests] " + what + ": " + result.error().what);
  return std::move(result.value());
}

inline Client connect_to(const cluster::Cluster& cluster) {
  return take(Client::connect(cluster.endpoint(), kPatience), "connect");
}

/// Waits until every actor of the cluster is there.
inline Client connect_when_ready(cluster::Cluster& cluster) {
  cluster.wait_ready(kReadyDeadline);
  return connect_to(cluster);
}

}  // namespace troupe::testing
