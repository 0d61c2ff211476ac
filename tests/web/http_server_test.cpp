#include "web/http_server.h"

#include <algorithm>
#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <future>
#include <thread>

#include "tests/support/doctest.h"
#include "tests/support/patience.h"

using namespace std::chrono_literals;
using namespace troupe::web;
namespace asio = boost::asio;
using asio::ip::tcp;

namespace {

/// A server that echoes bodies at /echo, streams at /stream until told to end, and never answers
/// /silent. /late streams and listens for the client's going afterwards; /big has 32 MiB, /huge
/// 128. At /turn it notes whose turn it is.
class Echo {
 public:
  explicit Echo(ServerOptions options = {}) {
    options.port = 0;
    options.memory_per_body_byte = 1;
    server_.emplace(io_, options,
                    HttpServer::Handler{[this](RequestHead head) { return admit(head); }});
    thread_ = std::thread([this] { io_.run(); });
  }
  ~Echo() {
    run([this] {
      server_.reset();
      stream = nullptr;
      memory = nullptr;
      kept.clear();
    });
    guard_.reset();
    io_.stop();
    thread_.join();
  }

  void run(std::function<void()> work) {
    std::promise<void> done;
    asio::post(io_, [&] {
      work();
      done.set_value();
    });
    REQUIRE(done.get_future().wait_for(troupe::testing::kPatience) == std::future_status::ready);
  }
  ServerCounts counts() {
    ServerCounts counts;
    run([&] { counts = server_->counts(); });
    return counts;
  }
  std::uint16_t port() const { return server_->port(); }

  ReplyPtr stream;
  RequestMemoryPtr memory;         // of the request whose reply that is
  std::vector<ReplyPtr> kept;      // of requests for /kept, which are never answered
  std::vector<std::string> turns;  // keys of requests for /turn, in the order of their answers
  std::atomic<int> gone = 0;

 private:
  HttpServer::Handler::Admission admit(const RequestHead& head) {
    const std::string path = head.path_text();
    const std::string key = head.field("x-key");
    return {.most_body = 1000,
            .serve =
                [this, path, key](std::string body, RequestMemoryPtr taken, const ReplyPtr& reply) {
                  if (path == "/late") reply->begin(event_stream(), kHeartbeat);
                  reply->on_gone([this] { ++gone; });
                  if (path == "/turn") turns.push_back(key);
                  if (path == "/turn") return reply->send({.body = "it"});
                  if (path == "/big") return reply->send({.body = std::string(32 << 20, 'x')});
                  if (path == "/huge") return reply->send({.body = std::string(128 << 20, 'x')});
                  if (path == "/echo") return reply->send({.type = "text/plain", .body = body});
                  if (path == "/dropped") return;
                  if (path == "/kept") return kept.push_back(reply);
                  if (path == "/stream") reply->begin(event_stream(), kHeartbeat);
                  stream = reply;
                  memory = std::move(taken);
                },
            .refusal = path == "/no" ? std::optional<Response>({.status = 403, .body = "no"})
                                     : std::nullopt,
            .key = key};
  }

  asio::io_context io_{1};
  asio::executor_work_guard<asio::io_context::executor_type> guard_ = asio::make_work_guard(io_);
  std::optional<HttpServer> server_;
  std::thread thread_;
};

class Visitor {
 public:
  explicit Visitor(const Echo& echo) : socket_(io_) {
    socket_.connect({asio::ip::address_v4::loopback(), echo.port()});
  }
  void send(const std::string& text) {
    boost::system::error_code ignored;
    asio::write(socket_, asio::buffer(text), ignored);
  }
  /// Reads until `end` has come, or the connection ends.
  std::string read_until(const std::string& end) {
    char piece[4096];
    boost::system::error_code error;
    while (end.empty() || text_.find(end) == std::string::npos) {
      const std::size_t got = socket_.read_some(asio::buffer(piece), error);
      if (error) break;
      text_.append(piece, got);
    }
    return std::exchange(text_, {});
  }
  std::string read_all() { return read_until(""); }
  void close() { socket_.close(); }
  void end_sending() { socket_.shutdown(tcp::socket::shutdown_send); }
  bool is_open() {
    char one = 0;
    boost::system::error_code error;
    socket_.non_blocking(true);
    socket_.receive(asio::buffer(&one, 1), tcp::socket::message_peek, error);
    socket_.non_blocking(false);
    return !error || error == asio::error::would_block;
  }

 private:
  asio::io_context io_;
  tcp::socket socket_;
  std::string text_;
};

bool comes(const std::function<bool()>& condition) {
  const auto until = std::chrono::steady_clock::now() + troupe::testing::kPatience;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(5ms);
  }
  return true;
}

}  // namespace

TEST_CASE("requests of one connection, one after the other and at once") {
  Echo echo;
  Visitor visitor(echo);
  visitor.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab");
  CHECK(visitor.read_until("ab").starts_with("HTTP/1.1 200"));
  visitor.send(
      "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\ncdPOST /echo HTTP/1.1\r\nHost: "
      "x\r\n"
      "Transfer-Encoding: chunked\r\n\r\n2\r\nef\r\n0\r\n\r\nGET /echo HTTP/1.0\r\n\r\n");
  const auto rest = visitor.read_all();
  CHECK(rest.find("\r\n\r\ncd") < rest.find("\r\n\r\nef"));
  CHECK(rest.find("HTTP/1.0 200") != std::string::npos);
}

TEST_CASE("what is no request, or too much of one, is refused, and the connection ends") {
  Echo echo;
  const std::pair<std::string, const char*> kWrong[] = {
      {"hello\r\n\r\n", "HTTP/1.1 400"},
      {"GET /echo HTTP/1.1\r\nConnection: close\r\n\r\n", "HTTP/1.1 400"},
      {"GET /%zz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "HTTP/1.1 400"},
      {"GET /echo HTTP/1.1\r\nHost: x\r\nX: " + std::string(20000, 'x') + "\r\n\r\n",
       "HTTP/1.1 431"},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1001\r\n\r\n", "HTTP/1.1 413"},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 18446744073709551616\r\n\r\n",
       "HTTP/1.1 400"},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
       "HTTP/1.1 400"},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
       "HTTP/1.1 400"},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: 1\r\n\r\nz",
       "HTTP/1.1 415"},
      {"POST /no HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n", "HTTP/1.1 403"},
      // What a proxy in front may read as another length, or another host.
      {"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n", "HTTP/1.1 501"},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
       "HTTP/1.1 501"},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
       "HTTP/1.1 501"},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: "
       "identity\r\n\r\n0\r\n\r\n",
       "HTTP/1.1 400"},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: "
       "5\r\n\r\n0\r\n\r\n",
       "HTTP/1.1 400"},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: "
       "chunked\r\n\r\n0\r\n\r\n",
       "HTTP/1.1 400"},
      {"POST /echo HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", "HTTP/1.0 400"},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nz",
       "HTTP/1.1 400"},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1, 1\r\n\r\nz", "HTTP/1.1 400"},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: +1\r\n\r\nz", "HTTP/1.1 400"},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 0x1\r\n\r\nz", "HTTP/1.1 400"},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length : 1\r\n\r\nz", "HTTP/1.1 400"},
      {"POST /echo HTTP/1.1\r\nHost: x\r\n Content-Length: 1\r\n\r\nz", "HTTP/1.1 400"},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding:\r\n gzip\r\n\r\n", "HTTP/1.1 501"},
      {"GET /echo HTTP/1.1\r\nHost: x, y\r\n\r\n", "HTTP/1.1 400"},
      {"GET /echo HTTP/1.1\r\nHost: x\rX: y\r\n\r\n", "HTTP/1.1 400"},
      {"GET /echo HTTP/1.1\nHost: x\n\n\r\n\r\n", "HTTP/1.1 400"},
      {std::string("GET /echo HTTP/1.1\r\nHost: x\r\nX: a") + '\0' + "b\r\n\r\n", "HTTP/1.1 400"},
      {"GET /echo HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n", "HTTP/1.1 400"},
      {"GET /echo HTTP/1.1\r\nHost: x\r\nhost: x\r\n\r\n", "HTTP/1.1 400"},
      {"GET http://y/echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n", "HTTP/1.1 400"},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1 \r\nz\r\n0\r\n\r\n",
       "HTTP/1.1 400"},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n1\nz\n0\n\n\r\n",
       "HTTP/1.1 400"},
      {"POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 200-ok\r\nContent-Length: 1\r\n\r\n",
       "HTTP/1.1 417"}};
  for (const auto& [request, status] : kWrong) {
    CAPTURE(request.substr(0, 80));
    std::string closing = request;
    if (const auto host = closing.find("Host: x\r\n"); host != std::string::npos)
      closing.insert(host, "Connection: close\r\n");
    Visitor visitor(echo);
    visitor.send(closing);
    CHECK(visitor.read_all().starts_with(status));
  }
  // A body without an end, in chunks.
  Visitor endless(echo);
  endless.send("POST /echo HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n");
  for (int i = 0; i < 20; ++i)
    endless.send("64\r\n" + std::string(100, 'x') + "\r\n");
  CHECK(endless.read_all().starts_with("HTTP/1.1 413"));
}

TEST_CASE("a refused body is not read, and HEAD has none") {
  Echo echo;
  Visitor visitor(echo);
  visitor.send(
      "HEAD /echo HTTP/1.1\r\nHost: x\r\n\r\nPOST /echo HTTP/1.1\r\nHost: x\r\nExpect: "
      "100-Continue\r\nContent-Length: 1\r\n\r\n");
  CHECK(visitor.read_until("100 Continue\r\n\r\n").find("200 OK") != std::string::npos);
  visitor.send("z");
  CHECK(visitor.read_until("\r\n\r\nz").find("200 OK") != std::string::npos);
}

TEST_CASE("a stream, and who leaves it") {
  Echo echo;
  Visitor visitor(echo);
  visitor.send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  CHECK(visitor.read_until("\r\n\r\n").find("Transfer-Encoding: chunked") != std::string::npos);
  echo.run([&] { echo.stream->write(piece("data: 1\n\n"), false); });
  CHECK(visitor.read_until("data: 1\n\n").starts_with("9\r\ndata: 1\n\n"));
  CHECK(echo.counts().streams == 1);
  echo.run([&] { echo.stream->end(); });
  CHECK(visitor.read_until("0\r\n\r\n").find("0\r\n\r\n") != std::string::npos);
  CHECK(echo.gone == 0);
  // The connection goes on, and a word after the end is dropped.
  echo.run([&] { echo.stream->write(piece("late"), false); });
  visitor.send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  visitor.read_until("\r\n\r\n");
  visitor.close();
  CHECK(comes([&] { return echo.gone == 1; }));
  CHECK(echo.counts().streams == 0);
  CHECK(echo.counts().connections == 0);
  // Also who waits for a whole answer.
  Visitor waiting(echo);
  waiting.send("GET /silent HTTP/1.1\r\nHost: x\r\n\r\n");
  CHECK(comes([&] { return echo.counts().connections == 1; }));
  waiting.close();
  CHECK(comes([&] { return echo.gone == 2; }));
}

TEST_CASE("who ends its side after a whole request has its answer, and the connection ends") {
  Echo echo;
  const auto answer_all = [&](std::size_t requests) {
    REQUIRE(comes([&] {
      bool all_here = false;
      echo.run([&] { all_here = echo.kept.size() == requests; });
      return all_here;
    }));
    echo.run([&] {
      for (const auto& reply : std::exchange(echo.kept, {}))
        reply->send({.body = "done"});
    });
  };
  for (const bool is_new : {true, false}) {
    CAPTURE(is_new);
    Visitor visitor(echo);
    visitor.send(is_new ? "GET /kept HTTP/1.1\r\nHost: x\r\n\r\n" : "GET /kept HTTP/1.0\r\n\r\n");
    visitor.end_sending();
    if (is_new) CHECK(visitor.read_until("\r\n\r\n") == "HTTP/1.1 100 Continue\r\n\r\n");
    answer_all(1);
    const auto answer = visitor.read_all();
    CHECK(answer.starts_with(is_new ? "HTTP/1.1 200" : "HTTP/1.0 200"));
    CHECK(answer.ends_with("done"));
    CHECK(comes([&] { return echo.counts().connections == 0; }));
  }
  // Requests that were sent at once are all answered.
  Visitor two(echo);
  two.send(
      "POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nabGET /kept HTTP/1.1\r\nHost: "
      "x\r\n\r\n");
  two.end_sending();
  answer_all(1);
  const auto answers = two.read_all();
  CHECK(answers.find("\r\n\r\nab") != std::string::npos);
  CHECK(answers.ends_with("done"));
  // A stream goes on.
  Visitor watcher(echo);
  watcher.send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  watcher.read_until("\r\n\r\n");
  watcher.end_sending();
  CHECK(watcher.read_until(kHeartbeat).find(kHeartbeat) != std::string::npos);
  echo.run([&] {
    echo.stream->write(piece("data: 1\n\n"), false);
    echo.stream->end();
  });
  CHECK(watcher.read_all().find("data: 1\n\n") != std::string::npos);
  CHECK(echo.gone == 0);
}

TEST_CASE("a request that nobody answers ends with 500") {
  Echo echo;
  Visitor visitor(echo);
  visitor.send("GET /dropped HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  CHECK(visitor.read_all().starts_with("HTTP/1.1 500"));
}

TEST_CASE("a slow reader loses pieces that may be lost, and is cut off for others") {
  ServerOptions options;
  options.most_unread_bytes = 8 << 20;
  Echo echo(options);
  Visitor visitor(echo);
  visitor.send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  visitor.read_until("\r\n\r\n");
  const Piece megabyte = piece(std::string(1 << 20, 'x'));
  for (int i = 0; i < 100; ++i)
    echo.run([&] { echo.stream->write(megabyte, true); });
  CHECK(echo.counts().streams == 1);
  CHECK(echo.gone == 0);
  for (int i = 0; i < 100; ++i)
    echo.run([&] { echo.stream->write(megabyte, false); });
  CHECK(echo.gone == 1);
  CHECK(echo.counts().streams == 0);
  CHECK(echo.counts().cut_off == 1);
}

TEST_CASE("where there is no room, the connection that has waited longest goes") {
  ServerOptions options;
  options.most_connections = 3;
  Echo echo(options);
  Visitor served(echo);
  served.send("GET /silent HTTP/1.1\r\nHost: x\r\n\r\n");
  CHECK(comes([&] { return echo.counts().connections == 1; }));
  std::vector<std::unique_ptr<Visitor>> idle;
  for (int i = 0; i < 10; ++i)
    idle.push_back(std::make_unique<Visitor>(echo));
  CHECK(comes([&] { return echo.counts().refused_connections == 8; }));
  CHECK(echo.counts().connections == 3);
  idle.back()->send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nz");
  CHECK(idle.back()->read_until("\r\n\r\nz").starts_with("HTTP/1.1 200"));
  CHECK(echo.gone == 0);
}

TEST_CASE("who asks for a stream's header alone is soon gone") {
  Echo echo;
  Visitor visitor(echo);
  visitor.send("HEAD /late HTTP/1.1\r\nHost: x\r\n\r\n");
  CHECK(visitor.read_until("\r\n\r\n").starts_with("HTTP/1.1 200"));
  CHECK(comes([&] { return echo.gone == 1; }));
  CHECK(echo.counts().streams == 0);
  echo.run([&] { echo.stream->write(piece("late"), false); });
  visitor.send("POST /echo HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\n\r\nz");
  CHECK(visitor.read_until("\r\n\r\nz").starts_with("HTTP/1.1 200"));
}

TEST_CASE("whole answers that are not read have a limit, and the largest goes") {
  ServerOptions options;
  options.most_unread_bytes = 100 << 20;
  Echo echo(options);
  Visitor watcher(echo);
  watcher.send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  watcher.read_until("\r\n\r\n");
  std::vector<std::unique_ptr<Visitor>> slow;
  for (int i = 0; i < 5; ++i) {
    slow.push_back(std::make_unique<Visitor>(echo));
    slow.back()->send("GET /big HTTP/1.1\r\nHost: x\r\n\r\n");
    slow.back()->read_until("\r\n\r\n");
  }
  CHECK(echo.counts().cut_off == 2);
  CHECK(echo.counts().connections == 4);
  // A stream that is read goes on, at the cost of one that is not.
  echo.run(
      [&] { echo.stream->write(piece("data: " + std::string(8 << 20, 'y') + "\n\n"), false); });
  CHECK(watcher.read_until("\n\n").size() > 8 << 20);
  CHECK(echo.counts().cut_off == 3);
  CHECK(echo.counts().streams == 1);
  Visitor huge(echo);
  huge.send("GET /huge HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n");
  CHECK(huge.read_all().starts_with("HTTP/1.1 503"));
  CHECK(echo.counts().cut_off == 3);
}

TEST_CASE("bodies count as they come, until their requests are done with") {
  ServerOptions options;
  options.most_body_bytes = 1500;
  Echo echo(options);
  const auto post = [](const std::string& path, std::size_t length, std::size_t sent) {
    return "POST " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: " +
           std::to_string(length) + "\r\n\r\n" + std::string(sent, 'z');
  };
  std::vector<std::unique_ptr<Visitor>> slow;
  for (int i = 0; i < 5; ++i) {
    slow.push_back(std::make_unique<Visitor>(echo));
    slow.back()->send(post("/echo", 1000, 10));
  }
  Visitor one(echo);
  one.send(post("/silent", 1000, 1000));
  CHECK(comes([&] {
    bool is_there = false;
    echo.run([&] { is_there = echo.stream != nullptr; });
    return is_there;
  }));
  // The body of `one` lives on.
  Visitor second(echo);
  second.send(post("/echo", 600, 600));
  CHECK(second.read_all().starts_with("HTTP/1.1 503"));
  Visitor third(echo);
  third.send(post("/echo", 300, 300));
  CHECK(third.read_all().starts_with("HTTP/1.1 200"));
  echo.run([&] {
    echo.stream->send({.body = "done"});
    echo.stream = nullptr;
    echo.memory = nullptr;
  });
  CHECK(one.read_all().find("done") != std::string::npos);
  Visitor last(echo);
  last.send(post("/echo", 1000, 1000));
  CHECK(last.read_all().starts_with("HTTP/1.1 200"));
  CHECK(echo.counts().cut_off == 0);
}

TEST_CASE("an upload that was admitted does not go where there is no room") {
  ServerOptions options;
  options.most_connections = 3;
  Echo echo(options);
  Visitor upload(echo);
  upload.send(
      "POST /echo HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n");
  upload.read_until("100 Continue\r\n\r\n");
  std::vector<std::unique_ptr<Visitor>> idle;
  for (int i = 0; i < 10; ++i)
    idle.push_back(std::make_unique<Visitor>(echo));
  CHECK(comes([&] { return echo.counts().refused_connections == 8; }));
  upload.send("ab");
  CHECK(upload.read_until("\r\n\r\nab").starts_with("HTTP/1.1 200"));
}

TEST_CASE("bodies of one key have a limit of their own") {
  ServerOptions options;
  options.most_body_bytes = 2000;
  options.most_body_bytes_of_one = 1000;
  Echo echo(options);
  const auto post = [](const std::string& path, const std::string& key, std::size_t bytes) {
    return "POST " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Key: " + key +
           "\r\nContent-Length: " + std::to_string(bytes) + "\r\n\r\n" + std::string(bytes, 'z');
  };
  const auto status = [&](const std::string& key, std::size_t bytes) {
    Visitor visitor(echo);
    visitor.send(post("/echo", key, bytes));
    return visitor.read_all().substr(0, 12);
  };
  Visitor one(echo);
  one.send(post("/silent", "one", 800));
  CHECK(comes([&] {
    bool is_there = false;
    echo.run([&] { is_there = echo.memory != nullptr; });
    return is_there;
  }));
  CHECK(status("one", 300) == "HTTP/1.1 503");
  CHECK(status("two", 900) == "HTTP/1.1 200");
  // What is made of the body counts in its place.
  echo.run([&] {
    CHECK_FALSE(echo.memory->resize(1001));
    CHECK(echo.memory->resize(1000));
    CHECK(echo.memory->resize(10));
  });
  CHECK(status("one", 900) == "HTTP/1.1 200");
  echo.run([&] { echo.memory = nullptr; });
  CHECK(status("one", 1000) == "HTTP/1.1 200");
}

TEST_CASE("a body counts for all that is made of it") {
  ServerOptions options;
  CHECK(options.memory_per_body_byte >= 4);
  options.most_body_bytes_of_one = 1000;
  asio::io_context io{1};
  std::optional<Response> answered;
  HttpServer server(io, options, {[](const RequestHead&) {
                      return HttpServer::Handler::Admission{
                          .most_body = 1000,
                          .serve = [](std::string, RequestMemoryPtr,
                                      const ReplyPtr& reply) { reply->send({.body = "taken"}); },
                          .refusal = {}};
                    }});
  std::thread loop([&] { io.run(); });
  const auto answer = [&](std::size_t bytes) {
    tcp::iostream stream(asio::ip::address_v4::loopback().to_string(),
                         std::to_string(server.port()));
    stream << "POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: " << bytes
           << "\r\n\r\n"
           << std::string(bytes, 'z') << std::flush;
    return std::string(std::istreambuf_iterator<char>(stream), {}).substr(0, 12);
  };
  CHECK(answer(200) == "HTTP/1.1 200");
  CHECK(answer(201) == "HTTP/1.1 503");
  asio::post(io, [&] {
    server.close();
    io.stop();
  });
  loop.join();
}

namespace {

/// Visitors that ask for `path` with a key, and wait until the server has `before` and them.
std::vector<std::unique_ptr<Visitor>> visitors(Echo& echo, std::size_t number,
                                               const std::string& path, const std::string& key,
                                               std::size_t before) {
  std::vector<std::unique_ptr<Visitor>> all;
  for (std::size_t i = 0; i < number; ++i) {
    all.push_back(std::make_unique<Visitor>(echo));
    all.back()->send("GET " + path + " HTTP/1.1\r\nHost: x\r\nX-Key: " + key + "\r\n\r\n");
    if (path == "/stream") all.back()->read_until("\r\n\r\n");
  }
  CHECK(comes([&] { return echo.counts().connections == before + number; }));
  return all;
}

std::string asked(Echo& echo, const std::string& key) {
  Visitor visitor(echo);
  visitor.send("GET /echo HTTP/1.1\r\nHost: x\r\nConnection: close\r\nX-Key: " + key + "\r\n\r\n");
  return visitor.read_all().substr(0, 12);
}

}  // namespace

TEST_CASE("a key that takes every connection gives way to others") {
  ServerOptions options;
  options.most_connections = 8;
  for (const std::string path : {"/stream", "/kept"}) {
    CAPTURE(path);
    Echo echo(options);
    const auto few = visitors(echo, 2, path, "few", 0);
    const auto many = visitors(echo, 6, path, "many", 2);
    for (int i = 0; i < 3; ++i)
      CHECK(asked(echo, "other") == "HTTP/1.1 200");
    CHECK(echo.counts().refused_connections >= 1);
    // Nobody else's connection went.
    CHECK(std::ranges::all_of(few, [](const auto& one) { return one->is_open(); }));
    CHECK(comes([&] {
      return std::ranges::any_of(many, [](const auto& one) { return !one->is_open(); });
    }));
  }
}

TEST_CASE("who has all connections itself loses a stream to its next request, not one that waits") {
  ServerOptions options;
  options.most_connections = 4;
  Echo echo(options);
  const auto work = visitors(echo, 1, "/kept", "", 0);
  const auto streams = visitors(echo, 3, "/stream", "", 1);
  CHECK(asked(echo, "") == "HTTP/1.1 200");
  CHECK(echo.counts().streams == 2);
  CHECK(work.front()->is_open());
}

TEST_CASE("requests whose answers are never read keep nobody out") {
  ServerOptions options;
  options.most_connections = 3;
  Echo echo(options);
  std::vector<std::unique_ptr<Visitor>> rude;
  for (int i = 0; i < 3; ++i) {
    rude.push_back(std::make_unique<Visitor>(echo));
    for (int request = 0; request < 3; ++request)
      rude.back()->send("GET /big HTTP/1.1\r\nHost: x\r\n\r\n");
    rude.back()->read_until("\r\n\r\n");
  }
  CHECK(asked(echo, "") == "HTTP/1.1 200");
  CHECK(asked(echo, "other") == "HTTP/1.1 200");
}

TEST_CASE("a key that asks for much waits for itself, and others have their turns") {
  Echo echo;
  const auto ask = [](const std::string& key) {
    return "GET /turn HTTP/1.1\r\nHost: x\r\nX-Key: " + key + "\r\n\r\n";
  };
  std::vector<std::unique_ptr<Visitor>> many;
  for (int i = 0; i < 20; ++i) {
    many.push_back(std::make_unique<Visitor>(echo));
    many.back()->send(ask("many"));
    CHECK(many.back()->read_until("\r\n\r\nit").starts_with("HTTP/1.1 200"));
  }
  Visitor one(echo);
  one.send(ask("one"));
  one.read_until("\r\n\r\nit");
  echo.run([&] {
    echo.turns.clear();
    for (const auto& visitor : many)
      visitor->send(ask("many") + ask("many") + ask("many"));
    one.send(ask("one"));
  });
  CHECK(one.read_until("\r\n\r\nit").starts_with("HTTP/1.1 200"));
  CHECK(comes([&] {
    std::size_t answered = 0;
    echo.run([&] { answered = echo.turns.size(); });
    return answered == 61;
  }));
  CHECK(std::ranges::find(echo.turns, "one") - echo.turns.begin() <= 2);
}

TEST_CASE("the system keeps little for who does not read") {
  Echo echo;
  Visitor visitor(echo);
  visitor.send("GET /stream HTTP/1.1\r\nHost: x\r\n\r\n");
  visitor.read_until("\r\n\r\n");
  // Each piece has had its chance to be written before the next one comes.
  for (int i = 0; i < 400; ++i)
    echo.run([&] { echo.stream->write(piece(std::string(16 << 10, 'x')), true); });
  echo.run([&] { echo.stream->end(); });
  CHECK(visitor.read_until("\r\n0\r\n\r\n").size() < (1 << 20));
}
