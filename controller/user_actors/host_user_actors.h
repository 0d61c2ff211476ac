#pragma once
#include <boost/asio/io_context.hpp>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "controller/user_actors/host_processes.h"
#include "transport/control/connection.h"

namespace troupe::user {

/// Users' actors of a host that has joined a cluster: its node agent's part in them, on the
/// controller's orders. For one link to the controller: when that is lost the guest goes, and its
/// processes with it. Lives on the agent's loop.
class HostUserActors {
 public:
  struct Options {
    std::string host;                  // its name in the cluster
    std::vector<std::string> plugins;  // files, each in the place of the controller's of that name
    bool any_plugin = false;  // others are loaded, too, from the paths that the controller names
    HostProcesses::Options processes;
  };
  struct Tools {
    std::function<control::Connection*()> controller;  // null while there is no link
    std::function<void(const std::string&)> refuse;    // the host cannot be used as it is
  };
  /// Throws std::runtime_error when two of its plugins have one name.
  HostUserActors(boost::asio::io_context& io, Options options, Tools tools);

  /// False when the message is none for this room. With `leaving`, nothing new begins.
  bool on_message(const wire::Header& header, std::span<const std::byte> payload, bool leaving);
  std::size_t running() const { return processes_.running(); }
  /// The host is on its way out: no plugin is looked at any more.
  void end_checks() { processes_.end_checks(); }

 private:
  struct Checking {
    wire::Header header;
    std::vector<std::string> files;
    wire::PluginsChecked checked;
  };
  void start(const wire::Header& header, const wire::StartUserProcess& order, bool leaving);
  void check_plugins(const wire::Header& header, const std::vector<std::string>& files);
  void check_next(const std::shared_ptr<Checking>& checking);
  /// The file to load in the place of the controller's. Throws std::runtime_error where whoever
  /// started this host has not named it: what runs here is for him to say.
  std::string plugin_here(const std::string& path) const;
  template <class M>
  void reply(const wire::Header& header, const M& message);

  Options options_;
  Tools tools_;
  std::map<std::string, std::string> own_plugins_;       // by file name
  std::map<std::uint64_t, std::uint64_t> incarnations_;  // by actor
  HostProcesses processes_;
};

}  // namespace troupe::user
