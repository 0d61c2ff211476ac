#include "web/http_limits.h"

#include <boost/asio/io_context.hpp>
#include <vector>

#include "tests/support/doctest.h"

using namespace troupe::web;

namespace {

/// A connection without a socket.
class Stub final : public ServerConnection {
 public:
  Stub(ServerLimits& limits, const std::string& name, bool answers = false)
      : limits_(limits), answers_(answers) {
    peer = name;
    owner = limits_.join(name);
    turn_began = ++limits_.last_turn;
    limits_.all.insert(this);
  }
  void close() override {
    limits_.all.erase(this);
    limits_.unread_bytes -= unread_bytes;
    limits_.leave(owner);
    unread_bytes = 0;
  }
  bool answers() const override { return answers_; }

 private:
  ServerLimits& limits_;
  bool answers_;
};

}  // namespace

TEST_CASE("who gives way to a new connection") {
  boost::asio::io_context io;
  ServerLimits limits(io.get_executor());
  Stub first(limits, "many", true), second(limits, "many"), third(limits, "many", true);
  Stub other(limits, "one", true);
  // An answer that is read goes first, the oldest of whoever has most.
  CHECK(limits.who_goes("new") == &first);
  // One's own gives way only where it answers.
  CHECK(limits.who_goes("many") == &first);
  first.close();
  CHECK(limits.who_goes("many") == &third);
  third.close();
  CHECK(limits.who_goes("many") == nullptr);  // nobody has more, and it answers nothing
  // Whoever waits for a request goes before all of them.
  limits.waiting[1] = &second;
  CHECK(limits.who_goes("many") == &second);
}

TEST_CASE("room is made by the client that holds most in all") {
  boost::asio::io_context io;
  ServerLimits limits(io.get_executor());
  Stub one(limits, "one"), two(limits, "two"), also_two(limits, "two");
  const auto hold = [&](Stub& stub, std::size_t bytes) {
    stub.unread_bytes = bytes;
    limits.unread_bytes += bytes;
  };
  hold(one, 70);
  hold(two, 30);
  hold(also_two, 20);
  const auto make_room = [&](Stub& who, std::size_t bytes) {
    return limits.make_room(&who, bytes, limits.unread_bytes, 130, &ServerConnection::unread_bytes);
  };
  CHECK(make_room(two, 10));
  CHECK(limits.counts.cut_off == 0);
  // Both clients have as much: the connection that holds most goes.
  CHECK(make_room(two, 20));
  CHECK(limits.counts.cut_off == 1);
  CHECK_FALSE(limits.all.contains(&one));
  // Nobody else goes for the one that holds most itself.
  CHECK_FALSE(make_room(two, 100));
  CHECK(limits.all.size() == 2);
}

TEST_CASE("owners take turns, one request at each round of the loop") {
  boost::asio::io_context io;
  const auto turns = std::make_shared<Turns>(io.get_executor());
  std::string served;
  for (const char* request : {"a1", "a2", "a3", "b1"})
    turns->add(std::string(request, 1), [&served, request] { served += request; });
  io.run_one();
  CHECK(served == "a1");
  io.run();
  CHECK(served == "a1b1a2a3");
}

TEST_CASE("an address of IPv6 counts with its neighbours") {
  const auto owner = [](const char* text) { return owner_of(boost::asio::ip::make_address(text)); };
  CHECK(owner("10.0.0.1") == "10.0.0.1");
  CHECK(owner("::ffff:10.0.0.1") == "::ffff:10.0.0.1");
  CHECK(owner("2001:db8:1:2::3") == owner("2001:db8:1:2:ffff::"));
  CHECK(owner("2001:db8:1:2::3") != owner("2001:db8:1:3::3"));
}
