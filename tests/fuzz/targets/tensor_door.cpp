// A stranger's bytes to the tensor plane's door, and to one who dials.
#include "tests/fuzz/targets/all.h"
#include "transport/tensor/rendezvous.h"

#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <cstring>

namespace troupe::fuzz {

using namespace tensor;
using namespace std::chrono_literals;

namespace {

struct Door {
  Door() {
    UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    sockaddr_un any{};
    any.sun_family = AF_UNIX;
    if (::bind(listener.get(), reinterpret_cast<sockaddr*>(&any), sizeof any.sun_family) != 0 ||
        ::listen(listener.get(), 16) != 0 ||
        ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &length) != 0)
      throw std::runtime_error("no door");
    rendezvous.emplace(io, std::move(listener), Secret("fuzz"), true);
  }

  boost::asio::io_context io{1};
  sockaddr_un address{};
  socklen_t length = sizeof address;
  std::optional<Rendezvous> rendezvous;
};

}  // namespace

void run_tensor_door(std::string_view bytes) {
  static Door door;
  const UniqueFd stranger(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (::connect(stranger.get(), reinterpret_cast<sockaddr*>(&door.address), door.length) != 0)
    return;
  const auto sent = ::send(stranger.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  ::shutdown(stranger.get(), SHUT_WR);
  for (int i = 0; i < 6; ++i)
    door.io.poll();
  char back[1024];
  const auto got = ::recv(stranger.get(), back, sizeof back, MSG_DONTWAIT);
  require(got <= static_cast<ssize_t>(sizeof(Challenge)), "a stranger gets a challenge at most");
  if (static_cast<std::size_t>(std::max<ssize_t>(sent, 0)) < sizeof(Hello))
    require(got <= 0, "nothing is said before the hello is there");
  Hello hello;
  if (bytes.size() < sizeof hello) return;
  std::memcpy(&hello, bytes.data(), sizeof hello);
  if (hello.is_foreign() || hello.objection()) return;
  bool let_in = true;
  try {
    door.rendezvous->claim(hello.group(), static_cast<int>(hello.rank), hello.role, within(0s));
  } catch (const std::system_error&) {
    let_in = false;
  }
  require(!let_in, "nobody comes in without the secret");
}

std::vector<std::string> seeds_tensor_door() {
  const Hello hello = Hello::make(Hello::Role::control, "edge 0-1", 1, 2);
  const std::string bytes(reinterpret_cast<const char*>(&hello), sizeof hello);
  return {bytes, bytes + std::string(sizeof(Proof), 'p'), bytes.substr(0, 20),
          "GET / HTTP/1.0\r\n\r\n"};
}

void run_tensor_dial(std::string_view bytes) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0) return;
  const UniqueFd mine(ends[0]), theirs(ends[1]);
  [[maybe_unused]] const auto sent =
      ::send(theirs.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
  ::shutdown(theirs.get(), SHUT_WR);
  static const Secret secret("fuzz");
  refusable([&] {
    const auto refused =
        introduce(mine.get(), secret, Hello::make(Hello::Role::data, "g", 0, 2), within(1s));
    require(refused.has_value(), "nobody passes for a member without the secret");
  });
}

std::vector<std::string> seeds_tensor_dial() {
  const auto challenge = Secret("fuzz").challenge(Hello::make(Hello::Role::data, "g", 0, 2));
  const auto refusal = Challenge::refusal("no");
  return {{reinterpret_cast<const char*>(&challenge), sizeof challenge},
          {reinterpret_cast<const char*>(&refusal), sizeof refusal}};
}

}  // namespace troupe::fuzz
