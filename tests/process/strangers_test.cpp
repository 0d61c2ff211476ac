#include <boost/asio/io_context.hpp>

#include "tests/process/support/theatre.h"
#include "tests/support/doctest.h"
#include "transport/control/blob_channel.h"
#include "transport/control/blob_endpoint.h"
#include "transport/control/connection.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

/// What the cluster's blob channel says to such a hello: "welcome", or why not.
std::string ask_for_blobs(const std::string& endpoint, const std::string& role,
                          std::uint64_t incarnation) {
  boost::asio::io_context io{1};
  control::BlobStore nothing;
  control::ConnectionOptions options;
  options.endpoint = control::blob_endpoint_of(endpoint);
  options.hello.role = role;
  options.hello.attributes["token"] = "guess";
  options.incarnation = incarnation;
  control::BlobConnection connection(io, options, nothing);
  std::string said;
  connection.start([&] { said = "welcome"; },
                   [&](const wire::Failure& failure) { said = failure.what; });
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (said.empty() && std::chrono::steady_clock::now() < end)
    io.run_one_for(std::chrono::milliseconds(50));
  return said;
}

}  // namespace

TEST_CASE("the blob channel is for the cluster's actors and for clients with a control link") {
  Theatre theatre(actors(1));
  const auto endpoint = theatre.cluster().endpoint();
  const auto has = [](const std::string& text, const char* word) {
    return text.find(word) != std::string::npos;
  };
  CHECK(has(ask_for_blobs(endpoint, "client", 4711), "no client of this controller"));
  CHECK(has(ask_for_blobs(endpoint, "actor", 4711), "wrong token"));
  boost::asio::io_context io{1};
  control::ConnectionOptions options;
  options.endpoint = endpoint;
  options.hello.role = "client";
  options.incarnation = 4711;
  control::Connection control(io, options);
  bool welcome = false;
  control.start([&](const auto&) { welcome = true; }, [](const auto&) {});
  const auto end = std::chrono::steady_clock::now() + kPatience;
  while (!welcome && std::chrono::steady_clock::now() < end)
    io.run_one_for(std::chrono::milliseconds(50));
  REQUIRE(welcome);
  CHECK(ask_for_blobs(endpoint, "client", 4711) == "welcome");
  CHECK_NOTHROW(theatre.run(tiny_job(1)));
}
