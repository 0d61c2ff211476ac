#pragma once
#include <map>
#include <string>

#include "controller/deployments/members.h"
#include "controller/plan/measured.h"
#include "transport/control/server.h"

namespace troupe::cluster {

/// How fast the cluster's hosts are, and the links from the controller's to them: what plans are
/// made for. One actor of each host says what it found (actors/probe.h); links are measured with a
/// few pings as a host joins, some 3 MB in all.
class HostFigures {
 public:
  /// `cores`: of the controller's own host, which is `own`.
  HostFigures(control::Server& server, const std::string& own, int cores);

  /// An actor of that host has come.
  void actor_came(const std::string& host, const wire::Hello& hello);
  /// A host has joined. Its link is measured.
  void host_joined(control::PeerId peer, const std::string& host, const wire::Hello& hello);
  /// That host's agent is gone: nothing is known of it any more.
  void host_left(control::PeerId peer);
  /// The machine that those make together who take jobs on devices of that kind.
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
