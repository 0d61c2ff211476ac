#pragma once
#include <boost/asio/io_context.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "web/http_message.h"

namespace troupe::web {

struct ServerOptions {
  std::string address = "127.0.0.1";  // a numeric one
  std::uint16_t port = 7480;          // 0 = any free one
  std::string certificate, key;       // files in PEM; "" = without TLS
  std::size_t most_connections = 4096;
  /// Memory of requests, from their bodies' first bytes until they are dropped.
  std::size_t most_body_bytes = std::size_t{1} << 30;
  std::size_t most_body_bytes_of_one = std::size_t{512} << 20;  // key, or address without keys
  /// Memory per byte of a body until it is handed in: as it came, parsed, taken out of what was
  /// parsed, decoded, and ready to be sent.
  std::size_t memory_per_body_byte = 5;
  std::size_t most_unread_bytes = std::size_t{1} << 30;  // of all answers that are not yet read
};

struct ServerCounts {
  std::size_t connections = 0;
  std::size_t streams = 0;
  std::uint64_t refused_connections = 0;
  std::uint64_t cut_off = 0;  // clients that read or wrote too slowly
};

/// Speaks HTTP/1.1, with or without TLS, on one thread: the loop's. Everything is bounded:
/// connections, headers, bodies, how long a request may take to come, what waits for slow readers.
/// Where connections are short, whoever has most of them, a key or an address, gives way.
class HttpServer {
 public:
  /// Handler of a request. `admit` sees its beginning, and says how many bytes its body may have,
  /// or refuses it; then `serve` has it whole.
  struct Handler {
    struct Admission {
      std::size_t most_body = 0;
      std::function<void(std::string body, RequestMemoryPtr, const ReplyPtr&)> serve;
      std::optional<Response> refusal;
      std::string key = {};  // name of the key whose request it is; "" = the client's address
    };
    std::function<Admission(RequestHead)> admit;
  };

  /// Listens. Throws std::runtime_error naming address, port and why, or the TLS file that is
  /// wrong.
  HttpServer(boost::asio::io_context& io, const ServerOptions& options, Handler handler);
  /// Must run on the loop's thread, or when the loop does not run.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  std::uint16_t port() const;
  ServerCounts counts() const;
  /// Takes no more connections, and ends those that there are.
  void close();

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace troupe::web
