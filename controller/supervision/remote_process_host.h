#pragma once
#include <functional>
#include <map>
#include <string>

#include "controller/deployments/environment.h"
#include "controller/hosts/process_host.h"

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

}  // namespace troupe::cluster
