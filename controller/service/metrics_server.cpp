#include "controller/service/metrics_server.h"

#include <fcntl.h>

#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <deque>
#include <stdexcept>

#include "base/format.h"

namespace troupe::service {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = beast::http;
using asio::ip::tcp;

constexpr std::size_t kMostVisits = 16;
constexpr std::chrono::seconds kPatience{5};
constexpr std::size_t kLongestHeader = 8192;

http::response<http::string_body> answer_to(const http::request<http::empty_body>& request,
                                            const std::function<std::string()>& text) {
  http::response<http::string_body> answer{http::status::ok, request.version()};
  answer.set(http::field::server, "troupe");
  answer.keep_alive(false);
  const auto say = [&](http::status status, const std::string& what) {
    answer.result(status);
    answer.set(http::field::content_type, "text/plain; charset=utf-8");
    answer.body() = what + "\n";
  };
  const auto target = request.target().substr(0, request.target().find('?'));
  if (request.method() != http::verb::get && request.method() != http::verb::head) {
    answer.set(http::field::allow, "GET, HEAD");
    say(http::status::method_not_allowed, "only GET");
  } else if (target != "/metrics") {
    say(http::status::not_found, "the metrics are at /metrics");
  } else {
    answer.set(http::field::content_type, "text/plain; version=0.0.4; charset=utf-8");
    answer.body() = text();
  }
  answer.prepare_payload();
  if (request.method() == http::verb::head) answer.body().clear();
  return answer;
}

}  // namespace

/// One connection, one request.
class MetricsVisit : public std::enable_shared_from_this<MetricsVisit> {
 public:
  MetricsVisit(tcp::socket socket, std::shared_ptr<std::function<std::string()>> text)
      : stream_(std::move(socket)), text_(std::move(text)) {
    parser_.header_limit(kLongestHeader);
    parser_.body_limit(0);
  }

  void begin() {
    stream_.expires_after(kPatience);
    http::async_read(stream_, buffer_, parser_,
                     [self = shared_from_this()](const beast::error_code& error, std::size_t) {
                       if (!error) self->answer();
                     });
  }
  void end() { stream_.close(); }

 private:
  void answer() {
    answer_ = answer_to(parser_.get(), *text_);
    http::async_write(stream_, answer_,
                      [self = shared_from_this()](const beast::error_code&, std::size_t) {
                        beast::error_code ignored;
                        self->stream_.socket().shutdown(tcp::socket::shutdown_send, ignored);
                      });
  }

  beast::tcp_stream stream_;
  std::shared_ptr<std::function<std::string()>> text_;  // the server's, which may be gone
  beast::flat_buffer buffer_{kLongestHeader};
  http::request_parser<http::empty_body> parser_;
  http::response<http::string_body> answer_;
};

class MetricsServer::Impl : public std::enable_shared_from_this<MetricsServer::Impl> {
 public:
  Impl(asio::io_context& io, std::uint16_t port, std::function<std::string()> text)
      : acceptor_(io), text_(std::make_shared<std::function<std::string()>>(std::move(text))) {
    const tcp::endpoint here(asio::ip::address_v4::loopback(), port);
    beast::error_code error;
    acceptor_.open(here.protocol(), error);
    // Asio does not say it itself.
    if (!error) fcntl(acceptor_.native_handle(), F_SETFD, FD_CLOEXEC);
    if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor_.bind(here, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error) {
      throw std::runtime_error(
          fmt::format("[metrics] 127.0.0.1:{} cannot be listened on: {}", port, error.message()));
    }
  }

  void accept() {
    acceptor_.async_accept(
        [self = shared_from_this()](const beast::error_code& error, tcp::socket socket) {
          if (!self->acceptor_.is_open()) return;
          if (!error) {
            self->begin(std::move(socket));
            return self->accept();
          }
          // Out of file descriptors, say: not at once again.
          self->pause_.expires_after(std::chrono::milliseconds(200));
          self->pause_.async_wait([self](const beast::error_code& cancelled) {
            if (!cancelled && self->acceptor_.is_open()) self->accept();
          });
        });
  }

  void begin(tcp::socket socket) {
    std::erase_if(visits_, [](const auto& visit) { return visit.expired(); });
    while (visits_.size() >= kMostVisits) {
      if (const auto oldest = visits_.front().lock()) oldest->end();
      visits_.pop_front();
    }
    const auto visit = std::make_shared<MetricsVisit>(std::move(socket), text_);
    visits_.push_back(visit);
    visit->begin();
  }

  void close() {
    beast::error_code ignored;
    acceptor_.close(ignored);
    pause_.cancel();
    *text_ = [] { return std::string(); };
  }

  std::uint16_t port() const { return acceptor_.local_endpoint().port(); }

 private:
  tcp::acceptor acceptor_;
  asio::steady_timer pause_{acceptor_.get_executor()};
  std::shared_ptr<std::function<std::string()>> text_;
  std::deque<std::weak_ptr<MetricsVisit>> visits_;  // in the order in which they came
};

MetricsServer::MetricsServer(asio::io_context& io, std::uint16_t port,
                             std::function<std::string()> text)
    : impl_(std::make_shared<Impl>(io, port, std::move(text))) {
  impl_->accept();
}

MetricsServer::~MetricsServer() {
  impl_->close();
}

std::uint16_t MetricsServer::port() const {
  return impl_->port();
}

}  // namespace troupe::service
