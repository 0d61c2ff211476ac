#pragma once
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <random>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "controller/supervision/hosts.h"
#include "controller/user_actors/user_actors.h"
#include "tests/support/no_stages.h"

namespace troupe::user {

inline const std::string kOwn = "own";
inline const std::string kPlugin = "lib.so";

/// Thrown when something happened that must not.
class Broken : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The world that users' actors see: hosts, agents, processes, clients, time.
class UserWorld final : public testing::NoStages, public cluster::ProcessHost {
 public:
  explicit UserWorld(std::uint64_t seed, std::size_t kept_dead = 256);

  /// Throws Broken when something is seen that must not be.
  void play();
  /// Returns what happened, newest last; for people, when a seed fails.
  std::string trace(std::size_t lines) const;

  bool stops = false;  // the cluster, before all leave
  std::size_t lost_hosts = 0, moved = 0, refused = 0, answered = 0, repeated = 0, deaths = 0,
              ghosts = 0;

  // Environment:
  double now() const override { return now_; }
  std::uint64_t random() override { return random_() | 1; }
  void after(double seconds, std::function<void()> action) override;
  bool send_frame(control::PeerId peer, std::string frame) override;
  void request_frame(control::PeerId peer, std::string frame, control::Milliseconds deadline,
                     control::ReplyHandler handler) override;
  void drop(control::PeerId peer, const std::string&) override { peers_.erase(peer); }

  // ProcessHost, of the own host:
  std::uint32_t start(const wire::StartProcess& launch) override;
  bool signal(const wire::ProcessOwner&, int) override { return false; }
  void end(const wire::ProcessOwner& owner, const std::string&) override;
  const cluster::LineLog& lines(std::uint32_t) override { return no_lines_; }
  std::size_t running() const override { return 0; }

 private:
  struct Event {
    double at;
    std::uint64_t number;
    std::function<void()> action;
    bool operator>(const Event& other) const {
      return std::pair(at, number) > std::pair(other.at, other.number);
    }
  };
  struct Process {
    std::uint64_t id;
    std::string host;
    control::PeerId peer = 0;
  };

  static void must(bool holds, const char* what) {
    if (!holds) throw Broken(what);
  }
  void note(const std::string& what);
  double chance() { return std::uniform_real_distribution<>(0, 1)(random_); }
  std::size_t below(std::size_t count) { return random_() % count; }
  static std::span<const std::byte> payload(const std::string& frame);
  template <class M>
  static void answer(const control::ReplyHandler& handler, const M& message);

  void run();

  /// Begins a process; its hello comes later, if the process lives to say it.
  void begin(std::uint64_t id, std::uint64_t incarnation, const std::string& host);

  /// Ends a process, and its parent says so.
  void die(std::uint64_t id, std::uint64_t incarnation, int signal);
  void exited(std::uint64_t id, std::uint64_t incarnation, const cluster::ExitCause& how);
  cluster::ProcessHost* process_host(const std::string& name);
  std::size_t running_elsewhere() const;
  void join(const std::string& name);
  void lose(const std::string& name);
  control::PeerId new_client();
  void client_leaves(control::PeerId client);
  template <class M>
  void ask(control::PeerId client, const M& message);
  /// Throws Broken if `action` changes the state: what was said before, or by a process that is
  /// dead.
  void changes_nothing(const std::string& what, const std::function<void()>& action);
  std::string state_text() const;
  void haunt(const Process& process, std::uint64_t incarnation);
  void client_hears(control::PeerId client, const wire::Header& header, const std::string& frame);
  void blow();
  void check_always();
  void check_end();

  std::mt19937_64 random_;
  double now_ = 0;
  std::deque<std::string> notes_;
  std::uint64_t events_made_ = 0;
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  control::PeerId last_peer_ = 100;
  std::uint64_t last_call_ = 0;
  std::map<std::uint64_t, control::PeerId> open_;  // client by correlation
  std::set<std::uint64_t> asked_twice_;
  std::set<control::PeerId> clients_;
  std::map<std::string, control::PeerId> agents_;
  std::map<control::PeerId, std::string> host_of_;
  std::map<control::PeerId, std::uint64_t> peers_;  // incarnation of a process by its link
  std::map<std::uint64_t, Process> processes_;      // by incarnation
  std::map<std::string, std::unique_ptr<cluster::RemoteProcessHost>> others_;  // newest by name
  cluster::LineLog no_lines_;
  UserActors users_;
};

}  // namespace troupe::user
