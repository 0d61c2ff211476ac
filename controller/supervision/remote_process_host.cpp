#include "controller/supervision/remote_process_host.h"

#include <signal.h>

#include <utility>

namespace troupe::cluster {
namespace {

constexpr control::Milliseconds kStartDeadline{20'000};

}  // namespace

RemoteProcessHost::RemoteProcessHost(Environment& environment, control::PeerId peer,
                                     std::string host, OnStarted on_started, OnExit on_exit)
    : environment_(environment),
      peer_(peer),
      host_(std::move(host)),
      on_started_(std::move(on_started)),
      on_exit_(std::move(on_exit)) {}

std::uint32_t RemoteProcessHost::start(const wire::StartProcess& order) {
  auto launch = order;
  if (launch.owner.role == PeerRole::actor) launch.keys.clear();  // it shows those of its host
  processes_[launch.owner] = launch.incarnation;
  if (launch.owner.role == PeerRole::actor) lines(static_cast<std::uint32_t>(launch.owner.id));
  environment_.request(
      peer_, launch, kStartDeadline,
      [this, owner = launch.owner, incarnation = launch.incarnation](const control::Reply& reply) {
        if (reply.ok())
          return on_started_(owner, incarnation, reply.as<wire::ProcessStarted>().pid);
        if (reply.failure().code == wire::FailureCode::lost) return;  // so is its host
        // Perhaps it starts all the same, later.
        environment_.send(peer_,
                          wire::SignalProcess{owner, incarnation, SIGKILL, reply.failure().what});
        ExitCause cause{.by_signal = false, .number = 1, .log = {}};
        cause.told = "not started on " + host_ + ": " + reply.failure().what;
        gone(owner, incarnation, cause);
      });
  return 0;
}

bool RemoteProcessHost::send_signal(const ProcessOwner& owner, int signal, const std::string& why) {
  const auto process = processes_.find(owner);
  return process != processes_.end() &&
         environment_.send(peer_, wire::SignalProcess{owner, process->second, signal, why});
}

bool RemoteProcessHost::signal(const ProcessOwner& owner, int signal) {
  return send_signal(owner, signal, "");
}

void RemoteProcessHost::end(const ProcessOwner& owner, const std::string& why) {
  send_signal(owner, SIGKILL, why);
}

void RemoteProcessHost::wrote(const wire::ProcessWrote& wrote) {
  const auto log = logs_.find(wrote.actor);
  if (log == logs_.end()) return;  // no place of this host
  for (const auto& line : wrote.lines)
    log->second.add(line);
}

void RemoteProcessHost::ended(const wire::ProcessEnded& ended) {
  ExitCause cause;
  cause.by_signal = ended.by_signal;
  cause.number = ended.number;
  cause.core = ended.core;
  cause.log = ended.log;
  cause.method = ended.method;
  gone(ended.owner, ended.incarnation, cause);
}

void RemoteProcessHost::lost(const std::string& why) {
  peer_ = 0;
  ExitCause cause;
  cause.told = "lost with its host " + host_ + ": " + why;
  cause.with_host = true;
  const auto processes = processes_;
  for (const auto& [owner, incarnation] : processes)
    gone(owner, incarnation, cause);
}

void RemoteProcessHost::gone(const ProcessOwner& owner, std::uint64_t incarnation,
                             const ExitCause& cause) {
  const auto process = processes_.find(owner);
  if (process == processes_.end() || process->second != incarnation) return;
  processes_.erase(process);
  on_exit_(owner, incarnation, cause);
}

}  // namespace troupe::cluster
