#pragma once
#include <cstdint>
#include <map>
#include <string>

#include "controller/hosts/numa.h"

namespace troupe::cluster {

/// Returns the number of GPUs of this host that CUDA shows to a process of this environment. Where
/// their order cannot be told, all that the driver knows.
int visible_gpus();

struct PinOptions {
  std::string how = "numa";  // none | numa
  int actors = 1;            // of this host; on GPUs, the GPUs that they are on
  std::string device = "cpu";
  int threads = 1;        // an actor computes with, or all actors of a GPU
  std::string root = {};  // where sys and proc are looked for; "" = /
};

/// Pins of this host's actors to CPUs, by what the host looked like at first.
class ActorPins {
 public:
  /// Pins no actor.
  ActorPins() = default;
  /// Reads the host's nodes. Throws std::runtime_error when `how` is not known; what cannot be read
  /// costs the pins alone.
  explicit ActorPins(const PinOptions& options);

  /// Returns the pin of an actor on "cpu" or "cuda:N"; null where it has none. Actors on the CPU
  /// are ranked in the order in which they are asked for, and keep their pin.
  const Pin* of(std::uint32_t id, const std::string& device);
  /// Returns why an actor without a pin has none; "" where there is nothing to choose.
  const std::string& why_not() const { return pins_.why_not; }

 private:
  Pins pins_;
  std::map<std::uint32_t, std::size_t> ranks_;  // of actors on the CPU
};

}  // namespace troupe::cluster
