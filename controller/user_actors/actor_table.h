#pragma once
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "transport/wire/user_messages.h"

namespace troupe::user {

using UserActorId = std::uint64_t;

/// Owner of an actor: the actor ends with it.
struct Owner {
  enum class Kind { nobody, client, actor };
  Kind kind = Kind::nobody;
  std::uint64_t id = 0;  // peer of a client, id of an actor
  bool operator==(const Owner&) const = default;
  std::string text() const;
};

/// Resources of a host for users' actors.
struct Host {
  std::string name;
  double cores = 0;
  std::vector<std::int32_t> gpus;
  bool draining = false;                       // takes no new ones
  std::map<std::string, std::string> lacks{};  // plugins that it cannot have, and why
};

/// A user's actor: a place that processes fill one after another.
struct UserActor {
  UserActorId id = 0;
  wire::SpawnActor request;
  Owner owner;
  std::string plugin;  // its class's
  std::string host;
  std::vector<std::int32_t> gpus;
  UserActorState state = UserActorState::starting;
  std::uint64_t incarnation = 0;
  std::string ticket;
  std::string keys;  // CURVE, of its callers, as text; "" = its door asks for none
  std::uint32_t pid = 0;
  std::uint64_t peer = 0;  // its link to the controller; 0 = none
  std::string endpoint;
  std::string blob_endpoint;
  std::uint64_t restarts = 0;
  bool wanted = true;          // false: the actor does not come back, whatever restarts are left
  std::string kill_reason;     // why its process is being ended; "" = it is not
  double hung_for = 0;         // seconds that its method had taken when it was ended for that
  std::string cause;           // cause of its last death
  wire::Failure construction;  // failure of its constructor, when that failed

  bool living() const { return state != UserActorState::dead; }
  /// True when the actor has a process, or one is being started; else `incarnation` is that of the
  /// last process, which has ended.
  bool has_process() const { return living() && state != UserActorState::restarting; }
  std::string label() const;  // Counter "hits" (actor 3)
};

/// Bounds of a table, beyond which it refuses (overloaded).
struct ActorBounds {
  std::size_t living = 4096;
  std::size_t name_bytes = 256;                   // bytes of a name, and of a group's
  std::size_t argument_bytes_of_one = 64u << 20;  // bytes of an owner's living actors, or of
                                                  // nobody's
  std::size_t argument_bytes = 256u << 20;        // bytes of all living actors
};

/// The users' actors of a cluster: names, places, resources, restarts, owners. A pure table: what
/// happens comes in as calls; nothing is sent, spawned or timed here.
class ActorTable {
 public:
  /// Makes an empty table. Dead actors are remembered for their causes: when another is added, the
  /// latest `kept` to die.
  explicit ActorTable(std::size_t kept = 256, ActorBounds bounds = {})
      : kept_(kept), bounds_(bounds) {}

  /// Adds a host, in the place of one of that name.
  void add_host(Host host);
  /// Removes a host that is gone; its actors stay in the table until their ends are told.
  void remove_host(const std::string& name);
  /// Lets no new actors go to a host. False when there is no such host.
  bool drain_host(const std::string& name);
  const std::vector<Host>& hosts() const { return hosts_; }

  /// Adds an actor with a place and its resources, or returns why not: refused (the name is taken),
  /// overloaded (no host has the room or the plugin), bad_request.
  std::variant<UserActorId, wire::Failure> add(const wire::SpawnActor& request, Owner owner,
                                               const std::string& plugin = "");
  /// Places a restarting actor again. It keeps its host and its GPUs, unless the host takes no
  /// actors any more: then it gets another host, or the reason why no host can have it is returned.
  std::optional<wire::Failure> place_again(UserActorId id);
  /// Notes that a process fills the actor's place.
  void spawned(UserActorId id, std::uint64_t incarnation, std::uint32_t pid, std::string ticket,
               std::string keys = "");
  /// Notes that the actor's constructor has run.
  void created(UserActorId id, std::string endpoint, std::string blob_endpoint);
  /// Notes that the process is gone. True when another is to fill the place; else the actor is dead
  /// and its name and resources are free. Nothing when that process does not fill the place now.
  std::optional<bool> exited(UserActorId id, std::uint64_t incarnation, std::string cause);

  UserActor* find(UserActorId id);
  const UserActor* find(UserActorId id) const;
  /// Returns the living actor of that name; null when there is none.
  UserActor* find(const std::string& name);
  UserActor* by_peer(std::uint64_t peer);
  /// Returns the living actors that end with this owner.
  std::vector<UserActorId> owned_by(const Owner& owner) const;
  const std::map<UserActorId, UserActor>& all() const { return actors_; }

  double free_cores(const std::string& host) const;
  std::vector<std::int32_t> free_gpus(const std::string& host) const;

 private:
  std::variant<const Host*, wire::Failure> choose(const wire::SpawnActor& request,
                                                  const std::string& plugin) const;
  const Host* host(const std::string& name) const;
  bool keeps_place(const UserActor& actor) const;
  bool fits(const Host& host, const wire::SpawnActor& request) const;
  std::size_t count_on(const std::string& host, const std::string& group) const;
  void forget_oldest();
  std::optional<wire::Failure> too_much(const wire::SpawnActor& request, const Owner& owner) const;

  std::size_t kept_;
  ActorBounds bounds_;
  UserActorId last_id_ = 0;
  std::vector<Host> hosts_;
  std::map<UserActorId, UserActor> actors_;
  std::deque<UserActorId> dead_;  // in the order of their deaths
};

}  // namespace troupe::user
