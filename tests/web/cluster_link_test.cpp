#include "web/cluster_link.h"

#include <boost/asio/ip/tcp.hpp>
#include <memory>
#include <string>
#include <vector>

#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::web;

TEST_CASE("a link that ends while it connects does not wait for an answer") {
  boost::asio::io_context io;
  boost::asio::ip::tcp::acceptor silent(io, {boost::asio::ip::make_address("127.0.0.1"), 0});
  const std::string endpoint = "tcp://127.0.0.1:" + std::to_string(silent.local_endpoint().port());
  std::vector<std::string> told;
  auto link = std::make_unique<ClusterLink>(
      io, ClusterLink::Target{endpoint, "none"},
      ClusterLink::Handlers{
          .on_connected = [](const std::string&) {},
          .on_status =
              [&](Result<ClusterInfo> info) { told.push_back(to_string(info.error().code)); },
          .on_jobs = [](const auto&) {}});
  const auto taken = silent.accept();
  link.reset();
  io.run();
  CHECK(told == std::vector<std::string>{"interrupted"});
}
