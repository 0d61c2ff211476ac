#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "controller/hosts/host_options.h"

namespace troupe::cluster {

/// Cores and memory of a host that actors are started on.
struct HostCapacity {
  int cores = 0;                             // that this process may use
  std::optional<std::uint64_t> free_memory;  // bytes, within its control groups' limits, if known
};

/// Returns the capacity of this host, now. `root` as in available_memory.
HostCapacity local_capacity(const std::filesystem::path& root = "/");

/// Returns this host's GPUs from number `first_gpu` on: those that users' actors may have.
std::vector<std::int32_t> local_gpus(int first_gpu);

/// Returns a warning for so many actors on such a host: that they have more threads than cores by
/// far, where they compute on the CPU. Pure.
std::optional<std::string> crowding(int actors, int threads_per_actor, const std::string& device,
                                    const HostCapacity& capacity);

/// Returns why so many actors cannot be started on such a host: they take more memory than is free
/// before any model is loaded, so that the kernel would kill whom it likes. Nothing where the free
/// memory is not known. Pure.
std::optional<std::string> too_crowded(int actors, const HostCapacity& capacity);

/// Returns how many of a host's actors may be starting at the same time: each computes while it
/// starts, and more of them would only keep the controller from answering.
int starting_at_once(int cores);

/// Asks an actor process whether the last device that the host's actors are on is there; a CPU
/// always is. Throws std::runtime_error naming what is missing. Takes as long as an actor takes to
/// start, a minute at most.
void check_device(const HostOptions& host);

}  // namespace troupe::cluster
