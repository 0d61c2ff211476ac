#pragma once
#include <functional>
#include <string>

#include "controller/cluster/memory_room.h"
#include "controller/plan/plan.h"

namespace troupe::cluster {

/// Why a plan is refused: which rank needs how much, of what, and what there is.
std::string too_large(const plan::Plan& plan, const Shortage& lack, const std::string& actor);

/// What would fit instead, in words: the least pp, else tp, else actors that decode together, on so
/// many actors; else decoding by tiles, else half the bytes for a value; or that nothing of these
/// does, on `among`: so many actors where that is empty. Pure but for `fits`.
std::string memory_remedy(const spec::ModelSpec& model, const wire::JobSpec& job, int actors,
                          const std::function<bool(const plan::Plan&)>& fits,
                          const std::string& among = {});

}  // namespace troupe::cluster
