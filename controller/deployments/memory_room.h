#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/text.h"
#include "controller/deployments/members.h"
#include "controller/plan/plan.h"
#include "controller/plan/planner.h"

namespace troupe::cluster {

/// Bytes that a rank of a plan needs at its actor: `weights`, the decoder's among them, as long as
/// the actor keeps its deployment, `working` beside them while a job runs. `encoders`: the bytes of
/// its text encoders' weights where there is room for them, too; nothing depends on it. `second`:
/// likewise those of the second of two transformers.
struct MemoryNeed {
  std::uint64_t weights = 0;
  std::uint64_t working = 0;
  std::uint64_t encoders = 0;
  std::uint64_t second = 0;

  std::uint64_t total() const { return weights + working; }
};

/// Returns the needs of a plan's ranks, by world rank.
std::vector<MemoryNeed> needs_of(const plan::Plan& plan);

/// A deployment's part at one actor.
struct Resident {
  std::uint64_t deployment = 0;
  std::uint64_t weights = 0;
  std::uint64_t working = 0;   // of all its jobs
  std::uint64_t encoders = 0;  // text encoders that stay until their room is needed
  double last_used = 0;
  bool in_use = false;  // it has jobs: it is never let go of
};

/// An actor and what it keeps.
struct Room {
  ActorId actor = 0;
  std::uint64_t limit = kNoLimit;  // bytes
  std::uint64_t wanted = 0;        // bytes that are to come in
  bool newcomer = false;           // what comes in is another resident
  std::vector<Resident> residents;

  std::uint64_t held() const;
  /// Bytes of `held` that are text encoders.
  std::uint64_t encoders() const;
};

/// Most deployments that an actor keeps, however little memory they take: each has groups, and
/// groups have file descriptors.
inline constexpr std::size_t kMostResidents = 4;

/// Text encoders and deployments that are let go of.
struct Evictions {
  struct Encoders {
    ActorId actor = 0;
    std::uint64_t deployment = 0;
    bool operator==(const Encoders&) const = default;
  };
  std::vector<Encoders> encoders;          // text encoders alone, of deployments that stay
  std::vector<std::uint64_t> deployments;  // whole ones

  bool empty() const { return encoders.empty() && deployments.empty(); }
};

/// Chooses what has to go so that what is wanted fits in everywhere. At the actors that lack room
/// first text encoders go, of deployments in use last, then unused deployments; of both the least
/// recently used first, until there is enough. Nothing when all of them together would not do.
/// Deployment `keep` stays.
std::optional<Evictions> evictions(const std::vector<Room>& rooms, std::uint64_t keep = 0);

/// A rank that no actor can take, even if it had nothing else.
struct Shortage {
  int rank = 0;
  std::uint64_t needs = 0;
  ActorId actor = 0;  // the roomiest that is left for it
  std::uint64_t limit = 0;
};

/// Actors that take jobs, also while their next process is still to come, and the bytes that each
/// may hold, by kind of device.
using Capacity = std::map<DeviceKind, std::vector<std::pair<ActorId, std::uint64_t>>>;
Capacity capacity_of(const Members& members);

/// Returns a rank of the plan that is too large for all of these actors, whatever they keep now;
/// nothing also when there are too few of them.
std::optional<Shortage> shortage(const Capacity& capacity, const plan::Plan& plan);

/// Assigns these actors to ranks when memory alone decides: the rank that needs most gets the actor
/// with the highest limit. With fewer actors than ranks, or where one does not fit: nothing, and
/// `why` says which rank.
std::optional<std::vector<ActorId>> by_memory(const std::vector<MemoryNeed>& needs,
                                              std::vector<std::pair<ActorId, std::uint64_t>> limits,
                                              std::optional<Shortage>* why = nullptr);

/// Returns how many parts that need so many bytes find an actor of their own at most; limits as in
/// Room.
std::size_t most_placed(std::vector<std::uint64_t> needs, std::vector<std::uint64_t> limits);

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
