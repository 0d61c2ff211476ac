#include "web/http_server.h"

#include <fcntl.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/ssl/impl/src.hpp>
#include <boost/asio/steady_timer.hpp>
#include <optional>
#include <stdexcept>

#include "base/format.h"
#include "web/http_connection.h"

namespace troupe::web {
namespace {

namespace asio = boost::asio;
namespace ssl = asio::ssl;
using asio::ip::tcp;
using boost::system::error_code;
using std::chrono::milliseconds;

/// Bytes of an answer that the system keeps of what it has not sent yet. Nobody counts them.
constexpr int kMostUnsent = 128 << 10;

ssl::context tls_context(const ServerOptions& options) {
  ssl::context context(ssl::context::tls_server);
  context.set_options(ssl::context::no_tlsv1 | ssl::context::no_tlsv1_1);
  error_code error;
  context.use_certificate_chain_file(options.certificate, error);
  if (error) throw std::runtime_error("[tls-cert] " + options.certificate + ": " + error.message());
  context.use_private_key_file(options.key, ssl::context::pem, error);
  if (error) throw std::runtime_error("[tls-key] " + options.key + ": " + error.message());
  return context;
}

}  // namespace

class HttpServer::Impl : public std::enable_shared_from_this<HttpServer::Impl> {
 public:
  Impl(asio::io_context& io, const ServerOptions& options, Handler handler)
      : acceptor_(io), limits_(std::make_shared<ServerLimits>(io.get_executor())) {
    limits_->options = options;
    limits_->handler = std::move(handler);
    if (!options.certificate.empty()) tls_.emplace(tls_context(options));
    error_code error;
    const auto address = asio::ip::make_address(options.address, error);
    if (error) throw std::runtime_error("[http] " + options.address + " is no numeric address");
    const tcp::endpoint here(address, options.port);
    acceptor_.open(here.protocol(), error);
    // Asio does not say it itself.
    if (!error) fcntl(acceptor_.native_handle(), F_SETFD, FD_CLOEXEC);
    if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor_.bind(here, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error) {
      throw std::runtime_error(fmt::format("[http] {}:{} cannot be listened on: {}",
                                           options.address, options.port, error.message()));
    }
  }

  void accept() {
    acceptor_.async_accept(
        [self = shared_from_this()](const error_code& error, tcp::socket socket) {
          if (!self->acceptor_.is_open()) return;
          if (!error) {
            self->begin(std::move(socket));
            return self->accept();
          }
          // Out of file descriptors, say: not at once again.
          self->pause_.expires_after(milliseconds(200));
          self->pause_.async_wait([self](const error_code& cancelled) {
            if (!cancelled && self->acceptor_.is_open()) self->accept();
          });
        });
  }

  void begin(tcp::socket socket) {
    fcntl(socket.native_handle(), F_SETFD, FD_CLOEXEC);
    error_code ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    setsockopt(socket.native_handle(), IPPROTO_TCP, TCP_NOTSENT_LOWAT, &kMostUnsent,
               sizeof kMostUnsent);
    if (limits_->all.size() >= limits_->options.most_connections) {
      ++limits_->counts.refused_connections;
      const auto from = socket.remote_endpoint(ignored);
      ServerConnection* goes = limits_->who_goes(owner_of(from.address()));
      if (!goes) return;
      goes->close();
    }
    begin_connection(std::move(socket), tls_ ? &*tls_ : nullptr, limits_);
  }

  void close() {
    error_code ignored;
    acceptor_.close(ignored);
    pause_.cancel();
    const auto all = limits_->all;
    for (ServerConnection* one : all)
      if (limits_->all.contains(one)) one->close();
    limits_->turns->clear();
    limits_->handler.admit = [](RequestHead) { return Handler::Admission{}; };
  }

  tcp::acceptor acceptor_;
  asio::steady_timer pause_{acceptor_.get_executor()};
  std::optional<ssl::context> tls_;
  std::shared_ptr<ServerLimits> limits_;
};

HttpServer::HttpServer(asio::io_context& io, const ServerOptions& options, Handler handler)
    : impl_(std::make_shared<Impl>(io, options, std::move(handler))) {
  impl_->accept();
}

HttpServer::~HttpServer() {
  close();
}

void HttpServer::close() {
  impl_->close();
}

std::uint16_t HttpServer::port() const {
  error_code ignored;
  return impl_->acceptor_.local_endpoint(ignored).port();
}

ServerCounts HttpServer::counts() const {
  return impl_->limits_->counts;
}

}  // namespace troupe::web
