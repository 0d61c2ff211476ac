#pragma once
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "controller/hosts/host_options.h"

namespace troupe::cluster {

struct ClusterOptions : HostOptions {
  std::string listen;     // "" = ipc in a private folder
  std::string model;      // default model folder; may be empty
  bool insecure = false;  // tcp: ask nobody for keys, also beyond loopback
  /// Numeric address at which the actors' tensor plane listens for other hosts; "" = that of
  /// `listen` where it is numeric, else 127.0.0.1.
  std::string tensor_host;
  /// Folder of keys for tcp (`troupe keys`); "" = on loopback this user's own (key_folder.h),
  /// unless `insecure`.
  std::string keys;
  /// Folders whose models clients may name, with what is below; nothing = any folder.
  std::optional<std::vector<std::string>> allow_models;
  int max_queued_jobs = 64;
  int max_jobs_together = 4;  // jobs that may share one deployment's actors at a time
  int max_batch = 8;          // pictures of jobs that compute as one; 1 = none do
  std::uint64_t prompt_cache_bytes = 64'000'000;  // of encoded prompts at each actor that encodes
                                                  // for a deployment; 0 = none is kept
  int max_recoveries = 3;            // losses that a job outlives without a step between them
  int max_respawns = -1;             // new processes for a place whose process ended; -1 = no limit
  bool logs = false;                 // what goes wrong goes to standard error, too
  std::string journal;               // folder that jobs are kept in; "" = in memory alone
  bool journal_salvage = false;      // goes on with what can be read of a damaged journal.db
  std::vector<std::string> plugins;  // shared libraries with users' actors (docs/actors.md)
  int metrics_port = -1;  // answers GET /metrics on 127.0.0.1; 0 = any free port, -1 = none
  std::chrono::seconds rejoin_deadline{300};  // of jobs for which too few actors are left
  std::chrono::seconds task_deadline{600};    // without any progress of a busy actor's work loop
  std::chrono::seconds start_deadline{120};   // from an actor's spawn to its hello
};

/// The controller with its local node agent, on a thread of its own. Thread-safe.
class Cluster {
 public:
  /// Binds and spawns; throws std::runtime_error, one line: port in use, folder open to others, no
  /// troupe-actor, …
  explicit Cluster(ClusterOptions options);
  /// Stops, if nobody has yet.
  ~Cluster();
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  /// Endpoint that clients connect to, with the real port.
  const std::string& endpoint() const;
  /// The real port of the metrics; 0 without them.
  std::uint16_t metrics_port() const;
  /// Returns when every actor said hello; throws std::runtime_error naming the actor and why when
  /// one cannot start, or when the deadline passes.
  void wait_ready(std::chrono::milliseconds deadline);
  /// Returns when the cluster has stopped, by `stop` or because a client asked for it. Throws
  /// std::runtime_error when the controller failed and stopped by itself.
  void run_until_stopped();
  /// Ends jobs, actors and the controller; returns when nothing is left. With a journal its jobs
  /// and the hosts that joined wait for the next controller, unless a client has asked for the
  /// cluster's end. From a normal thread, not a signal handler.
  void stop();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace troupe::cluster
