#pragma once
#include <functional>
#include <string>

#include "tests/support/doctest.h"
#include "tests/support/no_stages.h"

namespace troupe::test {

/// An Environment in which nothing happens.
class IdleEnvironment final : public testing::NoStages {
 public:
  double now() const override { return 0; }
  std::uint64_t random() override { return 1; }
  void after(double, std::function<void()>) override {}
  bool send_frame(control::PeerId, std::string) override { return true; }
  void request_frame(control::PeerId, std::string, control::Milliseconds,
                     control::ReplyHandler) override {}
  void drop(control::PeerId, const std::string&) override {}
};

/// An actor that has come and has nothing to do.
inline cluster::ActorId add_idle(cluster::Members& members, const std::string& host) {
  const auto id = members.add(host, "cpu").id;
  members.spawned(id, 100 + id, 1);
  control::PeerInfo peer;
  peer.id = 1000 + id;
  peer.incarnation = 100 + id;
  peer.hello.attributes = {{"token", "secret"}};
  REQUIRE_FALSE(members.hello(peer));
  return id;
}

}  // namespace troupe::test
