#pragma once

#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <zmq.hpp>

#include "transport/control/key_folder.h"
#include "transport/control/reactor.h"

namespace troupe::control {

/// Peers that were turned away: counts them all, and tells of them without letting strangers fill
/// a log. The first is told at once, then one in `pause` at most, with how many were not.
class Refusals {
 public:
  using Clock = std::chrono::steady_clock;
  using Tell = std::function<void(const std::string&)>;

  explicit Refusals(Tell tell, Clock::duration pause = std::chrono::seconds(10))
      : tell_(std::move(tell)), pause_(pause) {}

  /// `who` and `why` may hold what strangers said: no more than 200 bytes of each are told, and
  /// what is not printable ASCII becomes "?".
  void add(const std::string& who, const std::string& why, Clock::time_point now = Clock::now()) {
    ++count_;
    if (told_ && now - last_ < pause_) {
      ++untold_;
      return;
    }
    told_ = true;
    last_ = now;
    std::string line = "turned away " + tame(who) + ": " + tame(why);
    if (untold_ > 0)
      line += " (and " + std::to_string(untold_) + " others since the last such line)";
    untold_ = 0;
    if (tell_) tell_(line);
  }
  std::uint64_t count() const { return count_; }

 private:
  static std::string tame(const std::string& said) {
    constexpr std::size_t kMost = 200;
    std::string text = said.substr(0, kMost);
    for (char& letter : text)
      if (letter < ' ' || letter > '~') letter = '?';
    if (said.size() > kMost) text += "...";
    return text;
  }

  Tell tell_;
  Clock::duration pause_;
  Clock::time_point last_{};
  bool told_ = false;
  std::uint64_t untold_ = 0, count_ = 0;
};

/// Decides which CURVE keys come in: the authenticator (ZAP, ZeroMQ RFC 27) of all servers that
/// share its context. One to a context. It must be there before they bind and until they close,
/// since ZeroMQ lets every key in where there is no authenticator; a Server keeps its guard for
/// that. Lives on the loop that it was given, where it only looks things up; a changed allow-list
/// counts from the next handshake on.
class Guard : public std::enable_shared_from_this<Guard> {
 public:
  /// Throws std::runtime_error where ZeroMQ has no CURVE, or the context has a guard already.
  static std::shared_ptr<Guard> open(boost::asio::io_context& io,
                                     std::shared_ptr<zmq::context_t> context, KeyPair server,
                                     AllowList allowed);
  ~Guard();

  const KeyPair& server() const { return server_; }
  const std::shared_ptr<zmq::context_t>& context() const { return context_; }
  /// Fresh keys for the cluster's own processes, allowed in as `name` while this guard lives. The
  /// name has a blank in it, which no client's on a list has (is_client_name).
  ClientKeys issue(const std::string& name, ClientRole role);

  /// Makes a socket that is yet to bind ask for keys.
  void protect(zmq::socket_t& socket) const;

  /// Called on the loop for each connection that is refused, with its address and key, and why. A
  /// client with no keys or another server's fails before ZeroMQ asks here.
  using OnRefused = std::function<void(const std::string& who, const std::string& why)>;
  void on_refused(OnRefused handler) { on_refused_ = std::move(handler); }

  std::uint64_t admitted() const { return admitted_; }
  std::uint64_t refused() const { return refused_; }

 private:
  Guard(boost::asio::io_context& io, std::shared_ptr<zmq::context_t> context, KeyPair server,
        AllowList allowed);
  bool pump();
  void answer(const std::vector<zmq::message_t>& request);

  std::shared_ptr<zmq::context_t> context_;
  KeyPair server_;
  AllowList allowed_;
  zmq::socket_t socket_;
  ZmqReactor reactor_;
  OnRefused on_refused_;
  std::uint64_t admitted_ = 0;
  std::uint64_t refused_ = 0;
};

/// Returns a user as ZeroMQ carries it with every message of the user's connection (its "User-Id").
std::string user_id(const ClientUser& user);
ClientUser user_of(std::string_view id);
/// "" where no guard has let the connection in.
std::string_view user_id_of(zmq::message_t& frame);

/// Gives a socket that is yet to connect its keys.
void use_keys(zmq::socket_t& socket, const ClientKeys& keys);

}  // namespace troupe::control
