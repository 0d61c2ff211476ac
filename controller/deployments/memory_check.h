#pragma once
#include <functional>
#include <optional>
#include <string>

#include "controller/deployments/memory_room.h"
#include "controller/plan/plan.h"
#include "controller/plan/planner.h"

namespace troupe::cluster {

/// Returns why a plan is refused: which rank needs how much, of what, and what there is.
std::string too_large(const plan::Plan& plan, const Shortage& lack, const std::string& actor);

/// Returns what `--parallel auto` picks where actors may hold so many bytes: on two actors, else on
/// four, and so on up to `actors`; nothing where no mix that the planner looks at fits. Pure, but
/// may plan hundreds of mixes.
std::optional<wire::Parallelism> fitting_mix(const spec::ModelSpec& model,
                                             const wire::ImageRequest& request, int actors,
                                             const plan::Machine& machine, std::uint64_t bytes);

/// Returns what would fit instead, in words: the least pp, else tp, else actors that decode
/// together, on so many actors; else the degrees that `mix` finds; else decoding by tiles, else
/// half the bytes for a value; or that nothing of these does, on `among`: so many actors where that
/// is empty. Without `mix` the text says who looks for one. Stages are split as on `machine`. Pure
/// but for `fits` and `mix`.
std::string memory_remedy(const spec::ModelSpec& model, const wire::JobSpec& job, int actors,
                          const std::function<bool(const plan::Plan&)>& fits,
                          const std::string& among = {},
                          const std::function<std::optional<wire::Parallelism>()>& mix = {},
                          const plan::Machine& machine = {});

}  // namespace troupe::cluster
