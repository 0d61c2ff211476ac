#include "controller/service/metrics.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>
#include <cmath>
#include <filesystem>
#include <limits>
#include <map>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>

#include "base/metrics_text.h"
#include "controller/service/metrics_server.h"
#include "tests/support/doctest.h"

namespace troupe::service {
namespace {

/// A strict reader of the text format: throws at what Prometheus would refuse, and at a family that
/// comes twice or counters not named as such.
class Exposition {
 public:
  explicit Exposition(const std::string& text) {
    if (text.empty() || text.back() != '\n') throw std::runtime_error("no end of line at the end");
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);)
      take(line);
  }

  std::map<std::string, double> samples;  // by name and labels, as written
  std::map<std::string, std::string> types;

 private:
  static bool is_name(const std::string& name) {
    if (name.empty() || (std::isdigit(static_cast<unsigned char>(name[0])) != 0)) return false;
    for (const char letter : name) {
      if (std::isalnum(static_cast<unsigned char>(letter)) == 0 && letter != '_') return false;
    }
    return true;
  }

  [[noreturn]] static void refuse(const std::string& line) {
    throw std::runtime_error("bad line: " + line);
  }

  void take(const std::string& line) {
    if (line.rfind("# HELP ", 0) == 0) {
      family_ = line.substr(7, line.find(' ', 7) - 7);
      if (!is_name(family_) || !families_.insert(family_).second) refuse(line);
      typed_ = false;
    } else if (line.rfind("# TYPE ", 0) == 0) {
      const auto space = line.find(' ', 7);
      if (line.substr(7, space - 7) != family_ || typed_) refuse(line);
      const std::string type = line.substr(space + 1);
      if (type != "counter" && type != "gauge" && type != "histogram") refuse(line);
      if ((type == "counter") != family_.ends_with("_total")) refuse(line);
      types[family_] = type;
      typed_ = true;
    } else {
      take_sample(line);
    }
  }

  void take_sample(const std::string& line) {
    std::size_t at = line.find_first_of("{ ");
    if (at == std::string::npos || !typed_) refuse(line);
    const std::string name = line.substr(0, at);
    const std::set<std::string> parts = {family_ + "_bucket", family_ + "_sum", family_ + "_count"};
    if (types[family_] == "histogram" ? !parts.contains(name) : name != family_) refuse(line);
    if (line[at] == '{') at = end_of_labels(line, at);
    if (line[at] != ' ') refuse(line);
    std::size_t used = 0;
    const std::string number = line.substr(at + 1);
    const double value = std::stod(number, &used);
    if (used != number.size()) refuse(line);
    if (types[family_] == "counter" && !(value >= 0)) refuse(line);
    if (!samples.emplace(line.substr(0, at), value).second) refuse(line);
  }

  std::size_t end_of_labels(const std::string& line, std::size_t at) {
    std::set<std::string> seen;
    do {
      const auto equals = line.find('=', ++at);
      if (equals == std::string::npos || line[equals + 1] != '"') refuse(line);
      const std::string label = line.substr(at, equals - at);
      if (!is_name(label) || !seen.insert(label).second) refuse(line);
      for (at = equals + 2; at < line.size() && line[at] != '"'; ++at) {
        if (line[at] != '\\') continue;
        if (std::string("\\n\"").find(line[++at]) == std::string::npos) refuse(line);
      }
      if (at++ >= line.size()) refuse(line);
    } while (line[at] == ',');
    if (line[at] != '}') refuse(line);
    return at + 1;
  }

  std::string family_;
  bool typed_ = false;
  std::set<std::string> families_;
};

std::string ask(std::uint16_t port, const std::string& request) {
  boost::asio::io_context io;
  boost::asio::ip::tcp::socket socket(io);
  socket.connect({boost::asio::ip::address_v4::loopback(), port});
  boost::asio::write(socket, boost::asio::buffer(request));
  std::string answer;
  boost::system::error_code error;
  boost::asio::read(socket, boost::asio::dynamic_buffer(answer), error);
  return answer;
}

}  // namespace

TEST_CASE("the strict reader refuses what is no exposition") {
  CHECK_NOTHROW(Exposition("# HELP a_total x\n# TYPE a_total counter\na_total{b=\"c\\\"\"} 1\n"));
  for (const char* wrong :
       {"a 1\n", "# HELP a x\n# TYPE a gauge\na 1", "# HELP a x\n# TYPE a counter\na 1\n",
        "# HELP a x\n# TYPE a gauge\na 1\na 1\n", "# HELP a x\n# TYPE a gauge\nb 1\n",
        "# HELP a x\n# TYPE a gauge\na{b=\"c} 1\n", "# HELP a x\n# TYPE a gauge\na x\n",
        "# HELP a x\n# TYPE a gauge\na 1\n# HELP a x\n", "# HELP a-b x\n",
        "# HELP a x\n# TYPE a gauge\na{b=\"c\",b=\"d\"} 1\n",
        "# HELP a x\n# TYPE a histogram\na 1\n"}) {
    CAPTURE(wrong);
    CHECK_THROWS(Exposition{wrong});
  }
}

TEST_CASE("texts and numbers are written as the format wants them") {
  MetricsText out;
  out.gauge("a", "one \\ two\nthree \"four\"")
      .sample(0.1, {{"x", "back\\slash \"quote\"\nline"}, {"y", ""}})
      .sample(1e300)
      .sample(std::numeric_limits<double>::infinity(), {{"x", "inf"}});
  CHECK(out.text() ==
        "# HELP a one \\\\ two\\nthree \"four\"\n# TYPE a gauge\n"
        "a{x=\"back\\\\slash \\\"quote\\\"\\nline\",y=\"\"} 0.1\na 1e+300\na{x=\"inf\"} +Inf\n");
  CHECK(Exposition(out.text()).samples.size() == 3);
}

TEST_CASE("a histogram's buckets add up") {
  Histogram seconds(recorder::kPhaseBounds);
  for (const double one : {0.04, 0.05, 2.0, 1e6})
    seconds.add(one);
  MetricsText out;
  out.histogram("a_seconds", "x").sample(seconds, {{"phase", "text"}});
  const auto read = Exposition(out.text()).samples;
  CHECK(read.size() == recorder::kPhaseBounds.size() + 3);
  CHECK(read.at("a_seconds_bucket{phase=\"text\",le=\"0.05\"}") == 2);
  CHECK(read.at("a_seconds_bucket{phase=\"text\",le=\"1\"}") == 2);
  CHECK(read.at("a_seconds_bucket{phase=\"text\",le=\"2.5\"}") == 3);
  CHECK(read.at("a_seconds_bucket{phase=\"text\",le=\"1000\"}") == 3);
  CHECK(read.at("a_seconds_bucket{phase=\"text\",le=\"+Inf\"}") == 4);
  CHECK(read.at("a_seconds_count{phase=\"text\"}") == 4);
  CHECK(read.at("a_seconds_sum{phase=\"text\"}") == doctest::Approx(1'000'002.09));
}

TEST_CASE("the server answers GET /metrics on loopback and nothing else") {
  boost::asio::io_context io;
  MetricsText out;
  out.counter("a_total", "x").sample(7);
  auto server = std::make_unique<MetricsServer>(io, 0, [&] { return out.text(); });
  const auto port = server->port();
  std::thread thread([&] { io.run_for(std::chrono::seconds(120)); });
  const auto good = ask(port, "GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n");
  CHECK(good.starts_with("HTTP/1.1 200 "));
  CHECK(good.find("text/plain; version=0.0.4") != std::string::npos);
  CHECK(Exposition(good.substr(good.find("\r\n\r\n") + 4)).samples.at("a_total") == 7);
  CHECK(ask(port, "GET / HTTP/1.1\r\nHost: a\r\n\r\n").starts_with("HTTP/1.1 404 "));
  CHECK(ask(port, "POST /metrics HTTP/1.1\r\nHost: a\r\n\r\n").starts_with("HTTP/1.1 405 "));
  CHECK(ask(port, "HEAD /metrics HTTP/1.0\r\n\r\n").ends_with("\r\n\r\n"));
  CHECK(ask(port, "nonsense\r\n\r\n").empty());
  CHECK(ask(port, "GET /metrics HTTP/1.1\r\nX: " + std::string(20'000, 'x')).empty());
  CHECK_THROWS_AS(MetricsServer(io, port, [] { return std::string(); }), std::runtime_error);
  io.stop();
  thread.join();
  server.reset();
}

TEST_CASE("32 slow scrapes keep nobody out, and the listening socket is not for children") {
  boost::asio::io_context io;
  MetricsServer server(io, 0, [] { return std::string("a_total 7\n"); });
  const auto port = server.port();
  std::thread thread([&] { io.run_for(std::chrono::seconds(120)); });
  boost::asio::io_context own;
  std::vector<boost::asio::ip::tcp::socket> slow;
  for (int i = 0; i < 32; ++i) {
    slow.emplace_back(own);
    slow.back().connect({boost::asio::ip::address_v4::loopback(), port});
    boost::asio::write(slow.back(), boost::asio::buffer("GET /metr", 9));
  }
  const auto begun = std::chrono::steady_clock::now();
  CHECK(ask(port, "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n").starts_with("HTTP/1.1 200 "));
  // Not when the slow ones had had their time.
  CHECK(std::chrono::steady_clock::now() - begun < std::chrono::seconds(4));
  int listening = 0;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    const int descriptor = std::stoi(entry.path().filename());
    int listens = 0;
    socklen_t size = sizeof listens;
    if (getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listens, &size) != 0 || listens == 0)
      continue;
    ++listening;
    CHECK((fcntl(descriptor, F_GETFD) & FD_CLOEXEC) != 0);
  }
  CHECK(listening == 1);
  io.stop();
  thread.join();
}

}  // namespace troupe::service
