#pragma once
#include <cstdint>
#include <string>

namespace troupe::bench {

struct PlayedHostOptions {
  std::string endpoint;  // of the controller
  std::string name;      // of the host
  int actors = 8;
  double task_seconds = 0.005;
};

/// A host that joins a controller with a real link, which carries its actors' links, and starts no
/// process: its actors are played here. They load nothing and compute nothing; each
/// task takes them the given time, one after another in the order of their mailboxes. Returns when
/// the controller has stopped or is lost.
void play_host(const PlayedHostOptions& options);

/// The one actor of the controller's own host, which it starts as a process (ClusterOptions::actors
/// is 1 at least). Takes the arguments of troupe-actor.
int play_local_actor(int argc, const char* const* argv);

}  // namespace troupe::bench
