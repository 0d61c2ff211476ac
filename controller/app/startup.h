#pragma once
#include <deque>
#include <functional>
#include <optional>
#include <string>

#include "controller/supervision/supervisor.h"

namespace troupe::cluster {

/// Brings the cluster's own places up: starts processes for those that never had one, a few at a
/// time, so that the loop goes on meanwhile, and says when all are ready, or why not.
class Startup {
 public:
  Startup(Members& members, Supervisor& supervisor) : members_(members), supervisor_(supervisor) {}

  /// Adds a place that never had a process.
  void add(ActorId id) { unfilled_.push_back(id); }
  /// Starts further processes, after one has come or gone.
  void fill();
  /// Notes that users' plugins have been looked at: nothing when all may be used, or why one may
  /// not.
  void plugins_checked(const std::optional<std::string>& why);
  void cannot_start(const std::string& why);
  /// Ends the start: the cluster is stopping.
  void stop(const std::string& why);
  /// `handler` is called once, when all actors but drained ones are ready (nothing) or one cannot
  /// be started (why).
  void on_ready(std::function<void(std::optional<std::string>)> handler);
  /// True while somebody waits for the start to end.
  bool under_way() const { return ready_handler_ != nullptr; }
  const std::optional<std::string>& failure() const { return failure_; }

 private:
  void check_ready();
  void answer(const std::optional<std::string>& why);

  Members& members_;
  Supervisor& supervisor_;
  std::deque<ActorId> unfilled_;
  bool plugins_checked_ = false;
  bool stopped_ = false;
  std::optional<std::string> failure_;
  std::function<void(std::optional<std::string>)> ready_handler_;
};

}  // namespace troupe::cluster
