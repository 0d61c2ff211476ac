#pragma once
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "controller/plan/machine.h"

namespace troupe::plan {

/// Speeds that an actor's probe found of its device (actors/probe.h). 0 = not measured.
struct Measured {
  double half_flops = 0;
  double float_flops = 0;
  double attention_flops = 0;  // in the type in which products are quickest
  double bandwidth = 0;        // bytes/s, of what reads and writes
  double launch = 0;
  Interconnect inside;  // to another actor of its host

  /// Reads the speeds from a hello's attributes ("measured.float_flops" and so on). Nothing where
  /// there are none, or where one is no number of its kind: above 0 and finite.
  static std::optional<Measured> from(const std::map<std::string, std::string>& attributes);
};

/// One host of a cluster, as its agent and its first actor tell of it.
struct HostReport {
  std::string name;
  int actors = 0;                    // actors that take jobs
  int cores = 0;                     // 0 = not known
  int threads = 1;                   // threads of an actor
  std::optional<Measured> measured;  // speeds of one actor's device
  std::string gpu;                   // its GPUs' name, as an actor told it; "" = not told
  std::string why_not;               // why there are no figures; "" = no actor has told yet
  bool remote = false;
  std::optional<Interconnect> link;  // of a remote host, to the controller's
  std::string why_no_link;           // "" = not told yet
};

/// Returns the machine that hosts make together: each device is as slow as the slowest that was
/// measured, as are links inside hosts and between them. What was not measured is as in
/// machine_here, of GPUs by their names as in machine_of_gpu. The machine's notes say what is
/// which. Pure.
Machine machine_of_hosts(DeviceKind device, std::vector<HostReport> hosts);

}  // namespace troupe::plan
