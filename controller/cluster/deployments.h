#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "controller/cluster/members.h"
#include "controller/plan/plan.h"
#include "transport/control/server.h"

namespace troupe::cluster {

/// A checkpoint: its folder, and the state of its files (models/spec/fingerprint.h). Replaced in
/// place it is another one.
struct Model {
  std::string folder;
  std::uint64_t fingerprint = 0;  // 0 = not known

  bool operator==(const Model&) const = default;
};

/// model × mesh × stage split, loaded at its actors with the groups between them. Jobs with the
/// same needs share it.
struct Deployment {
  std::uint64_t id = 0;
  std::uint64_t epoch = 0;
  Model model;
  std::string dtype;
  mesh::Degrees degrees;
  std::vector<plan::Stage> stages;
  std::vector<plan::GroupPlan> groups;
  std::vector<ActorId> actor_of_rank;
  std::uint64_t weight_bytes = 0;  // over all actors
  double load_seconds = 0;         // of the slowest actor
  bool ready = false;
};

/// Loads deployments onto actors, connects their groups, and takes them down again. Lives on the
/// controller's loop.
class Deployments {
 public:
  /// Empty failure = success.
  using OnReady =
      std::function<void(std::shared_ptr<Deployment>, const std::optional<wire::Failure>&)>;

  struct Events {
    std::function<void()> on_free;  // an actor is done with a deployment that was taken down
    std::function<void(ActorId)> on_stuck;  // it does not answer the end of its epoch
  };

  Deployments(control::Server& server, Members& members, Events events)
      : server_(server), members_(members), events_(std::move(events)) {}

  /// The ready deployment whose actors are all without a job and fit this plan, or nothing.
  std::shared_ptr<Deployment> find_idle(const Model& model, const plan::Plan& plan) const;
  /// Enough idle actors for this many ranks, those that keep no deployment first; or nothing.
  std::optional<std::vector<ActorId>> choose_actors(int world) const;
  /// Loads weights at the actors, then connects the groups. Whatever the actors kept before is
  /// unloaded. `on_ready` is called once. On failure nothing half-loaded remains.
  std::shared_ptr<Deployment> load(const Model& model, const plan::Plan& plan,
                                   std::vector<ActorId> actors, OnReady on_ready);
  /// Ends the deployment's epoch at all its actors and forgets it there. They are not idle before
  /// they have answered; those that do not in time are stuck.
  void take_down(const std::shared_ptr<Deployment>& deployment, const std::string& why);
  std::shared_ptr<Deployment> get(std::uint64_t id) const;

 private:
  struct Loading;
  void load_stages(const std::shared_ptr<Loading>& loading);
  void connect_groups(const std::shared_ptr<Loading>& loading);
  void count(const std::shared_ptr<Loading>& loading, ActorId actor, const control::Reply& reply,
             void (Deployments::*next)(const std::shared_ptr<Loading>&));
  void finish(const std::shared_ptr<Loading>& loading);
  void end_epoch(ActorId actor, std::uint64_t epoch, const std::string& why);

  control::Server& server_;
  Members& members_;
  Events events_;
  std::uint64_t next_id_ = 1;
  std::uint64_t next_epoch_ = 1;
  std::map<std::uint64_t, std::shared_ptr<Deployment>> deployments_;
};

}  // namespace troupe::cluster
