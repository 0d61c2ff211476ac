#include "controller/app/joined_host.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <csignal>
#include <filesystem>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>
#include <thread>
#include <utility>

#include "base/files.h"
#include "base/format.h"
#include "base/log_line.h"
#include "controller/app/host_orders.h"
#include "controller/hosts/capacity.h"
#include "controller/hosts/local_process_host.h"
#include "transport/control/connection.h"
#include "transport/control/endpoint.h"
#include "transport/control/key_folder.h"
#include "transport/control/relay.h"
#include "transport/wire/actor_messages.h"
#include "transport/wire/client_messages.h"
#include "transport/wire/done.h"
#include "transport/wire/host_messages.h"

namespace troupe::cluster {

/// A link to the controller, and behind it the processes that it orders.
class JoinedHost::Impl {
 public:
  explicit Impl(JoinOptions options);

  std::string run(const std::function<void()>& on_joined);
  void stop();
  const std::string& name() const { return options_.name; }

 private:
  void connect();
  /// Ends the actors at once, for they are not the cluster's any more; then the controller is
  /// looked for again.
  void lost(const control::Loss& loss);
  void not_joined(const wire::Failure& failure);
  void say_if_waiting();
  void say_waiting();
  void try_again();
  void on_message(const wire::Header& header, std::span<const std::byte> payload);
  template <class M>
  void tell(const M& message) {
    if (joined_ && !ended_) connection_->send(message);
  }
  void begin_to_drain();
  /// Calls `then` when no process runs here, or it is too late for that.
  void wait_until_empty(control::Clock::time_point until, std::function<void(bool empty)> then);
  /// Tells `on_drained`, when no actor runs here, if the controller says that the actors were
  /// drained.
  void ask_if_drained();
  /// `drained` and `others`: of this host's actors, on the pages of the status before this one.
  void count_drained(std::uint32_t skip, int drained, int others);
  void end(std::optional<std::string> failure);
  /// Leaves the cluster in order.
  void leave(const std::string& why);
  std::string cluster_stopped() const {
    return "the cluster at " + options_.endpoint + " was stopped: this host has left it";
  }

  /// Makes the relay and the orders of a new link. The orders before end with all their processes.
  void make_orders();
  std::string gpus_for_users() const;

  JoinOptions options_;
  boost::asio::io_context io_{1};
  boost::asio::steady_timer timer_;
  boost::asio::steady_timer waiting_timer_;
  boost::asio::steady_timer drain_timer_;
  std::shared_ptr<zmq::context_t> context_;
  std::unique_ptr<control::Connection> connection_;
  control::IpcFolder folder_;
  int relays_ = 0;
  std::unique_ptr<control::Relay> relay_;  // of the actors' links to the controller
  std::unique_ptr<HostOrders> orders_;
  std::function<void()> on_joined_;
  std::string keys_;  // that this host shows, as text
  control::Clock::time_point give_up_;
  std::optional<std::string> failure_;
  std::string farewell_;  // why it has ended in order
  std::string lost_;      // why there was a link before, and none now
  bool joined_ = false;
  bool said_waiting_ = false;
  bool stopping_ = false;
  bool ended_ = false;
};

namespace asio = boost::asio;
namespace {

constexpr const char* kTold = "this host has left: it was told to";
constexpr std::chrono::milliseconds kTryAgain{500};
constexpr std::chrono::milliseconds kLook{50};
/// Time within which a controller that is there answers.
constexpr std::chrono::milliseconds kMoment{300};
constexpr std::chrono::milliseconds kShortestLook{1000};
constexpr std::chrono::milliseconds kLongestLook{5000};
constexpr control::Milliseconds kAnswerDeadline{10'000};
/// Deadline for all processes to end when the cluster stops, also for actors that were told to
/// leave.
constexpr std::chrono::milliseconds kShutdownDeadline{2000};

/// Returns the numeric address from which this host reaches the endpoint; "" where that cannot be
/// told.
std::string own_address(const control::Endpoint& to) {
  if (to.ipc) return "";
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(to.host.c_str(), std::to_string(to.port).c_str(), &hints, &found) != 0) return "";
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> all(found, freeaddrinfo);
  const FileHandle socket(::socket(found->ai_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  sockaddr_storage own{};
  socklen_t length = sizeof own;
  char text[NI_MAXHOST] = "";
  // Nothing is sent: the kernel only picks the route.
  if (!socket || ::connect(socket.get(), found->ai_addr, found->ai_addrlen) != 0 ||
      getsockname(socket.get(), reinterpret_cast<sockaddr*>(&own), &length) != 0 ||
      getnameinfo(reinterpret_cast<sockaddr*>(&own), length, text, sizeof text, nullptr, 0,
                  NI_NUMERICHOST) != 0)
    return "";
  return text;
}

}  // namespace

JoinedHost::Impl::Impl(JoinOptions options)
    : options_(std::move(options)), timer_(io_), waiting_timer_(io_), drain_timer_(io_) {
  if (options_.actors < 1)
    throw std::runtime_error(
        fmt::format("[join] actors is {}: at least 1 is needed", options_.actors));
  if (options_.actors_per_gpu < 1)
    throw std::runtime_error(
        fmt::format("[join] actors_per_gpu is {}: at least 1 is needed", options_.actors_per_gpu));
  const auto endpoint = control::parse_endpoint(options_.endpoint);
  if (options_.name.empty()) options_.name = control::host_name();
  if (options_.actor_program.empty()) options_.actor_program = find_actor_program();
  if (options_.tensor_host.empty()) options_.tensor_host = own_address(endpoint);
  try {
    control::keys_for(endpoint, options_.keys);
  } catch (const control::NoOwnKeys&) {
    // The cluster makes them, and may not have begun.
  }
  context_ = control::make_context();
  make_orders();
}

std::string JoinedHost::Impl::run(const std::function<void()>& on_joined) {
  on_joined_ = on_joined;
  give_up_ = control::Clock::now() + options_.wait;
  connect();
  io_.run();
  orders_.reset();  // who still lives is killed and reaped
  if (connection_ && failure_) connection_->close(*failure_);
  if (connection_) connection_->close("the host leaves", wire::LinkEnd::stopped);
  if (failure_) throw std::runtime_error("[join] " + *failure_);
  return farewell_;
}

void JoinedHost::Impl::stop() {
  asio::post(io_, [this] {
    if (std::exchange(stopping_, true) || !joined_) return leave(kTold);
    orders_->end_checks();
    begin_to_drain();
  });
}

void JoinedHost::Impl::connect() {
  control::ConnectionOptions link;
  link.endpoint = options_.endpoint;
  link.hello.role = PeerRole::node;
  link.hello.name = options_.name;
  link.hello.software = "troupe " TROUPE_VERSION;
  link.hello.attributes = {{"actors", std::to_string(options_.actors)},
                           {"device", options_.device},
                           {"cores", std::to_string(std::thread::hardware_concurrency())},
                           {"gpus", gpus_for_users()}};
  if (options_.memory_limit > 0)
    link.hello.attributes["memory_limit"] = std::to_string(options_.memory_limit);
  if (options_.actors_per_gpu > 1)
    link.hello.attributes["actors_per_gpu"] = std::to_string(options_.actors_per_gpu);
  link.socket.context = context_;
  const auto left =
      std::chrono::duration_cast<std::chrono::milliseconds>(give_up_ - control::Clock::now());
  link.welcome_deadline = std::clamp(left, kShortestLook, kLongestLook);
  if (options_.wait.count() > 0) link.waits_since = give_up_ - options_.wait;
  say_if_waiting();
  try {
    link.keys = control::keys_for(control::parse_endpoint(options_.endpoint), options_.keys);
    keys_ = link.keys ? control::to_text(*link.keys) : "";
  } catch (const control::NoOwnKeys& none) {
    return not_joined({wire::FailureCode::timeout, none.what()});
  } catch (const std::runtime_error& bad) {
    return not_joined({wire::FailureCode::refused, bad.what()});
  }
  connection_ = std::make_unique<control::Connection>(io_, link);
  connection_->on_message([this](const wire::Header& header, std::span<const std::byte> payload) {
    on_message(header, payload);
  });
  connection_->on_lost([this](const control::Loss& loss) { lost(loss); });
  connection_->on_gap([this](std::uint64_t missing) {
    connection_->close("a gap", wire::LinkEnd::gap);
    lost({wire::LinkEnd::gap, fmt::format("{} messages of the controller never came", missing)});
  });
  connection_->start(
      [this](const wire::Welcome&) {
        joined_ = true;
        said_waiting_ = false;
        waiting_timer_.cancel();
        lost_.clear();
        on_joined_();
      },
      [this](const wire::Failure& failure) { not_joined(failure); });
}

void JoinedHost::Impl::lost(const control::Loss& loss) {
  if (loss.end == wire::LinkEnd::stopped) return leave(cluster_stopped());
  joined_ = false;
  if (stopping_ && loss.end == wire::LinkEnd::closed) return leave(kTold);
  lost_ = (loss.end == wire::LinkEnd::closed ? "" : "the controller is lost: ") + loss.why;
  if (stopping_ || options_.wait.count() == 0) return end(lost_);
  orders_.reset();
  make_orders();
  give_up_ = control::Clock::now() + options_.wait;
  try_again();
}

void JoinedHost::Impl::not_joined(const wire::Failure& failure) {
  // Who was here before is perhaps not known to be gone yet, or the controller not gone.
  const bool hopeless = failure.code == wire::FailureCode::version_mismatch ||
                        (failure.code == wire::FailureCode::refused && lost_.empty());
  const auto now = control::Clock::now();
  if (hopeless || now >= give_up_) {
    return end(lost_ + (lost_.empty() ? "" : "; then ") + failure.what);
  }
  try_again();
}

void JoinedHost::Impl::say_if_waiting() {
  if (said_waiting_ || !options_.on_waiting || options_.wait.count() == 0) return;
  // Who was in a cluster says at once that it is not any more, also if the next one answers soon.
  if (!lost_.empty()) return say_waiting();
  waiting_timer_.expires_after(kMoment);
  waiting_timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error && !joined_ && !ended_ && !said_waiting_) say_waiting();
  });
}

void JoinedHost::Impl::say_waiting() {
  said_waiting_ = true;
  options_.on_waiting(fmt::format("{}waiting for a controller at {}, for {} s at most",
                                  lost_.empty() ? "" : lost_ + "; ", options_.endpoint,
                                  options_.wait.count()));
}

void JoinedHost::Impl::try_again() {
  timer_.expires_after(kTryAgain);
  timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) connect();
  });
}

void JoinedHost::Impl::on_message(const wire::Header& header, std::span<const std::byte> payload) {
  if (orders_->on_message(header, payload, stopping_)) return;
  switch (header.kind) {
    case wire::Kind::mux_frames:
      return relay_->take(wire::decode<wire::MuxFrames>(payload));
    case wire::Kind::shutdown:
      stopping_ = true;
      orders_->end_checks();
      return wait_until_empty(control::Clock::now() + kShutdownDeadline,
                              [this](bool) { leave(cluster_stopped()); });
    case wire::Kind::notice:
      return log_line(wire::decode<wire::Notice>(payload).text);
    default:
      if (header.is_request())
        connection_->reply(header, wire::Failure{wire::FailureCode::protocol,
                                                 fmt::format("{} is not for a node agent",
                                                             wire::to_string(header.kind))});
  }
}

void JoinedHost::Impl::begin_to_drain() {
  const auto until = control::Clock::now() + options_.drain_deadline;
  connection_->request(wire::DrainPlaces{.places = {options_.name}, .now = true}, kAnswerDeadline,
                       [this, until](const control::Reply& reply) {
                         if (!reply.ok() && reply.failure().code == wire::FailureCode::lost)
                           return;  // see `lost`
                         if (!reply.ok()) return end("not drained: " + reply.failure().what);
                         wait_until_empty(until, [this](bool empty) {
                           if (empty) return leave("this host is drained and has left the cluster");
                           end(fmt::format("actors still had work after {} s: they were killed",
                                           options_.drain_deadline.count()));
                         });
                       });
}

void JoinedHost::Impl::wait_until_empty(control::Clock::time_point until,
                                        std::function<void(bool empty)> then) {
  if (ended_) return;
  if (orders_->running() == 0) return then(true);
  if (control::Clock::now() >= until) return then(false);
  drain_timer_.expires_after(kLook);
  drain_timer_.async_wait(
      [this, until, then = std::move(then)](const boost::system::error_code& error) mutable {
        if (!error) wait_until_empty(until, std::move(then));
      });
}

void JoinedHost::Impl::ask_if_drained() {
  if (!options_.on_drained || !joined_ || stopping_ || ended_) return;
  count_drained(0, 0, 0);
}

void JoinedHost::Impl::count_drained(std::uint32_t skip, int drained, int others) {
  connection_->request(
      wire::GetStatus{skip}, kAnswerDeadline, [=, this](const control::Reply& reply) mutable {
        if (!reply || !joined_ || stopping_ || ended_ || orders_->running_actors() > 0) return;
        const auto status = reply.as<wire::ClusterStatus>();
        for (const auto& actor : status.actors) {
          if (actor.host == options_.name)
            ++(actor.state == ActorState::drained ? drained : others);
        }
        skip += static_cast<std::uint32_t>(status.actors.size());
        if (!status.actors.empty() && skip < status.actors_all)
          return count_drained(skip, drained, others);
        if (drained > 0 && others == 0) options_.on_drained();
      });
}

void JoinedHost::Impl::end(std::optional<std::string> failure) {
  if (std::exchange(ended_, true)) return;
  failure_ = std::move(failure);
  io_.stop();
}

void JoinedHost::Impl::leave(const std::string& why) {
  if (!ended_) farewell_ = why;
  end(std::nullopt);
}

void JoinedHost::Impl::make_orders() {
  // Closing a socket takes its file away, at any time: each has a name of its own.
  relay_ = std::make_unique<control::Relay>(
      io_,
      control::RelayOptions{.endpoint = folder_.endpoint(fmt::format("relay-{}", ++relays_)),
                            .socket = {.context = context_}},
      [this](const wire::MuxFrames& carried) {
        if (joined_ && !ended_) connection_->send(carried);
      });
  HostOrders::Options orders{
      .processes = {.host = options_,
                    .host_program = host_program_beside(options_.actor_program),
                    .control_endpoint = options_.endpoint,
                    .actor_endpoint = relay_->endpoint(),
                    .blob_endpoint = control::blob_endpoint_of(options_.endpoint),
                    .listen_host = options_.tensor_host},
      .check = {.host_program = host_program_beside(options_.actor_program)},
      .plugins = options_.plugins,
      .any_plugin = options_.any_plugin};
  orders_ = std::make_unique<HostOrders>(
      io_, std::move(orders),
      HostOrders::Tools{.controller = [this]() -> control::Connection* {
                          return joined_ && !ended_ ? connection_.get() : nullptr;
                        },
                        .refuse = [this](const std::string& why) { end(why); },
                        .on_exit =
                            [this] {
                              if (orders_ && orders_->running_actors() == 0) ask_if_drained();
                            },
                        .keys = [this] { return keys_; }});
}

std::string JoinedHost::Impl::gpus_for_users() const {
  std::string text;
  for (const auto gpu : local_gpus(options_.gpus()))
    text.append(text.empty() ? "" : ",").append(std::to_string(gpu));
  return text;
}

JoinedHost::JoinedHost(JoinOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {}

JoinedHost::~JoinedHost() = default;

std::string JoinedHost::run(const std::function<void()>& on_joined) {
  return impl_->run(on_joined);
}

void JoinedHost::stop() {
  impl_->stop();
}

const std::string& JoinedHost::name() const {
  return impl_->name();
}

}  // namespace troupe::cluster
