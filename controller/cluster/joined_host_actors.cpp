#include <csignal>
#include <filesystem>

#include "controller/cluster/joined_host_impl.h"
#include "transport/control/blob_endpoint.h"

// What a joined host does with its actors: the controller's orders to the agents, and what those
// tell it.

namespace troupe::cluster {

void JoinedHost::Impl::make_agent() {
  incarnations_.clear();
  make_users();
  agent_ = std::make_unique<NodeAgent>(
      io_, options_, [this](std::uint32_t id, std::uint64_t incarnation, const ExitCause& cause) {
        exited(id, incarnation, cause);
      });
  agent_->on_line([this](std::uint32_t id, const std::string& line) {
    tell(wire::ProcessWrote{id, {line}});
  });
}

void JoinedHost::Impl::make_users() {
  user::Guest::Options guest{.host = options_.name,
                             .plugins = options_.plugins,
                             .any_plugin = options_.any_plugin,
                             .processes = {}};
  auto& processes = guest.processes;
  processes.host_program =
      std::filesystem::path(options_.actor_program).replace_filename("troupe-host").string();
  processes.actor_program = options_.actor_program;
  processes.control_endpoint = options_.endpoint;
  processes.listen_host = options_.tensor_host;
  processes.log_folder = options_.log_folder;
  users_ = std::make_unique<user::Guest>(
      io_, guest,
      user::Guest::Tools{.controller = [this]() -> control::Connection* {
                           return joined_ && !ended_ ? connection_.get() : nullptr;
                         },
                         .refuse = [this](const std::string& why) { end(why); }});
}

void JoinedHost::Impl::start(const wire::Header& header, const wire::StartProcess& order) {
  if (stopping_) {
    connection_->reply(header, wire::Failure{wire::FailureCode::refused, "the host is leaving"});
    return;
  }
  try {
    const auto pid = agent_->spawn({.id = order.actor,
                                    .incarnation = order.incarnation,
                                    .control_endpoint = options_.endpoint,
                                    .blob_endpoint = control::blob_endpoint_of(options_.endpoint),
                                    .device = order.device,
                                    .threads = options_.threads_per_actor,
                                    .token = order.token,
                                    .keys = order.keys,
                                    .tensor_host = options_.tensor_host});
    incarnations_[order.actor] = order.incarnation;
    connection_->reply(header, wire::ProcessStarted{pid});
  } catch (const std::exception& error) {
    connection_->reply(header, wire::Failure{wire::FailureCode::internal, error.what()});
  }
}

void JoinedHost::Impl::signal(const wire::SignalProcess& order) {
  const auto process = incarnations_.find(order.actor);
  const bool same = process != incarnations_.end() &&
                    (order.incarnation == 0 || order.incarnation == process->second);
  if (!same) return;
  if (order.signal == SIGKILL) return agent_->kill(order.actor, order.why);
  agent_->signal(order.actor, order.signal);
}

void JoinedHost::Impl::exited(std::uint32_t id, std::uint64_t incarnation, const ExitCause& cause) {
  tell(wire::ProcessEnded{.actor = id,
                          .incarnation = incarnation,
                          .by_signal = cause.by_signal,
                          .number = cause.number,
                          .core = cause.core,
                          .log = cause.log});
  if (agent_ && agent_->running() == 0) ask_if_drained();
}

std::string JoinedHost::Impl::gpus_for_users() const {
  std::string text;
  for (const auto gpu : user::local_gpus(options_.gpus()))
    text.append(text.empty() ? "" : ",").append(std::to_string(gpu));
  return text;
}

}  // namespace troupe::cluster
