#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "controller/deployments/environment.h"
#include "controller/deployments/members.h"
#include "controller/deployments/memory_room.h"
#include "controller/plan/plan.h"

namespace troupe::cluster {

/// A checkpoint: its folder, the state of its files (models/spec/fingerprint.h) and what is added
/// to its weights and beside them. Replaced in place, or with other LoRAs, scales or ControlNets,
/// it is another one.
struct Model {
  std::string folder;
  std::uint64_t fingerprint = 0;  // 0 = not known
  std::vector<wire::LoraFile> loras = {};
  std::vector<wire::ControlNetFolder> controlnets = {};

  bool operator==(const Model&) const = default;
};

/// model × mesh × stage split, loaded at its actors with the groups between them. Jobs with the
/// same needs share it. Its epoch ends when a member is lost or a task fails; then it prepares
/// itself again, with the weights that are still there.
struct Deployment {
  enum class State { preparing, ready, gone };
  /// State of the weights at one rank.
  struct Holding {
    std::uint64_t asked = 0;   // incarnation that was told to load
    std::uint64_t loaded = 0;  // incarnation that has loaded
    std::uint64_t weight_bytes = 0;
  };

  std::uint64_t id = 0;
  std::uint64_t epoch = 0;
  State state = State::preparing;
  Model model;
  ComputeType dtype = ComputeType::float32;
  WeightChoice weight_dtype = WeightChoice::as_computed;
  OffloadChoice offload = OffloadChoice::none;
  mesh::Degrees degrees;
  std::vector<plan::Stage> stages;
  std::vector<plan::GroupPlan> groups;
  std::vector<ActorId> actor_of_rank;
  std::vector<Holding> holdings;  // by rank
  std::vector<MemoryNeed> needs;  // by rank, of the job that the deployment was loaded for
  /// Bytes of text encoders by rank that stay there once they have been used; 0 = none stay.
  std::vector<std::uint64_t> encoders;
  /// Bytes of the second of two transformers by rank where both stay; 0 = the one that computes is
  /// there alone.
  std::vector<std::uint64_t> seconds;
  /// Jobs that have it now: bytes that each needs beside the weights, by rank.
  std::map<std::uint64_t, std::vector<std::uint64_t>> jobs;
  double load_seconds = 0;  // of the slowest actor
  double last_used = 0;
  int failed_connects = 0;  // in a row
  std::size_t connected = 0;
  bool connecting = false;
  std::string gap;  // why one of its places stays empty

  /// Returns a hash that is the same for all deployments which compute the same in as many parts,
  /// also when one is loaded anew: files, types, mesh and stages. LoRAs change values only.
  std::uint64_t kind() const;
  std::uint64_t weight_bytes() const;
  /// Returns how many jobs it may have at once, of `most`: one where its two transformers take
  /// turns in memory, which jobs at different steps would make them do all the time.
  std::size_t most_jobs(std::size_t most) const;
  /// Bytes that plans foresee at the actor of a rank, but for what can be given up at any time.
  std::uint64_t bytes_at(std::size_t rank) const;
};

/// Hears what becomes of deployments and of the actors that they are at.
class DeploymentListener {
 public:
  virtual ~DeploymentListener() = default;
  /// The deployment is ready, for the first time or again in a new epoch.
  virtual void deployment_ready(const std::shared_ptr<Deployment>&) {}
  /// The deployment is gone.
  virtual void deployment_failed(const std::shared_ptr<Deployment>&, const wire::Failure&) {}
  /// An actor is done with what it did before.
  virtual void actor_free(ActorId) {}
  /// An actor does not answer the end of its epoch.
  virtual void actor_stuck(ActorId) {}
};

/// Loads deployments onto actors, connects their groups, repairs them, and takes them down again.
/// What is to be done next follows from the state alone (`advance`), whatever happened before.
///
/// An actor keeps parts of several deployments, as many as its memory holds, and has jobs of one at
/// a time: loading and connecting would hold up the others' jobs.
class Deployments {
 public:
  using Ptr = std::shared_ptr<Deployment>;

  /// `prompt_cache_bytes`: bytes of encoded prompts that each actor of a deployment keeps at most.
  Deployments(Environment& environment, Members& members, std::uint64_t prompt_cache_bytes = 0)
      : environment_(environment), members_(members), prompt_cache_bytes_(prompt_cache_bytes) {}
  void listen(DeploymentListener& listener) { listeners_.push_back(&listener); }

  /// Returns a deployment for a job of this plan that asks nobody to load: one that has no job now,
  /// or else the one with the fewest jobs, fewer than `max_jobs`. It has room for the job, perhaps
  /// in the place of others that nobody uses.
  Ptr find(const Model& model, const plan::Plan& plan, std::size_t max_jobs) const;
  /// Enough idle actors for the plan's ranks, large enough for them, or nothing. Those that keep no
  /// deployment come first, then those with room for one more, then those whose deployments have
  /// not been used for longest; of these as many kinds as `beside` allows.
  enum class Beside { nothing, keep_loaded, evict_idle };
  std::optional<std::vector<ActorId>> choose_actors(const plan::Plan& plan, Beside beside) const;
  /// Returns how many jobs of this plan could begin side by side on idle actors, each large enough
  /// for any of its ranks.
  int places_for(const plan::Plan& plan) const;
  /// Begins to load at the actors. They unload as much of what they keep as makes room for the
  /// plan.
  Ptr load(const Model& model, const plan::Plan& plan, std::vector<ActorId> actors);
  /// Gives the deployment and its actors to the job; other deployments make room for it. It fits:
  /// `find` or `choose_actors` said so. Where the job's text encoders fit in as well, they stay.
  void enter(const Ptr& deployment, std::uint64_t job, const plan::Plan& plan);
  /// Takes the actors back from the job; `deployment` may be null.
  void leave(const Ptr& deployment, std::uint64_t job);
  /// Returns a rank of the plan that is too large for all actors, whatever they keep now; nothing
  /// also when there are too few of them.
  std::optional<Shortage> shortage(const plan::Plan& plan) const;
  /// Returns what a job of this plan waits for, in words.
  std::string waits_for(const Model& model, const plan::Plan& plan, std::size_t max_jobs) const;
  /// Ends the epoch: its operations end with this cause everywhere. Then it prepares itself anew.
  void begin_anew(const Ptr& deployment, const std::string& why);
  /// Ends the deployment for good. Its actors are not idle before they have answered; those that do
  /// not in time are stuck.
  void take_down(const Ptr& deployment, const std::string& why);

  /// The place has a ready process; what waits for it goes on.
  void actor_ready(ActorId id);
  /// The place will not be filled again: a deployment that waits for it fails, unless an idle actor
  /// takes it.
  void actor_gone(ActorId id, const std::string& why);

  Ptr get(std::uint64_t id) const;
  /// Returns all deployments that the actor keeps a part of, the least recently used first and the
  /// one that it has jobs of last.
  std::vector<Ptr> at(ActorId id) const;
  /// Returns the deployment that the actor has jobs of; null when it has no jobs.
  Ptr in_use(ActorId id) const;
  /// True when all actors of the deployment are ready.
  bool all_ready(const Deployment& deployment) const;
  /// True when some of the deployment's actors have jobs of another deployment.
  bool shares_actors(const Deployment& deployment) const;
  /// Bytes that plans foresee at the actor for what it keeps and does.
  std::uint64_t held(ActorId id) const;
  /// True when the rank's part fits into what the place may hold.
  bool suits(const Deployment& deployment, std::size_t rank, ActorId id) const;
  /// True when one of the deployment's actors is leaving.
  bool is_drained(const Deployment& deployment) const;
  /// True when the actor was told to load or to connect and is not done with it.
  bool preparing(ActorId id) const;
  bool preparing(ActorId id, const Deployment& deployment) const;

 private:
  bool matches(const Deployment& deployment, const Model& model, const plan::Plan& plan) const;
  Room room_of(ActorId id) const;
  /// Returns the deployment's actors as rooms, with the bytes that a job of these needs would bring
  /// to each.
  std::vector<Room> rooms_for(const Deployment& deployment,
                              const std::vector<MemoryNeed>& needs) const;
  void make_room(const std::vector<Room>& rooms, std::uint64_t keep);
  /// Lets the rank's text encoders, so many bytes, stay if there is room for them once the text
  /// encoders of unused deployments have gone.
  void let_encoders_stay(Deployment& deployment, std::size_t rank, std::uint64_t bytes);
  /// Makes room at an actor for both transformers of a part that is to be loaded, once text
  /// encoders of others have gone; returns the second's bytes, or 0 where only one of them fits.
  std::uint64_t room_for_second(ActorId id, const MemoryNeed& need);
  void give_up(const std::vector<Evictions::Encoders>& encoders);
  void advance(const Ptr& deployment);
  /// Chooses as many of the actors, which come least used first, as there are ranks, by
  /// mesh/placement.h: the axes that exchange most stay inside a host. Returns them by rank.
  std::vector<ActorId> gather(const std::vector<ActorId>& from, const mesh::Degrees& degrees) const;
  /// Returns the group's backend: shm inside a host, tcp between hosts, nccl on GPUs.
  std::string backend_of(const Deployment& deployment, const plan::GroupPlan& group) const;
  /// True when a spare took a place.
  bool fill_places(Deployment& deployment);
  std::optional<ActorId> spare_for(const Deployment& deployment, std::size_t rank) const;
  /// Returns whether there are actors for all places that nobody will fill again. Those that keep
  /// unused deployments let go of them.
  bool can_be_whole(const Deployment& deployment);
  std::string why_empty(const Deployment& deployment) const;
  void replace(Deployment& deployment, std::size_t rank, ActorId by);
  void load_rank(const Ptr& deployment, std::size_t rank);
  void connect_groups(const Ptr& deployment);
  void group_answer(const Ptr& deployment, std::uint64_t epoch, ActorId actor,
                    const control::Reply& reply);
  void fail(const Ptr& deployment, const wire::Failure& failure);
  void end_epoch(ActorId actor, std::uint64_t epoch, const std::string& why);

  Environment& environment_;
  Members& members_;
  std::uint64_t prompt_cache_bytes_;
  std::vector<DeploymentListener*> listeners_;
  std::uint64_t next_id_ = 1;
  std::uint64_t next_epoch_ = 1;
  std::map<std::uint64_t, Ptr> deployments_;
};

}  // namespace troupe::cluster
