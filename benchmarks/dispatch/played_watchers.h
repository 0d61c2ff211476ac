#pragma once
#include <string>

namespace troupe::bench {

struct PlayedWatchersOptions {
  std::string endpoint;  // of the controller
  int watchers = 0;      // clients, with a link each
  int jobs = 1;          // client i follows job 1 + i % jobs
};

/// Clients that follow jobs, as `troupe wait` does, in one process. Prints "ready" once all have
/// their links, and how many messages about jobs they heard once all their jobs have ended.
void play_watchers(const PlayedWatchersOptions& options);

}  // namespace troupe::bench
