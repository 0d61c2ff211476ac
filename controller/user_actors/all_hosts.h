#pragma once
#include <functional>
#include <map>
#include <string>

#include "controller/deployments/environment.h"
#include "controller/user_actors/host_launcher.h"
#include "controller/user_actors/host_processes.h"

namespace troupe::user {

/// The processes of users' actors on every host: those of the controller's own directly, those of
/// joined hosts over the links to their node agents. A host that is lost has lost its processes.
class AllHosts final : public HostLauncher {
 public:
  struct Tools {
    cluster::Environment& environment;
    HostLauncher& own;
    std::string own_host;
    Access access;  // of the processes of joined hosts
    std::function<void(std::uint64_t id, std::uint64_t incarnation, std::uint32_t pid)> on_started;
    HostProcesses::OnExit on_exit;
  };
  explicit AllHosts(Tools tools) : tools_(std::move(tools)) {}

  std::uint32_t spawn(const HostLaunch& launch) override;
  void kill(const std::string& host, std::uint64_t id, const std::string& why) override;

  void joined(const std::string& host, control::PeerId peer) { agents_[host] = {peer, {}}; }
  void lost(const std::string& host, const std::string& why);
  /// Of that host's agent.
  void ended(const std::string& host, const wire::UserProcessEnded& ended);
  /// Processes of joined hosts.
  std::size_t running() const;

 private:
  struct Agent {
    control::PeerId peer = 0;
    std::map<std::uint64_t, std::uint64_t> processes;  // incarnation by actor
  };
  void gone(const std::string& host, std::uint64_t id, std::uint64_t incarnation,
            const HostExit& how);

  Tools tools_;
  std::map<std::string, Agent> agents_;
};

}  // namespace troupe::user
