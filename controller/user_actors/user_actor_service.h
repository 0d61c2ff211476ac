#pragma once
#include <boost/asio/io_context.hpp>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "controller/user_actors/plugin_check.h"
#include "controller/user_actors/user_actors.h"

namespace troupe::user {

/// Users' actors of a controller, whole: the table and its shell, the plugins of all hosts. Lives
/// on the controller's loop.
class UserActorService {
 public:
  struct Options {
    std::vector<std::string> plugins;  // files
    std::string host;                  // this machine's name
    double cores = 0;                  // of this machine
    std::vector<std::int32_t> gpus;    // that users' actors may have
    PluginCheck::Options check;
    UserActors::Access access;  // of their processes
    bool keyed = false;         // actors' doors ask for CURVE keys
    /// Same as in UserActors::Tools.
    std::function<cluster::ProcessHost*(const std::string& host)> process_host;
    std::function<void(const std::string&)> note;
    std::function<void()> on_checked;  // a plugin's check has ended
  };
  UserActorService(boost::asio::io_context& io, cluster::Environment& environment, Options options);

  /// Looks at the plugins; `done` gets nothing when all may be used, or one line why one may not.
  void check_plugins(std::function<void(std::optional<std::string>)> done);

  /// Takes in the host of a node agent that has joined. It gets actors once its plugins have been
  /// looked at.
  void host_joined(const std::string& host, const control::PeerInfo& agent);
  /// Removes a host that is lost. Must be called before the ends of its processes are told.
  void host_lost(const std::string& host);

  UserActors& actors() { return actors_; }
  /// Returns the number of checks of plugins.
  std::size_t running() const { return check_.running(); }
  /// Same as UserActors::drain_host, but also for a host whose plugins are still being looked at.
  std::string drain_host(const std::string& name, bool now);
  /// Ends all processes and checks.
  void stop(const std::string& why);

 private:
  void check_next(std::size_t index);
  void host_checked(Host host, wire::PluginsChecked checked);
  void enter(Host host, const wire::PluginsChecked& checked);
  cluster::Environment& environment_;
  Options options_;
  PluginCheck check_;
  UserActors actors_;
  struct Joining {
    Host host;
    wire::PluginsChecked checked;
  };
  std::vector<wire::PluginReport> reports_;  // of this host's plugins
  std::map<std::string, Joining> joining_;   // hosts that were done with theirs sooner, by name
  std::set<std::string> drained_;            // hosts
  std::function<void(std::optional<std::string>)> checked_;
};

}  // namespace troupe::user
