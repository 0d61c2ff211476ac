#pragma once
#include <functional>
#include <map>
#include <string>

#include "controller/hosts/agent.h"
#include "transport/control/server.h"
#include "transport/wire/host_messages.h"

namespace troupe::cluster {

/// The agent of another host (`troupe join`), over its link. It tells the same things in the same
/// words as one in this process; when the link is lost, all of its actors are lost with it.
class RemoteAgent final : public Agent {
 public:
  using OnStarted =
      std::function<void(std::uint32_t id, std::uint64_t incarnation, std::uint32_t pid)>;

  RemoteAgent(control::Server& server, control::PeerId peer, std::string host, OnStarted on_started,
              OnExit on_exit);

  std::uint32_t spawn(const ActorLaunch& launch) override;
  bool signal(std::uint32_t id, int signal) override;
  void kill(std::uint32_t id, const std::string& why) override;
  const LineLog& lines(std::uint32_t id) override { return logs_[id]; }
  std::size_t running() const override { return processes_.size(); }

  control::PeerId peer() const { return peer_; }  // 0 = its link is gone
  const std::string& host() const { return host_; }
  void wrote(const wire::ProcessWrote& wrote);
  void ended(const wire::ProcessEnded& ended);
  /// Its link is gone: every process that it had has ended with that cause.
  void lost(const std::string& why);

 private:
  bool send_signal(std::uint32_t id, int signal, const std::string& why);
  void gone(std::uint32_t id, std::uint64_t incarnation, const ExitCause& cause);

  control::Server& server_;
  control::PeerId peer_;
  std::string host_;
  OnStarted on_started_;
  OnExit on_exit_;
  std::map<std::uint32_t, std::uint64_t> processes_;  // incarnation by actor
  std::map<std::uint32_t, LineLog> logs_;
};

}  // namespace troupe::cluster
