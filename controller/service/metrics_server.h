#pragma once
#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace troupe::service {

/// Answers GET /metrics on a loopback port, on the controller's loop. Requests are small, few at
/// once, and end within seconds; whoever sends more is cut off, and where there are too many the
/// one goes that has taken longest.
class MetricsServer {
 public:
  /// Listens on 127.0.0.1:`port`; 0 = any free one. `text` is asked for each answer. Throws
  /// std::runtime_error naming the port and why.
  MetricsServer(boost::asio::io_context& io, std::uint16_t port, std::function<std::string()> text);
  ~MetricsServer();
  MetricsServer(const MetricsServer&) = delete;
  MetricsServer& operator=(const MetricsServer&) = delete;

  std::uint16_t port() const;

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace troupe::service
