#pragma once
#include <chrono>
#include <string>

namespace troupe::cli {

/// Says on standard error what is to be known before so many actors are started on this host.
/// Throws std::runtime_error where its free memory does not hold them.
void check_crowding(int actors, int threads_per_actor, const std::string& device);

/// How long all of them may take to start: they do so a few at a time, and each computes meanwhile.
std::chrono::seconds ready_deadline(int actors);

}  // namespace troupe::cli
