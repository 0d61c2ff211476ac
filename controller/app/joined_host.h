#pragma once
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "controller/hosts/host_options.h"

namespace troupe::cluster {

struct JoinOptions : HostOptions {
  std::string endpoint;              // of the controller
  std::string keys;                  // as control::keys_for takes them
  std::string name;                  // of this host in the cluster; "" = its own
  std::vector<std::string> plugins;  // files, each in the place of the controller's of that name
  bool any_plugin = false;  // others are loaded, too, from the paths that the controller names
  std::string tensor_host;  // "" = the address by which this host reaches the controller
  std::chrono::seconds wait{60};            // for a controller that is not there, or no more
  std::chrono::seconds drain_deadline{60};  // time for jobs to leave, once `stop` was called
  /// Told what is waited for when it takes longer than a moment. May be empty.
  std::function<void(const std::string&)> on_waiting;
  /// Told when the cluster has drained this host and its last actor has left. May be empty.
  std::function<void()> on_drained;
};

/// Node agent of this host in a process of its own: joins a controller, starts and reaps actors
/// when the controller says so, and goes when the controller is lost or the agent is stopped.
/// `stop` is for any thread.
class JoinedHost {
 public:
  /// Throws std::runtime_error: options that make no sense, no troupe-actor, keys not to be used.
  explicit JoinedHost(JoinOptions options);
  ~JoinedHost();
  JoinedHost(const JoinedHost&) = delete;
  JoinedHost& operator=(const JoinedHost&) = delete;

  /// Joins, tells `on_joined`, and returns when the cluster has stopped or this host has left, with
  /// the reason for people; no actor lives then. When the controller is lost, or stops to be
  /// started again, the actors go, and it is joined anew once it is back. Throws std::runtime_error
  /// when it is refused or finds no controller within `wait`.
  std::string run(const std::function<void()>& on_joined);
  /// Leaves the cluster. The first call: the controller drains this host, jobs that can go on
  /// elsewhere do so at once, and `run` returns when its actors have left or the deadline has
  /// passed. A second call waits for none of this.
  void stop();
  const std::string& name() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace troupe::cluster
