#pragma once
#include <cstdint>
#include <string>
#include <vector>

namespace troupe::cluster {

/// What actors are started on.
struct Ground {
  int cores = 0;                  // that this process may use
  std::uint64_t free_memory = 0;  // bytes; 0 = not known
};

/// Of this host, now.
Ground this_ground();

/// What is to be said before so many actors are started there, a line each: more threads than cores
/// by far, where they compute on the CPU, and more memory than is free before a model is loaded.
/// Pure.
std::vector<std::string> crowding(int actors, int threads_per_actor, const std::string& device,
                                  const Ground& ground);

/// How many of a host's actors may be starting at the same time: each computes while it starts, and
/// more of them would only keep the controller from answering.
int starting_at_once(int cores);

}  // namespace troupe::cluster
