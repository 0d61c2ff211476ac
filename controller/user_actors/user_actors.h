#pragma once
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "controller/deployments/environment.h"
#include "controller/hosts/process_host.h"
#include "controller/user_actors/actor_table.h"
#include "transport/control/peer.h"

namespace troupe::user {

using cluster::Asker;

/// Users' actors, at the controller: answers what clients and actors ask, has processes started and
/// ended, and tells of deaths. Calls do not come here. Lives on the controller's loop, reaches the
/// world through Environment and the hosts' ProcessHosts only.
class UserActors {
 public:
  /// Token and keys with which processes connect to the controller.
  struct Access {
    std::string token;  // token that they show in their hello
    std::string keys;   // CURVE, as text; "" = the controller asks for none
    bool insecure = false;
  };
  struct Tools {
    cluster::Environment& environment;
    /// Returns the host that starts and ends processes there; null where it is not there any more.
    std::function<cluster::ProcessHost*(const std::string& host)> process_host;
    Access access;                                 // that their processes come in with
    std::function<void(const std::string&)> note;  // told of failures, for status
    bool keyed = false;                            // actors' doors ask for CURVE keys
    std::size_t kept_dead = 256;                   // kept dead actors, as ActorTable has them
  };
  explicit UserActors(Tools tools) : tools_(std::move(tools)), table_(tools_.kept_dead) {}

  void add_host(Host host) { table_.add_host(std::move(host)); }
  /// Removes a host, which gets no actors any more; the ends of those that it has are told by
  /// `exited`.
  void remove_host(const std::string& name) { table_.remove_host(name); }
  /// Lets no new actor go to a host. With `now` those that live there are ended, and begin anew
  /// elsewhere where they may; without, they stay until they end. Says what becomes of them; "" =
  /// there are none.
  std::string drain_host(const std::string& name, bool now);
  /// Throws std::runtime_error when another plugin has a class of the same name.
  void add_classes(const wire::ClassList& classes);

  /// Checks a hello of role "user-actor": nothing when it is the process that fills its place, else
  /// why it is refused (fencing).
  std::optional<std::string> hello(const control::PeerInfo& peer);
  /// Returns whether some actor's newest process has this incarnation.
  bool has_process(std::uint64_t incarnation) const;
  /// Notes that the peer's link stands. False when it is no user's actor.
  bool ready(control::PeerId peer);
  /// Each answers a request, sooner or later. One that starts or ends something counts once, also
  /// where it comes twice.
  void handle(const Asker& asker, const wire::SpawnActor& request);
  void handle(const Asker& asker, const wire::FindActor& wanted);
  void handle(const Asker& asker, const wire::KillActor& wanted);
  void handle(const Asker& asker, const wire::WatchActor& wanted);
  void handle(const Asker& asker, const wire::ListActors&);
  void handle(const Asker& asker, const wire::ListClasses&);
  /// Notes that a client's or an actor's link is gone. True when it was an actor's.
  bool lost(control::PeerId peer, const std::string& why);
  /// Notes that the process of that incarnation runs, on another host.
  void started(UserActorId id, std::uint64_t incarnation, std::uint32_t pid);
  void exited(UserActorId id, std::uint64_t incarnation, const cluster::ExitCause& how);
  /// Ends every process; nothing new begins.
  void stop(const std::string& why);

  const ActorTable& table() const { return table_; }
  const std::map<std::string, wire::ClassEntry>& classes() const { return classes_; }

 private:
  /// True when the request came before: it is answered, or will be.
  bool repeated(const Asker& asker);

  void launch(UserActorId id);
  void begin_again(UserActorId id, std::uint64_t incarnation);
  void watch_for_hangs(UserActorId id, std::uint64_t incarnation, double delay,
                       std::uint64_t suspect = 0);
  void created(UserActorId id, std::uint64_t incarnation, const control::Reply& reply);
  void end(UserActorId id, const std::string& why, bool for_good);
  void wait_for(UserActor& actor, const Asker& asker);
  void answer_waiting(const UserActor& actor);
  wire::ActorAddress address_of(const UserActor& actor) const;
  wire::Failure death_of(const UserActor& actor) const;
  template <class M>
  void reply(const Asker& asker, const M& message) {
    wire::Header header;
    header.flags = wire::kFlagReply;
    header.correlation = asker.header.correlation;
    tools_.environment.send_frame(asker.peer, wire::encode_frame(header, message));
  }

  Tools tools_;
  ActorTable table_;
  std::map<std::string, wire::ClassEntry> classes_;
  std::map<UserActorId, std::vector<Asker>> waiting_;    // askers who wait for the actor to run
  std::map<UserActorId, std::vector<Asker>> for_death_;  // askers who wait for an actor's death
  std::map<UserActorId, std::set<control::PeerId>> watchers_;
  /// Number of the newest request of each peer that does something; the numbers rise.
  std::map<control::PeerId, std::uint64_t> newest_;
  std::optional<std::string> stopping_;  // why none is created any more
};

}  // namespace troupe::user
