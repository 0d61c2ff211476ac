#pragma once
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "controller/deployments/environment.h"
#include "controller/deployments/members.h"
#include "controller/hosts/process_host.h"
#include "transport/control/server.h"

namespace troupe::cluster {

/// Processes of another host (`troupe join`), over the link to its node agent. This class tells the
/// same things in the same words as LocalProcessHost does for this process; when the link is lost,
/// all of the host's processes are lost with it.
class RemoteProcessHost final : public ProcessHost {
 public:
  using OnStarted =
      std::function<void(const ProcessOwner&, std::uint64_t incarnation, std::uint32_t pid)>;

  RemoteProcessHost(Environment& environment, control::PeerId peer, std::string host,
                    OnStarted on_started, OnExit on_exit);

  std::uint32_t start(const wire::StartProcess& order) override;
  bool signal(const ProcessOwner& owner, int signal) override;
  void end(const ProcessOwner& owner, const std::string& why) override;
  const LineLog& lines(std::uint32_t actor) override { return logs_[actor]; }
  std::size_t running() const override { return processes_.size(); }

  control::PeerId peer() const { return peer_; }  // 0 = its link is gone
  const std::string& host() const { return host_; }
  void wrote(const wire::ProcessWrote& wrote);
  void ended(const wire::ProcessEnded& ended);
  /// Notes that the host's link is gone: every process that it had has ended with that cause.
  void lost(const std::string& why);

 private:
  bool send_signal(const ProcessOwner& owner, int signal, const std::string& why);
  void gone(const ProcessOwner& owner, std::uint64_t incarnation, const ExitCause& cause);

  Environment& environment_;
  control::PeerId peer_;
  std::string host_;
  OnStarted on_started_;
  OnExit on_exit_;
  std::map<ProcessOwner, std::uint64_t> processes_;  // incarnation by owner
  std::map<std::uint32_t, LineLog> logs_;            // by actor
};

/// Hosts of the cluster, and who starts processes there: the controller's own, and those that have
/// joined. A host that joins gets places at once; a host that is lost takes them along.
class Hosts {
 public:
  struct Tools {
    control::Server& server;
    Environment& environment;
    Members& members;
    std::string own_host;
    std::function<void(ActorId)> spawn;  // fills a place; throws what Environment::spawn throws
    RemoteProcessHost::OnStarted on_started;
    ProcessHost::OnExit on_exit;
    std::function<void(const std::string&)> note;  // for people to read
  };

  Hosts(Tools tools, ProcessHost& own) : tools_(std::move(tools)), own_(own) {}

  /// Checks a hello of role "node". Returns a reason to refuse, or nothing.
  std::optional<std::string> hello(const control::PeerInfo& peer) const;
  /// The agent of the host that somebody else wants to join as, where its link turns out to be
  /// over. An agent that is there is told.
  std::optional<control::PeerId> gone_before(const control::PeerInfo& peer);
  /// True when the peer is a host's agent. Its actors are spawned.
  bool ready(control::PeerId peer);
  bool lost(control::PeerId peer, const control::Loss& loss);
  /// Takes what a host's agent reports of the processes there.
  void handle(control::PeerId agent, const wire::ProcessWrote& report);
  void handle(control::PeerId agent, const wire::ProcessEnded& report);

  /// Returns the name of the host whose agent this is.
  std::optional<std::string> name_of(control::PeerId peer) const;

  /// Returns the host that has or had the place's process.
  ProcessHost& of_actor(ActorId id);
  /// Returns that host's processes; null where the host is not in the cluster now.
  ProcessHost* of_host(const std::string& name);
  /// Lets the other hosts' agents leave, once their processes have.
  void dismiss();
  /// Tells all hosts to end their links and to look for another controller.
  void say_goodbye(const std::string& why);
  /// Returns the number of all processes of all hosts.
  std::size_t running() const;
  /// Returns the number of other hosts that are in the cluster now.
  std::size_t connected() const;
  /// Returns the places that a name stands for: a host's, or the one of that number. Nothing when
  /// it is neither.
  std::optional<std::vector<ActorId>> places(const std::string& name) const;

 private:
  RemoteProcessHost* by_peer(control::PeerId peer) const;
  void make_places(const std::string& host, const wire::Hello& hello);

  Tools tools_;
  ProcessHost& own_;
  std::map<std::string, std::unique_ptr<RemoteProcessHost>> others_;  // the last one of each name
  bool parting_ = false;
};

}  // namespace troupe::cluster
