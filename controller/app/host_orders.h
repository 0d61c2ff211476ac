#pragma once
#include <boost/asio/io_context.hpp>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "controller/hosts/local_process_host.h"
#include "controller/user_actors/plugin_check.h"
#include "transport/control/connection.h"

namespace troupe::cluster {

/// Orders of the controller to a host that has joined: processes that begin and end, plugins that
/// are looked at. Serves one link to the controller: when the link is lost the orders go, and their
/// processes with them. Lives on the node agent's loop.
class HostOrders {
 public:
  struct Options {
    LocalProcessHost::Options processes;
    user::PluginCheck::Options check;
    std::vector<std::string> plugins;  // files, each in the place of the controller's of that name
    bool any_plugin = false;  // others are loaded, too, from the paths that the controller names
  };
  struct Tools {
    std::function<control::Connection*()> controller;  // null while there is no link
    std::function<void(const std::string&)> refuse;    // the host cannot be used as it is
    std::function<void()> on_exit;                     // a process has ended, and that was told
    /// Returns this host's CURVE keys for the controller, as text; "" = it asks for none. The
    /// host's actors show these: the next controller knows them, too, while those of the one before
    /// are yet to end.
    std::function<std::string()> keys;
  };
  /// Throws std::runtime_error when two of its plugins have one name, and what LocalProcessHost
  /// throws.
  HostOrders(boost::asio::io_context& io, Options options, Tools tools);

  /// False when the message is no order. With `leaving`, nothing new begins.
  bool on_message(const wire::Header& header, std::span<const std::byte> payload, bool leaving);
  /// Returns the number of processes, checks of plugins among them.
  std::size_t running() const { return processes_.running() + check_.running(); }
  std::size_t running_actors() const { return processes_.running(PeerRole::actor); }
  /// Ends checks of plugins: the host is on its way out.
  void end_checks() { check_.stop(); }

 private:
  struct Checking {
    wire::Header header;
    std::vector<std::string> files;
    wire::PluginsChecked checked;
  };
  void start(const wire::Header& header, wire::StartProcess order, bool leaving);
  void signal(const wire::SignalProcess& order);
  /// Notes a line of an actor. Lines go out together, once a turn of the loop.
  void wrote(std::uint32_t actor, const std::string& line);
  void tell_lines();
  void exited(const ProcessOwner& owner, std::uint64_t incarnation, const ExitCause& cause);
  void check_plugins(const wire::Header& header, const std::vector<std::string>& files);
  void check_next(const std::shared_ptr<Checking>& checking);
  /// Returns the file to load in the place of the controller's. Throws std::runtime_error where
  /// whoever started this host has not named it: what runs here is for him to say.
  std::string plugin_here(const std::string& path) const;
  template <class M>
  void reply(const wire::Header& header, const M& message) {
    if (auto* controller = tools_.controller()) controller->reply(header, message);
  }
  template <class M>
  void tell(const M& message) {
    if (auto* controller = tools_.controller()) controller->send(message);
  }

  boost::asio::io_context& io_;
  Tools tools_;
  std::map<std::uint32_t, std::deque<std::string>> lines_;  // by actor, to be told
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  const bool any_plugin_;
  std::map<std::string, std::string> own_plugins_;  // by file name
  user::PluginCheck check_;
  LocalProcessHost processes_;
};

}  // namespace troupe::cluster
