#include "controller/user_actors/all_hosts.h"

#include <stdexcept>

#include "transport/wire/host_messages.h"

namespace troupe::user {
namespace {

constexpr control::Milliseconds kStartDeadline{20'000};

}  // namespace

std::uint32_t AllHosts::spawn(const HostLaunch& launch) {
  if (launch.host == tools_.own_host) return tools_.own.spawn(launch);
  const auto agent = agents_.find(launch.host);
  if (agent == agents_.end())
    throw std::runtime_error("[spawn] host " + launch.host + " is not there any more");
  agent->second.processes[launch.id] = launch.incarnation;
  const wire::StartUserProcess order{.id = launch.id,
                                     .incarnation = launch.incarnation,
                                     .plugin = launch.plugin,
                                     .torch = launch.torch,
                                     .ticket = launch.ticket,
                                     .door = launch.door,
                                     .gpus = launch.gpus,
                                     .token = tools_.access.token,
                                     .keys = tools_.access.keys,
                                     .insecure = tools_.access.insecure};
  tools_.environment.request(
      agent->second.peer, order, kStartDeadline,
      [this, peer = agent->second.peer, host = launch.host, id = launch.id,
       incarnation = launch.incarnation](const control::Reply& reply) {
        if (reply.ok())
          return tools_.on_started(id, incarnation, reply.as<wire::ProcessStarted>().pid);
        if (reply.failure().code == wire::FailureCode::lost) return;  // so is its host
        // Perhaps it starts all the same, later.
        tools_.environment.send(peer, wire::EndUserProcess{id, incarnation, reply.failure().what});
        HostExit how;
        how.code = 1;
        how.how = "not started on " + host + ": " + reply.failure().what;
        gone(host, id, incarnation, how);
      });
  return 0;
}

void AllHosts::kill(const std::string& host, std::uint64_t id, const std::string& why) {
  if (host == tools_.own_host) return tools_.own.kill(host, id, why);
  const auto agent = agents_.find(host);
  if (agent == agents_.end()) return;
  if (const auto process = agent->second.processes.find(id);
      process != agent->second.processes.end())
    tools_.environment.send(agent->second.peer, wire::EndUserProcess{id, process->second, why});
}

void AllHosts::lost(const std::string& host, const std::string& why) {
  const auto node = agents_.extract(host);
  if (node.empty()) return;
  HostExit how;
  how.how = "lost with its host " + host + ": " + why;
  how.with_host = true;
  for (const auto& [id, incarnation] : node.mapped().processes)
    tools_.on_exit(id, incarnation, how);
}

void AllHosts::ended(const std::string& host, const wire::UserProcessEnded& ended) {
  HostExit how;
  how.signal = ended.signal;
  how.code = ended.code;
  how.how = ended.how;
  how.method = ended.method;
  how.log = ended.log;
  gone(host, ended.id, ended.incarnation, how);
}

void AllHosts::gone(const std::string& host, std::uint64_t id, std::uint64_t incarnation,
                    const HostExit& how) {
  const auto agent = agents_.find(host);
  if (agent == agents_.end()) return;
  auto& processes = agent->second.processes;
  const auto process = processes.find(id);
  if (process == processes.end() || process->second != incarnation) return;
  processes.erase(process);
  tools_.on_exit(id, incarnation, how);
}

std::size_t AllHosts::running() const {
  std::size_t sum = 0;
  for (const auto& [host, agent] : agents_)
    sum += agent.processes.size();
  return sum;
}

}  // namespace troupe::user
