#include "client/link.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <memory>

#include "transport/control/endpoint.h"
#include "transport/control/key_folder.h"
#include "transport/control/peer.h"

namespace troupe::client {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr std::chrono::seconds kLoopbackAnswers{1};  // at once, but for a full backlog

struct Probe : std::enable_shared_from_this<Probe> {
  Probe(asio::io_context& io, std::function<void(const std::string&)> missing_)
      : resolver(io), socket(io), missing(std::move(missing_)) {}

  void resolve(const std::string& host, const std::string& port) {
    resolver.async_resolve(host, port,
                           [self = shared_from_this()](const boost::system::error_code& error,
                                                       const tcp::resolver::results_type& found) {
                             if (error == asio::error::host_not_found)
                               return self->missing("no host of that name");
                             if (!error) self->connect(found);
                           });
  }
  template <class Endpoints>
  void connect(const Endpoints& endpoints) {
    asio::async_connect(
        socket, endpoints,
        [self = shared_from_this()](const boost::system::error_code& error, const tcp::endpoint&) {
          boost::system::error_code ignored;
          self->socket.close(ignored);
          if (error == asio::error::connection_refused || error == asio::error::host_unreachable ||
              error == asio::error::network_unreachable)
            self->missing(std::strerror(error.value()));
        });
  }

  tcp::resolver resolver;
  tcp::socket socket;
  std::function<void(const std::string&)> missing;
};

}  // namespace

std::string listener_missing(const control::Endpoint& endpoint) {
  if (!endpoint.ipc) {
    asio::io_context io;
    std::string missing;
    watch_for_missing_listener(io, endpoint, [&](const std::string& why) { missing = why; });
    io.run_for(kLoopbackAnswers);
    return missing;
  }
  const std::string path = endpoint.path.string();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return std::strerror(ENAMETOOLONG);
  std::memcpy(address.sun_path, path.c_str(), path.size());
  const int probe = ::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (probe < 0) return "";
  const int cause =
      ::connect(probe, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 ? 0
                                                                                         : errno;
  ::close(probe);
  const bool final =
      cause == ENOENT || cause == ECONNREFUSED || cause == EACCES || cause == ENOTDIR;
  return final ? std::strerror(cause) : "";
}

void watch_for_missing_listener(asio::io_context& io, const control::Endpoint& endpoint,
                                std::function<void(const std::string&)> missing) {
  std::string host = endpoint.host;
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  const auto probe = std::make_shared<Probe>(io, std::move(missing));
  boost::system::error_code not_numeric;
  const auto address = asio::ip::make_address(host, not_numeric);
  if (not_numeric) {
    probe->resolve(host, std::to_string(endpoint.port));
  } else {
    probe->connect(std::array{tcp::endpoint(address, endpoint.port)});
  }
}

namespace {

Error connect_error(const std::string& endpoint, const wire::Failure& failure) {
  ErrorCode code = ErrorCode::unreachable;
  if (failure.code == wire::FailureCode::refused) code = ErrorCode::refused;
  if (failure.code == wire::FailureCode::timeout) code = ErrorCode::timeout;
  if (failure.code == wire::FailureCode::version_mismatch) code = ErrorCode::version_mismatch;
  std::string what = failure.what;
  if (what.find(endpoint) == std::string::npos) what = endpoint + ": " + what;
  return {code, what};
}

/// Names the endpoint once.
Error lost_error(const std::string& endpoint, const std::string& why) {
  if (why.find(endpoint) != std::string::npos)
    return {ErrorCode::lost, "the connection is lost: " + why};
  return {ErrorCode::lost, "the connection to " + endpoint + " is lost: " + why};
}

Error no_controller(const std::string& endpoint, const std::string& why) {
  return {ErrorCode::unreachable, "no controller at " + endpoint + ": " + why};
}

}  // namespace

Link::Link(std::string endpoint, Handlers handlers)
    : endpoint_(std::move(endpoint)),
      handlers_(std::move(handlers)),
      incarnation_(control::random_incarnation()),
      loop_(std::make_shared<control::SharedLoop>(
          [this](const std::exception& error) { lose(lost_error(endpoint_, error.what())); })) {
  thread_ = std::thread([this] { loop_->run(); });
}

Link::~Link() {
  post([this] {
    if (exchange_) exchange_->close({ErrorCode::lost, "[client] the client has ended"});
    if (control_) control_->close("the client ends");
    if (blobs_) blobs_->close();
    control_.reset();
    blobs_.reset();
    loop_->stop();
  });
  thread_.join();
}

std::unique_ptr<Link> Link::open(const std::string& endpoint, control::Milliseconds timeout,
                                 Handlers handlers, Error& error, const std::string& keys,
                                 const std::stop_token& stop) {
  std::optional<control::ClientKeys> own;
  try {
    const control::Endpoint parsed = control::parse_endpoint(endpoint);
    if (parsed.ipc) {
      if (const auto why = listener_missing(parsed); !why.empty()) {
        error = no_controller(endpoint, why);
        return nullptr;
      }
    } else {
      own = control::keys_for(parsed, keys);
    }
  } catch (const control::NoOwnKeys& none) {
    const auto why = listener_missing(control::parse_endpoint(endpoint));
    error = why.empty() ? Error{ErrorCode::refused, none.what()} : no_controller(endpoint, why);
    return nullptr;
  } catch (const std::exception& bad) {
    error = {ErrorCode::bad_request, bad.what()};
    return nullptr;
  }
  std::unique_ptr<Link> link(new Link(endpoint, std::move(handlers)));
  link->keys_ = std::move(own);  // before its thread is given anything to do
  auto answer = std::make_shared<std::promise<std::optional<Error>>>();
  auto future = answer->get_future();
  link->post([&link = *link, timeout, answer] {
    link.start(timeout,
               [answer](std::optional<Error> failed) { answer->set_value(std::move(failed)); });
  });
  const auto give_up = [&link = *link] {
    link.give_up({ErrorCode::interrupted, "interrupted while connecting to " + link.endpoint_});
  };
  const auto answered = [&] {
    const std::stop_callback on_stop(stop, [&link = *link, give_up] { link.post(give_up); });
    return future.wait_for(timeout + std::chrono::seconds(2)) == std::future_status::ready;
  }();
  if (!answered) {
    error = no_controller(endpoint, "nobody answered");
    return nullptr;
  }
  if (const std::optional<Error> failed = future.get()) {
    error = *failed;
    // A look for a host's name cannot be ended: it is left alone, and ends by itself or with the
    // process.
    if (stop.stop_requested()) std::thread([left = std::move(link)] {}).detach();
    return nullptr;
  }
  return link;
}

wire::Hello Link::hello() const {
  wire::Hello hello;
  hello.role = PeerRole::client;
  hello.name = "client";
  hello.software = "troupe " TROUPE_VERSION;
  return hello;
}

void Link::settle(std::optional<Error> failed) {
  if (const auto outcome = std::exchange(outcome_, nullptr)) outcome(std::move(failed));
}

/// Ends an attempt to connect that has not ended yet.
void Link::give_up(Error why) {
  if (!outcome_) return;
  control_->close(why.what);
  lost_ = std::move(why);
  settle(lost_);
}

void Link::start(control::Milliseconds timeout, Outcome outcome) {
  outcome_ = std::move(outcome);
  try {
    socket_.context = control::make_context();
  } catch (const std::exception& error) {
    return settle(Error{ErrorCode::failed, error.what()});
  }
  try {
    control::ConnectionOptions options;
    options.endpoint = endpoint_;
    options.socket = socket_;
    options.hello = hello();
    options.incarnation = incarnation_;
    options.welcome_deadline = timeout;
    options.keys = keys_;
    control_ = std::make_unique<control::Connection>(loop_->io(), std::move(options));
  } catch (const std::exception& error) {
    return settle(Error{ErrorCode::bad_request, error.what()});
  }
  exchange_ = calls::Exchange::make({.loop = loop_,
                                     .controller = [this] { return control_.get(); },
                                     .blobs = store_,
                                     .name = "client",
                                     .socket = socket_});
  control_->on_message([this](const wire::Header& header, std::span<const std::byte> payload) {
    on_message(header, payload);
  });
  control_->on_lost([this](const control::Loss& loss) {
    replaced_ = loss.end == wire::LinkEnd::replaced;
    lose(lost_error(endpoint_, loss.why));
  });
  control_->on_gap([this](std::uint64_t missing) {
    const auto loss = control::gap(missing);
    control_->close(loss.why, loss.end);
    lose(lost_error(endpoint_, loss.why));
  });
  control_->start(
      [this](const wire::Welcome& welcome) {
        const auto said = [&](const char* name) {
          const auto found = welcome.attributes.find(name);
          return found == welcome.attributes.end() ? std::string() : found->second;
        };
        journal_ = said("journal");
        job_series_ = said("jobs");
        settle(std::nullopt);
      },
      [this](const wire::Failure& failure) {
        lost_ = connect_error(endpoint_, failure);
        settle(lost_);
      });
  const auto endpoint = control::parse_endpoint(endpoint_);
  if (endpoint.ipc || endpoint.host == "*") return;
  watch_for_missing_listener(loop_->io(), endpoint, [this](const std::string& why) {
    give_up(no_controller(endpoint_, why));
  });
}

void Link::on_message(const wire::Header& header, std::span<const std::byte> payload) {
  if (header.kind == wire::Kind::job_progress) {
    handlers_.on_progress(wire::decode<wire::JobProgress>(payload));
  } else if (header.kind == wire::Kind::job_finished) {
    handlers_.on_finished(wire::decode<wire::JobFinished>(payload));
  } else if (header.kind == wire::Kind::notice) {
    if (handlers_.on_notice) handlers_.on_notice(wire::decode<wire::Notice>(payload).text);
  } else if (exchange_ && exchange_->on_message(header, payload)) {
    return;
  } else if (header.is_request()) {
    control_->reply(header,
                    wire::Failure{wire::FailureCode::refused, "[client] answers no such request"});
  }
}

void Link::lose(Error error) {
  if (lost_) return;
  lost_ = std::move(error);
  is_lost_ = true;
  if (exchange_) exchange_->close(*lost_);
  handlers_.on_lost(*lost_);
}

void Link::post(std::function<void()> action) {
  loop_->post(std::move(action));
}

void Link::open_blobs() {
  if (blobs_) return;
  control::ConnectionOptions options;
  options.endpoint = control::blob_endpoint_of(endpoint_);
  options.socket = socket_;
  options.hello = hello();
  options.hello.secret = control_->secret();
  options.incarnation = incarnation_;
  options.keys = keys_;
  blobs_ = std::make_unique<control::BlobConnection>(loop_->io(), std::move(options), store_);
  const auto again = [this] { post([this] { blobs_.reset(); }); };
  blobs_->on_lost([again](const control::Loss&) { again(); });
  blobs_->start({}, [again](const wire::Failure&) { again(); });
}

void Link::fetch(const wire::BlobRef& blob, control::BlobHandler handler) {
  try {
    open_blobs();
  } catch (const std::exception& error) {
    control::BlobResult failed;
    failed.failure = {wire::FailureCode::lost, error.what()};
    return post([handler = std::move(handler), failed] { handler(failed); });
  }
  blobs_->fetch(blob.id, blob.bytes, kBlobDeadline, std::move(handler));
}

control::BlobId Link::hold(std::string bytes) {
  const control::BlobId id = store_.add(std::move(bytes));
  post([this] {
    try {
      open_blobs();
    } catch (const std::exception& error) {
      lose({ErrorCode::lost, error.what()});
    }
  });
  return id;
}

}  // namespace troupe::client
