#pragma once
#include <map>
#include <string>

#include "controller/deployments/members.h"
#include "controller/plan/measured.h"
#include "transport/control/server.h"

namespace troupe::cluster {

/// Speeds of the cluster's hosts, and of the links from the controller's host to them, which plans
/// are made for. One actor of each host says what it found (actors/probe.h); links are measured
/// with a few pings as a host joins, some 3 MB in all.
class HostFigures {
 public:
  /// `cores`: of the controller's own host, which is `own`.
  HostFigures(control::Server& server, const std::string& own, int cores);

  /// Takes the figures that an actor of that host brings in its hello.
  void actor_came(const std::string& host, const wire::Hello& hello);
  /// Takes in a host that has joined, and measures its link.
  void host_joined(control::PeerId peer, const std::string& host, const wire::Hello& hello);
  /// Forgets a host whose agent is gone.
  void host_left(control::PeerId peer);
  /// Returns the machine that those make together who take jobs on devices of that kind.
  plan::Machine machine(const Members& members, DeviceKind device) const;

 private:
  /// One ping after another; the quickest count.
  struct Pings {
    control::PeerId peer = 0;
    std::string host;
    int sent = 0;
    double least = 0;  // seconds there and back, of small ones
    double bulk = 0;   // of large ones
  };
  void ping(Pings pings);

  control::Server& server_;
  struct Known {
    plan::HostReport report;
    control::PeerId peer = 0;  // its agent; 0 = the controller's own host
  };
  std::map<std::string, Known> hosts_;
};

}  // namespace troupe::cluster
