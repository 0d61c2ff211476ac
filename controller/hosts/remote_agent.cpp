#include "controller/hosts/remote_agent.h"

#include <signal.h>

#include <stdexcept>

namespace troupe::cluster {
namespace {

constexpr control::Milliseconds kStartDeadline{20'000};

ExitCause told(std::string how) {
  ExitCause cause;
  cause.told = std::move(how);
  return cause;
}

}  // namespace

RemoteAgent::RemoteAgent(control::Server& server, control::PeerId peer, std::string host,
                         OnStarted on_started, OnExit on_exit)
    : server_(server),
      peer_(peer),
      host_(std::move(host)),
      on_started_(std::move(on_started)),
      on_exit_(std::move(on_exit)) {}

std::uint32_t RemoteAgent::spawn(const ActorLaunch& launch) {
  const auto answer = [this, id = launch.id,
                       incarnation = launch.incarnation](const control::Reply& reply) {
    if (reply.ok()) {
      on_started_(id, incarnation, reply.as<wire::ProcessStarted>().pid);
    } else if (reply.failure().code != wire::FailureCode::lost) {
      gone(id, incarnation, told("not started on " + host_ + ": " + reply.failure().what));
    }
  };
  processes_[launch.id] = launch.incarnation;
  server_.request(peer_,
                  wire::StartProcess{.actor = launch.id,
                                     .incarnation = launch.incarnation,
                                     .device = launch.device,
                                     .threads = launch.threads,
                                     .token = launch.token,
                                     .keys = launch.keys},
                  kStartDeadline, answer);
  return 0;
}

bool RemoteAgent::send_signal(std::uint32_t id, int signal, const std::string& why) {
  const auto process = processes_.find(id);
  return process != processes_.end() &&
         server_.send(peer_, wire::SignalProcess{id, process->second, signal, why});
}

bool RemoteAgent::signal(std::uint32_t id, int signal) {
  return send_signal(id, signal, "");
}

void RemoteAgent::kill(std::uint32_t id, const std::string& why) {
  send_signal(id, SIGKILL, why);
}

void RemoteAgent::wrote(const wire::ProcessWrote& wrote) {
  for (const auto& line : wrote.lines)
    logs_[wrote.actor].add(line);
}

void RemoteAgent::ended(const wire::ProcessEnded& ended) {
  ExitCause cause;
  cause.by_signal = ended.by_signal;
  cause.number = ended.number;
  cause.core = ended.core;
  cause.log = ended.log;
  gone(ended.actor, ended.incarnation, cause);
}

void RemoteAgent::lost(const std::string& why) {
  peer_ = 0;
  const auto processes = processes_;
  for (const auto& [id, incarnation] : processes)
    gone(id, incarnation, told("lost with its host " + host_ + ": " + why));
}

void RemoteAgent::gone(std::uint32_t id, std::uint64_t incarnation, const ExitCause& cause) {
  const auto process = processes_.find(id);
  if (process == processes_.end() || process->second != incarnation) return;
  processes_.erase(process);
  on_exit_(id, incarnation, cause);
}

}  // namespace troupe::cluster
