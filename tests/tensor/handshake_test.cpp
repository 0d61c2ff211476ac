#include "transport/tensor/rendezvous.h"

#include <ATen/ATen.h>
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <chrono>
#include <cstring>
#include <thread>

#include "tests/tensor/ranks.h"

#include "tests/support/doctest.h"

using namespace troupe::tensor;
using namespace troupe::tensor::testing;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

namespace {

/// A connection to a device's door as a stranger makes it.
UniqueFd knock(const Device& device) {
  const std::string& address = device.address();
  if (device.backend() == Backend::shm) {
    const std::string name = address.substr(std::strlen("shm:@"));
    sockaddr_un target{};
    target.sun_family = AF_UNIX;
    std::memcpy(target.sun_path + 1, name.data(), name.size());
    UniqueFd socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(::connect(socket.get(), reinterpret_cast<sockaddr*>(&target),
                      static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size())) ==
            0);
    return socket;
  }
  sockaddr_in target{};
  target.sin_family = AF_INET;
  target.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  target.sin_port =
      htons(static_cast<std::uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
  UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(::connect(socket.get(), reinterpret_cast<sockaddr*>(&target), sizeof target) == 0);
  return socket;
}

UniqueFd nonblocking(UniqueFd socket) {
  ::fcntl(socket.get(), F_SETFL, O_NONBLOCK);
  return socket;
}

}  // namespace

TEST_CASE("the two halves of a handshake agree only about the same secret and the same words") {
  const Secret secret("a secret"), other("another");
  const Hello hello = Hello::make(Hello::Role::data, "edge 0-1", 1, 2);
  const Challenge challenge = secret.challenge(hello);
  CHECK(secret.knows(hello, challenge));
  CHECK_FALSE(other.knows(hello, challenge));
  const Proof proof = secret.prove(hello, challenge);
  CHECK(secret.proven(hello, challenge, proof));
  CHECK_FALSE(secret.proven(hello, challenge, other.prove(hello, challenge)));

  // Recorded, reflected, or for another hello: worth nothing.
  CHECK_FALSE(secret.proven(hello, secret.challenge(hello), proof));
  CHECK_FALSE(secret.proven(hello, challenge, Proof{challenge.proof}));
  Hello changed = hello;
  changed.rank = 0;
  CHECK_FALSE(secret.knows(changed, challenge));
  CHECK_FALSE(secret.proven(changed, challenge, proof));
  CHECK(Hello::make(Hello::Role::data, "edge 0-1", 1, 2).nonce != hello.nonce);

  CHECK_THROWS_AS(Secret(""), std::invalid_argument);
  CHECK_THROWS_AS(Secret(std::string(129, 'x')), std::invalid_argument);
}

TEST_CASE("every bit of a proof counts") {
  const Secret secret("a secret");
  const Hello hello = Hello::make(Hello::Role::control, "g", 0, 2);
  const Challenge challenge = secret.challenge(hello);
  const Proof proof = secret.prove(hello, challenge);
  for (std::size_t bit = 0; bit < proof.mac.size() * 8; ++bit) {
    Proof wrong = proof;
    wrong.mac[bit / 8] ^= static_cast<std::uint8_t>(1u << (bit % 8));
    CHECK_FALSE(secret.proven(hello, challenge, wrong));
  }
}

TEST_CASE(
    "the secret does not travel: what a listener says to a stranger, and hears from a member") {
  for (const Backend backend : cpu_backends()) {
    CAPTURE(to_string(backend));
    const auto device = make_device(backend, small_options());
    const UniqueFd stranger = nonblocking(knock(*device));
    const Hello hello = Hello::make(Hello::Role::control, "g", 1, 2);
    write_all(stranger.get(), &hello, sizeof hello, within(60s));
    Challenge challenge;
    read_all(stranger.get(), &challenge, sizeof challenge, within(60s));
    CHECK(challenge.accepted == 1);
    const std::string said(reinterpret_cast<const char*>(&challenge), sizeof challenge);
    CHECK(said.find(kToken) == std::string::npos);
    const std::string heard(reinterpret_cast<const char*>(&hello), sizeof hello);
    CHECK(heard.find(kToken) == std::string::npos);
    // A wrong proof ends it without a word.
    const Proof wrong{};
    write_all(stranger.get(), &wrong, sizeof wrong, within(60s));
    char byte;
    CHECK_THROWS_AS(read_all(stranger.get(), &byte, 1, within(60s)), std::system_error);
  }
}

TEST_CASE("hellos that make no sense are refused with the reason") {
  const auto device = make_device(Backend::tcp, small_options());
  const auto answer = [&](Hello hello) {
    const UniqueFd stranger = nonblocking(knock(*device));
    return introduce(stranger.get(), Secret(kToken), hello, within(60s)).value_or("accepted");
  };
  const Hello good = Hello::make(Hello::Role::control, "g", 1, 2);
  CHECK(answer(good) == "accepted");
  Hello bad = good;
  bad.version = 1;
  CHECK(answer(bad) == "tensor-plane version 1, here it is 2");
  bad = good;
  bad.name_length = 256;
  CHECK(answer(bad).find("impossible length") != std::string::npos);
  bad = good;
  bad.rank = 2;
  CHECK(answer(bad).find("impossible rank") != std::string::npos);
  bad = good;
  bad.role = static_cast<Hello::Role>(7);
  CHECK(answer(bad).find("unknown role") != std::string::npos);
  bad = good;
  bad.magic = 0x20544547;
  CHECK_THROWS_AS(answer(bad), std::system_error);
}

TEST_CASE("strangers who stay silent, also many of them, keep nobody out") {
  UniqueFd listener(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* const door = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof address;
  REQUIRE(::bind(listener.get(), door, length) == 0);
  REQUIRE(::listen(listener.get(), SOMAXCONN) == 0);
  REQUIRE(::getsockname(listener.get(), door, &length) == 0);
  const auto come = [&] {
    UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    REQUIRE(::connect(socket.get(), door, length) == 0);
    return socket;
  };
  boost::asio::io_context io{1};
  auto busy = boost::asio::make_work_guard(io);
  std::thread loop([&] { io.run(); });
  {
    // Nobody goes for being late here: there is room because those who came first go.
    Rendezvous rendezvous(io, std::move(listener), Secret(kToken), false, 24h);
    std::vector<UniqueFd> silent;
    for (std::size_t i = 0; i < 3 * Rendezvous::kMaxGuests; ++i)
      silent.push_back(come());
    // Some get as far as half a hello, or as a challenge that they never answer.
    const Hello half = Hello::make(Hello::Role::control, "half", 1, 2);
    for (std::size_t i = silent.size() - 20; i < silent.size(); ++i)
      [[maybe_unused]] const auto sent =
          ::send(silent[i].get(), &half, i % 2 ? sizeof half : 100, MSG_NOSIGNAL);
    const UniqueFd member = nonblocking(come());
    const Hello hello = Hello::make(Hello::Role::control, "g", 1, 2);
    CHECK_FALSE(introduce(member.get(), Secret(kToken), hello, within(60s)));
    CHECK(rendezvous.claim("g", 1, Hello::Role::control, within(60s)).hello.nonce == hello.nonce);
    char byte;
    CHECK(::recv(silent.front().get(), &byte, 1, 0) == 0);
    CHECK(::recv(silent[silent.size() - 30].get(), &byte, 1, MSG_DONTWAIT) == -1);
  }
  busy.reset();
  loop.join();
}

TEST_CASE("a listener that never answers costs the dialler its deadline and no more") {
  UniqueFd mute(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  REQUIRE(::bind(mute.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(::listen(mute.get(), 4) == 0);
  socklen_t length = sizeof address;
  REQUIRE(::getsockname(mute.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0);
  const auto device = make_device(Backend::tcp, small_options());
  const auto begun = Clock::now();
  const TransferError error = failure_of([&] {
    device->connect("g", 1,
                    {"tcp:127.0.0.1:" + std::to_string(ntohs(address.sin_port)), device->address()},
                    within(200ms));
  });
  CHECK(error.failure() == Failure::timeout);
  CHECK(error.peer() == 0);
  CHECK(Clock::now() - begun < 30s);
}
