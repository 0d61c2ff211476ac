#pragma once
#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "controller/actors/host_processes.h"
#include "controller/actors/user_actors.h"

namespace troupe::user {

/// Users' actors of a controller, whole: the table and its shell, the processes of this host, the
/// plugins. Lives on the controller's loop.
class UserRoom {
 public:
  struct Options {
    std::vector<std::string> plugins;  // files
    std::string host;                  // this machine's name
    double cores = 0;                  // of this machine
    std::vector<std::int32_t> gpus;    // that users' actors may have
    HostProcesses::Options processes;
    std::function<void(const std::string&)> note;
    std::function<void()> on_exit;  // a process of the room has ended
  };
  UserRoom(boost::asio::io_context& io, cluster::Outside& outside, Options options);

  /// Looks at the plugins; `done` gets nothing when all may be used, or one line why one may not.
  void check_plugins(std::function<void(std::optional<std::string>)> done);

  UserActors& actors() { return actors_; }
  std::size_t running() const { return processes_.running(); }
  /// Ends all of its processes; `on_exit` tells of each.
  void stop() { actors_.stop(); }

 private:
  void check_next(std::size_t index);

  Options options_;
  HostProcesses processes_;
  UserActors actors_;
  std::function<void(std::optional<std::string>)> checked_;
};

}  // namespace troupe::user
