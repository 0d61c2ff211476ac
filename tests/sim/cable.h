#pragma once
#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "controller/deployments/members.h"
#include "transport/control/peer.h"

namespace troupe::sim {

/// A control link of a process: the numbers of both ends, and what is between them.
struct Cable {
  control::PeerId peer = 0;       // as the controller calls it
  std::uint64_t incarnation = 0;  // of the process
  std::uint64_t life = 0;         // of the controller
  cluster::ActorId actor = 0;
  control::SequenceNumbers at_controller, at_actor;
  bool known = false;                     // to the controller's end
  bool up_cut = false, down_cut = false;  // nothing comes through any more
  double up_until = 0, down_until = 0;    // when the last of what is under way arrives
  std::deque<std::string> told;           // the actor's last messages that were no answers
};
using CablePtr = std::shared_ptr<Cable>;

}  // namespace troupe::sim
