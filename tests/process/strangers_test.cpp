#include <algorithm>
#include <boost/asio/io_context.hpp>

#include "tests/process/support/connect.h"
#include "tests/process/support/fault_cluster.h"
#include "tests/process/support/processes.h"
#include "tests/support/doctest.h"
#include "tests/support/text.h"
#include "transport/control/blob_channel.h"
#include "transport/control/connection.h"
#include "transport/control/endpoint.h"
#include "transport/wire/session.h"
#include "troupe/inspect.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

using namespace std::chrono_literals;

/// A hello in the name of another process, on the control plane or the blob channel.
struct Hello {
  PeerRole role;
  std::uint64_t incarnation = 0;
  std::string secret = {};
};

/// A loop with links on it that say what they like.
class Stranger {
 public:
  explicit Stranger(std::string endpoint) : endpoint_(std::move(endpoint)) {}

  /// A control link: "welcome", or why not. It stays until this goes.
  std::string control(const Hello& hello) {
    auto& link = links_.emplace_back(std::make_unique<control::Connection>(io_, as(hello)));
    link->on_message([this](const wire::Header& header, std::span<const std::byte> payload) {
      if (header.kind == wire::Kind::notice)
        notices.push_back(wire::decode<wire::Notice>(payload).text);
    });
    std::string said;
    link->start([&](const auto&) { said = "welcome"; },
                [&](const wire::Failure& failure) { said = failure.what; });
    until([&] { return !said.empty(); });
    return said;
  }
  /// Opens a blob link; returns what is said to its hello.
  std::string blobs(const Hello& hello) {
    auto options = as(hello);
    options.endpoint = control::blob_endpoint_of(endpoint_);
    auto& link =
        blob_links_.emplace_back(std::make_unique<control::BlobConnection>(io_, options, nothing_));
    std::string said;
    link->start([&] { said = "welcome"; },
                [&](const wire::Failure& failure) { said = failure.what; });
    until([&] { return !said.empty(); });
    return said;
  }
  const std::string& secret() const { return links_.back()->secret(); }
  bool until(const std::function<bool()>& holds) {
    const auto end = std::chrono::steady_clock::now() + kPatience;
    while (!holds() && std::chrono::steady_clock::now() < end)
      io_.run_one_for(20ms);
    return holds();
  }

  std::vector<std::string> notices;

 private:
  control::ConnectionOptions as(const Hello& hello) const {
    control::ConnectionOptions options;
    options.endpoint = endpoint_;
    options.hello.role = hello.role;
    options.hello.name = "stranger";
    options.hello.attributes["token"] = "guess";
    options.hello.secret = hello.secret;
    options.incarnation = hello.incarnation;
    options.welcome_deadline = kPatience;
    return options;
  }

  std::string endpoint_;
  boost::asio::io_context io_{1};
  // Between one link's end and the next one's start the loop has nothing to do, and goes on.
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> work_{
      io_.get_executor()};
  control::BlobStore nothing_;
  std::vector<std::unique_ptr<control::Connection>> links_;
  std::vector<std::unique_ptr<control::BlobConnection>> blob_links_;
};

/// Returns a process's incarnation, as its starting environment still shows it: it is no secret.
std::uint64_t incarnation_of(pid_t pid) {
  const auto environment = read_all("/proc/" + std::to_string(pid) + "/environ");
  const std::string name = "TROUPE_INCARNATION=";
  const auto at = environment.find(name);
  return at == std::string::npos ? 0 : std::stoull(environment.substr(at + name.size()));
}

}  // namespace

TEST_CASE("a blob link is for who has a control link, and for who shows that it is his") {
  FaultCluster cluster(actors(1));
  Stranger first(cluster.cluster().endpoint()), second(cluster.cluster().endpoint());
  CHECK(has(first.blobs({PeerRole::client, 4711}), "no client of this controller"));
  CHECK(has(first.blobs({PeerRole::actor, 4711}), "no client of this controller"));
  REQUIRE(first.control({PeerRole::client, 4711}) == "welcome");
  const auto secret = first.secret();
  CHECK(has(second.blobs({PeerRole::client, 4711}), "without the secret"));
  // The one whose link it would have been is told.
  REQUIRE(first.until([&] { return !first.notices.empty(); }));
  CHECK(has(first.notices.front(), "without the secret of its control link"));
  REQUIRE(second.control({PeerRole::client, 4712}) == "welcome");
  CHECK(has(second.blobs({PeerRole::client, 4711, second.secret()}), "without the secret"));
  CHECK(has(second.blobs({PeerRole::client, 4712, secret}), "without the secret"));
  CHECK(first.blobs({PeerRole::client, 4711, secret}) == "welcome");
  CHECK(second.blobs({PeerRole::client, 4711, secret}) == "welcome");
  CHECK(has(second.control({PeerRole::client, 4711}), "this process has a link already"));
  CHECK_NOTHROW(cluster.run(tiny_job(1)));
}

TEST_CASE("an actor's starting environment shows no secret once it is there") {
  FaultCluster cluster(actors(2));
  for (const auto pid : cluster.pids()) {
    const auto environment = read_all("/proc/" + std::to_string(pid) + "/environ");
    const std::string name = "TROUPE_TOKEN=";
    const auto at = environment.find(name);
    REQUIRE(at != std::string::npos);
    CHECK(environment.at(at + name.size()) == '\0');
  }
}

TEST_CASE("whoever is let in does not come between an actor and its controller") {
  auto options = actors(2);
  FaultCluster cluster(options);
  auto job = tiny_job(2);
  job.parallelism = {.dp = 1, .cfg = 2};
  const auto before = cluster.run(job);
  Stranger stranger(cluster.cluster().endpoint());
  REQUIRE(stranger.control({PeerRole::client, 4711}) == "welcome");
  const auto own = stranger.secret();
  for (const auto pid : cluster.pids()) {
    const auto incarnation = incarnation_of(pid);
    REQUIRE(incarnation != 0);
    // It is on no command line, which every user may read.
    const auto line = read_all("/proc/" + std::to_string(pid) + "/cmdline");
    CHECK(has(line, "troupe-actor"));
    CHECK(!has(line, std::to_string(incarnation)));
    for (const auto role : {PeerRole::client, PeerRole::actor, PeerRole::node, PeerRole::caller}) {
      for (const auto& secret : {std::string(), own, std::string("guess")})
        CHECK(has(stranger.blobs({role, incarnation, secret}), "without the secret"));
      const auto answer = stranger.control({role, incarnation});
      CAPTURE(answer);
      CHECK(has(answer, " refuses: "));
    }
  }
  const auto after = cluster.run(job);
  CHECK(after.latents->data == before.latents->data);
  CHECK(cluster.restarts() == 0);
  // An actor says it on its own, and its lines come when they come.
  CHECK(eventually(kPatience, [&] {
    const auto logs = take(cluster.inspector().logs(0), "logs");
    return std::ranges::any_of(logs.lines, [](const std::string& line) {
      return has(line, "somebody poses as this process");
    });
  }));
}
