#pragma once
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <map>
#include <optional>
#include <span>

#include "controller/actors/guest.h"
#include "controller/cluster/joined_host.h"
#include "controller/cluster/node_agent.h"
#include "transport/control/connection.h"
#include "transport/control/key_folder.h"
#include "transport/wire/host_messages.h"

namespace troupe::cluster {

/// A link to the controller, and behind it the agent of this host's actors and of users' actors.
/// The link is in joined_host.cpp, the actors in joined_host_actors.cpp.
class JoinedHost::Impl {
 public:
  explicit Impl(JoinOptions options);

  void run(const std::function<void()>& on_joined);
  void stop();
  const std::string& name() const { return options_.name; }

 private:
  void connect();
  /// The actors go at once, for they are not the cluster's any more; then it is looked for again.
  void lost(const std::string& why);
  void not_joined(const wire::Failure& failure);
  void say_if_waiting();
  void try_again();
  void on_message(const wire::Header& header, std::span<const std::byte> payload);
  template <class M>
  void tell(const M& message) {
    if (joined_ && !ended_) connection_->send(message);
  }
  void begin_to_drain();
  void wait_until_empty(control::Clock::time_point until, std::optional<std::string> too_late);
  /// No actor runs here: tells `on_drained` where the controller says that they were drained.
  void ask_if_drained();
  void end(std::optional<std::string> failure);

  /// One before it ends with all its processes.
  void make_agent();
  void make_users();
  void start(const wire::Header& header, const wire::StartProcess& order);
  void signal(const wire::SignalProcess& order);
  void exited(std::uint32_t id, std::uint64_t incarnation, const ExitCause& cause);
  std::string gpus_for_users() const;

  JoinOptions options_;
  boost::asio::io_context io_{1};
  boost::asio::steady_timer timer_;
  boost::asio::steady_timer waiting_timer_;
  boost::asio::steady_timer drain_timer_;
  std::shared_ptr<zmq::context_t> context_;
  std::unique_ptr<control::Connection> connection_;
  std::unique_ptr<NodeAgent> agent_;
  std::map<std::uint32_t, std::uint64_t> incarnations_;
  std::unique_ptr<user::Guest> users_;
  std::function<void()> on_joined_;
  control::Clock::time_point give_up_;
  std::optional<std::string> failure_;
  std::string lost_;  // why there was a link before, and none now
  bool joined_ = false;
  bool said_waiting_ = false;
  bool stopping_ = false;
  bool ended_ = false;
};

}  // namespace troupe::cluster
