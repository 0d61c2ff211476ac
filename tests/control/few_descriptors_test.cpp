#include <fcntl.h>

#include <algorithm>
#include <map>

#include "tests/control/harness.h"
#include "tests/support/doctest.h"
#include "tests/support/flood.h"
#include "transport/control/accept_limiter.h"
#include "transport/control/descriptors.h"

// In a program whose accept is ours (troupe_doors), as in all that have doors.
namespace troupe::control::testing {
namespace {

using troupe::testing::FewDescriptors;
using troupe::testing::Flood;
using troupe::testing::Says;

ConnectionOptions client_at(const std::string& endpoint) {
  auto options = peer_at(endpoint, "client");
  options.hello.role = PeerRole::client;
  return options;
}

bool answers(On<Connection>& connection) {
  Event<bool> answered;
  connection.run([&](Connection& c) {
    c.request(wire::Ping{"?"}, 60s, [&](const Reply& reply) { answered.set(reply.ok()); });
  });
  return answered.wait();
}

/// Returns this process's ends of connections to its local doors, each by its cookie.
std::map<std::uint64_t, int> accepted_connections() {
  std::map<std::uint64_t, int> found;
  for (int descriptor = 3; descriptor < 256; ++descriptor) {
    sockaddr_un address{};
    socklen_t size = sizeof address;
    int listens = 0;
    socklen_t flag = sizeof listens;
    getsockopt(descriptor, SOL_SOCKET, SO_ACCEPTCONN, &listens, &flag);
    std::uint64_t cookie = 0;
    socklen_t length = sizeof cookie;
    if (getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size) == 0 &&
        address.sun_family == AF_UNIX && address.sun_path[0] == '/' && listens == 0 &&
        getsockopt(descriptor, SOL_SOCKET, SO_COOKIE, &cookie, &length) == 0)
      found[cookie] = descriptor;
  }
  return found;
}

/// Checks that clients whom a server of few descriptors knows stay, and that new ones are let in.
void check_flooded(const std::string& endpoint, int connections, Says says) {
  Loop here, there;
  On<Server> server(here, server_at(endpoint));
  const auto bound = server.run([](Server& s) { return s.endpoint(); });
  On<Connection> known(there, client_at(bound));
  welcome(known);
  const auto before = descriptors_in_use();
  const Flood flood(bound, connections, says);
  for (int i = 0; i < 3; ++i) {
    On<Connection> fresh(there, client_at(bound));
    welcome(fresh);
    CHECK(answers(fresh));
    std::this_thread::sleep_for(100ms);
  }
  CHECK(answers(known));
  CHECK(known.run([](Connection& c) { return c.connected(); }));
  CHECK(descriptors_in_use() <= before + descriptor_reserve() + 8);
}

}  // namespace

TEST_CASE("1,100 silent connections over ipc: nothing ends, who is in stays, who comes is let in") {
  for (const int limit : {256, 1024}) {
    CAPTURE(limit);
    const FewDescriptors few(static_cast<rlim_t>(limit));
    const IpcFolder folder;
    check_flooded(folder.endpoint("control"), 1100, Says::nothing);
    const IpcFolder other;
    check_flooded(other.endpoint("control"), 1100, Says::handshake);
  }
}

TEST_CASE("1,500 connections over tcp that say no hello, or nothing, keep nobody out") {
  const FewDescriptors few(1024);
  check_flooded("tcp://127.0.0.1:0", 1500, Says::nothing);
  check_flooded("tcp://127.0.0.1:0", 1500, Says::handshake);
}

TEST_CASE("a connection without a hello has its time, one with a hello stays") {
  const IpcFolder folder;
  Loop here, there;
  On<Server> server(here, server_at(folder.endpoint("control")));
  On<Connection> known(there, client_at(folder.endpoint("control")));
  welcome(known);
  const auto before = descriptors_in_use();
  zmq::context_t context;
  zmq::socket_t mute(context, zmq::socket_type::dealer);
  mute.set(zmq::sockopt::linger, 0);
  mute.set(zmq::sockopt::reconnect_ivl, -1);
  mute.connect(folder.endpoint("control"));
  const auto turned_away = AcceptLimiter::of_process().turned_away();
  CHECK(eventually([&] { return AcceptLimiter::of_process().turned_away() > turned_away; }));
  CHECK(answers(known));
  CHECK(descriptors_in_use() >= before);
}

TEST_CASE("behind keys half a handshake has its time and its number, and keeps nobody out") {
  const FewDescriptors few(1024);
  const IpcFolder scratch;
  const KeyFolder keys(scratch.path() / "keys");
  keys.make(false);
  Loop here, there;
  auto guard = here.run([&] {
    return Guard::open(here.io, make_context(), keys.server(), AllowList(keys.clients_file()));
  });
  auto options = server_at("tcp://127.0.0.1:0");
  options.guard = guard;
  options.socket.context = guard->context();
  std::optional<On<Server>> server(std::in_place, here, options);
  const auto bound = server->run([](Server& s) { return s.endpoint(); });
  auto with_keys = client_at(bound);
  with_keys.keys = keys.client();
  On<Connection> known(there, with_keys);
  welcome(known);
  {
    const auto before = descriptors_in_use();
    const Flood flood(bound, 1500, Says::half_of_keyed_handshake);
    for (int i = 0; i < 3; ++i) {
      On<Connection> fresh(there, with_keys);
      welcome(fresh);
      CHECK(answers(fresh));
      // A quarter of the reserve is for one address.
      CHECK(descriptors_in_use() <= before + descriptor_reserve() / 4 + 16);
    }
    CHECK(answers(known));
  }
  // Also those that are few have no more than their time.
  std::vector<FileHandle> half_open;
  for (int i = 0; i < 4; ++i)
    half_open.emplace_back(Flood::connect_to(bound, Says::half_of_keyed_handshake));
  for (const auto& link : half_open) {
    REQUIRE(link);
    const timeval patience{20, 0};
    setsockopt(link.get(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
    char said[256];
    ssize_t got = 1;
    while ((got = recv(link.get(), said, sizeof said, 0)) > 0) {
    }
    CHECK((got == 0 || errno == ECONNRESET));
  }
  CHECK(answers(known));
  CHECK(known.run([](Connection& c) { return c.connected(); }));
  server.reset();
  options.guard.reset();
  here.run([&] { guard.reset(); });
}

TEST_CASE("a link that ZeroMQ connects anew, over the same number, stays") {
  const IpcFolder folder;
  Loop here;
  // So long that nothing is sent to the peer while it is away: it would be lost.
  auto options = server_at(folder.endpoint("control"));
  options.heartbeat_interval = 8s;
  options.heartbeat_timeout = 300s;
  On<Server> server(here, options);
  RawPeer peer(folder.endpoint("control"));
  const PeerId id = peer.greet();
  // As a broken network would.
  const auto before = accepted_connections();
  for (const auto& [cookie, descriptor] : before)
    shutdown(descriptor, SHUT_RDWR);
  CHECK(eventually([&] {
    return std::ranges::any_of(accepted_connections(),
                               [&](const auto& each) { return !before.contains(each.first); });
  }));
  const auto turned_away = AcceptLimiter::of_process().turned_away();
  peer.send(wire::Heartbeat{1}, 2, id);
  CHECK(eventually(
      [&] { return server.run([&](Server& s) { return s.vitals(id).value().progress == 1; }); }));
  // Before it sends a heartbeat the server ends what has said no hello for 5 s.
  peer.receive<wire::Heartbeat>();
  peer.send(wire::Ping{"?"}, 3, id, 1);
  CHECK(peer.receive<wire::Pong>().data == "?");
  CHECK(AcceptLimiter::of_process().turned_away() == turned_away);
}

TEST_CASE("clients beyond the descriptors that there are are refused, and told why") {
  const FewDescriptors few(256);
  const IpcFolder folder;
  Loop here, there;
  On<Server> server(here, server_at(folder.endpoint("control")));
  // As the many links of others would.
  std::vector<FileHandle> taken;
  while (!short_of_descriptors())
    taken.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  Event<wire::Failure> failed;
  On<Connection> late(there, client_at(folder.endpoint("control")));
  late.run([&](Connection& c) {
    c.start([](const wire::Welcome&) {}, [&](const wire::Failure& f) { failed.set(f); });
  });
  const auto failure = failed.wait();
  CHECK(failure.code == wire::FailureCode::refused);
  CHECK(failure.what.find("of the 256 descriptors that this process may have (ulimit -n) 64 are "
                          "kept in reserve") != std::string::npos);
  CHECK_THROWS_WITH_AS(DescriptorClaim("a process", 4, 2),
                       doctest::Contains("a process: no descriptors to spare: of the 256"),
                       std::runtime_error);
  taken.clear();
  On<Connection> later(there, client_at(folder.endpoint("control")));
  welcome(later);
  CHECK_NOTHROW(DescriptorClaim("a process", 4, 2));
}

TEST_CASE("more peers than a server takes are refused, and told why") {
  const IpcFolder folder;
  Loop here, there;
  auto options = server_at(folder.endpoint("control"));
  options.max_peers = 2;
  On<Server> server(here, options);
  On<Connection> first(there, client_at(folder.endpoint("control")));
  welcome(first);
  std::optional<On<Connection>> second(std::in_place, there, client_at(folder.endpoint("control")));
  welcome(*second);
  Event<wire::Failure> failed;
  On<Connection> third(there, client_at(folder.endpoint("control")));
  third.run([&](Connection& c) {
    c.start([](const wire::Welcome&) {}, [&](const wire::Failure& f) { failed.set(f); });
  });
  CHECK(failed.wait().code == wire::FailureCode::refused);
  CHECK(answers(first));
  second.reset();
  CHECK(eventually([&] { return server.run([](Server& s) { return s.peers(); }) < 2; }));
  On<Connection> later(there, client_at(folder.endpoint("control")));
  welcome(later);
}

TEST_CASE("a context is refused, not aborted, where there are no descriptors for it") {
  std::vector<FileHandle> taken;
  const FewDescriptors few(64);
  while (descriptors_in_use() < 60)
    taken.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
  CHECK_THROWS_WITH_AS(make_context(), doctest::Contains("too many open files: 60 of 64"),
                       std::runtime_error);
}

}  // namespace troupe::control::testing
