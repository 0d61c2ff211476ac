#include "transport/control/zap.h"

#include <algorithm>
#include <stdexcept>
#include <vector>

namespace troupe::control {
namespace {

constexpr const char* kZapEndpoint = "inproc://zeromq.zap.01";
constexpr const char* kZapVersion = "1.0";
constexpr const char* kDomain = "troupe";
constexpr std::size_t kMaxFrames = 16;
constexpr int kRequestsPerTurn = 64;

}  // namespace

Guard::Guard(boost::asio::io_context& io, std::shared_ptr<zmq::context_t> context, KeyPair server,
             AllowList allowed)
    : context_(std::move(context)),
      server_(std::move(server)),
      allowed_(std::move(allowed)),
      socket_(*context_, zmq::socket_type::rep),
      reactor_(io, socket_, std::chrono::microseconds(0),
               [this] { return Pumped{.again = pump()}; }) {
  socket_.set(zmq::sockopt::linger, 0);
  try {
    socket_.bind(kZapEndpoint);
  } catch (const zmq::error_t& error) {
    throw std::runtime_error(std::string("[control] the authenticator of keys: ") + error.what());
  }
}

Guard::~Guard() {
  reactor_.stop();
}

std::shared_ptr<Guard> Guard::open(boost::asio::io_context& io,
                                   std::shared_ptr<zmq::context_t> context, KeyPair server,
                                   AllowList allowed) {
  if (const auto why = why_no_curve(); !why.empty()) throw std::runtime_error("[control] " + why);
  std::shared_ptr<Guard> guard(
      new Guard(io, std::move(context), std::move(server), std::move(allowed)));
  guard->reactor_.start(guard->weak_from_this());
  return guard;
}

ClientKeys Guard::issue(const std::string& name, ClientRole role) {
  if (is_client_name(name))
    throw std::logic_error("[control] keys are issued under the name of a client: " + name);
  ClientKeys keys{server_.public_key, make_key_pair(), "the controller"};
  allowed_.add(keys.own.public_key, name, role);
  return keys;
}

void Guard::protect(zmq::socket_t& socket) const {
  socket.set(zmq::sockopt::curve_server, true);
  socket.set(zmq::sockopt::curve_secretkey, server_.secret_key);
  socket.set(zmq::sockopt::zap_domain, kDomain);
}

bool Guard::pump() {
  for (int i = 0; i < kRequestsPerTurn; ++i) {
    std::vector<zmq::message_t> request(1);
    if (!socket_.recv(request.back(), zmq::recv_flags::dontwait))
      return socket_.get(zmq::sockopt::events) & ZMQ_POLLIN;
    while (request.back().more()) {
      zmq::message_t frame;
      if (!socket_.recv(frame, zmq::recv_flags::dontwait)) break;
      if (request.size() < kMaxFrames) {
        request.push_back(std::move(frame));
      } else {
        request.back() = std::move(frame);
      }
    }
    answer(request);
  }
  return true;
}

void Guard::answer(const std::vector<zmq::message_t>& request) {
  // version, id, domain, address, routing id, mechanism, credentials
  const auto frame = [&](std::size_t index) {
    return index < request.size() ? request[index].to_string_view() : std::string_view();
  };
  std::optional<AllowedClient> client;
  if (request.size() == 7 && frame(0) == kZapVersion && frame(2) == kDomain && frame(5) == "CURVE")
    client = allowed_.client_of(key_text(frame(6)));
  ++(client ? admitted_ : refused_);
  if (!client && on_refused_) {
    const bool curve = request.size() == 7 && frame(5) == "CURVE";
    const std::string key = curve ? key_text(frame(6)) : "";
    on_refused_("a peer at " + std::string(frame(3)) + (curve ? " with the key " + key : ""),
                curve ? "the list of clients does not have this key" : "it shows no key");
  }
  const std::string id(frame(1));
  const std::array<std::string, 6> reply{kZapVersion,
                                         id,
                                         client ? "200" : "400",
                                         client ? "OK" : "this key is not allowed",
                                         client ? user_id({client->name, client->role}) : "",
                                         ""};
  for (std::size_t i = 0; i < reply.size(); ++i) {
    const auto more = i + 1 < reply.size() ? zmq::send_flags::sndmore : zmq::send_flags::none;
    try {
      if (!socket_.send(zmq::buffer(reply[i]), more | zmq::send_flags::dontwait)) return;
    } catch (const zmq::error_t&) {
      return;  // whoever asked has gone; the next request starts afresh
    }
  }
}

std::string user_id(const ClientUser& user) {
  return std::string(to_string(user.role)) + " " + user.name;
}

ClientUser user_of(std::string_view id) {
  const auto blank = std::min(id.find(' '), id.size());
  // Whose role cannot be read has the least.
  return {std::string(id.substr(std::min(blank + 1, id.size()))),
          role_from(id.substr(0, blank)).value_or(ClientRole::own_jobs)};
}

std::string_view user_id_of(zmq::message_t& frame) {
  const char* id = zmq_msg_gets(frame.handle(), "User-Id");
  return id ? id : "";
}

void use_keys(zmq::socket_t& socket, const ClientKeys& keys) {
  socket.set(zmq::sockopt::curve_serverkey, keys.server_key);
  socket.set(zmq::sockopt::curve_publickey, keys.own.public_key);
  socket.set(zmq::sockopt::curve_secretkey, keys.own.secret_key);
}

}  // namespace troupe::control
