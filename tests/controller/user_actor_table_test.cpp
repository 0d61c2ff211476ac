#include "controller/user_actors/actor_table.h"
#include "tests/support/doctest.h"

namespace troupe::user {
namespace {

wire::SpawnActor request(std::string name = "", double cores = 0, std::int32_t gpus = 0) {
  wire::SpawnActor wanted;
  wanted.class_name = "Counter";
  wanted.name = std::move(name);
  wanted.cores = cores;
  wanted.gpus = gpus;
  return wanted;
}

ActorTable two_hosts() {
  ActorTable table(2);
  table.add_host({"a", 2, {0}});
  table.add_host({"b", 4, {0, 1}});
  return table;
}

UserActorId added(ActorTable& table, const wire::SpawnActor& wanted, Owner owner = {}) {
  const auto result = table.add(wanted, owner);
  REQUIRE(std::holds_alternative<UserActorId>(result));
  return std::get<UserActorId>(result);
}

const wire::Failure refused(ActorTable& table, const wire::SpawnActor& wanted) {
  const auto result = table.add(wanted, {});
  REQUIRE(std::holds_alternative<wire::Failure>(result));
  return std::get<wire::Failure>(result);
}

}  // namespace

TEST_CASE("user actors: resources are taken and given back") {
  auto table = two_hosts();
  const auto one = added(table, request("", 3, 2));
  CHECK(table.find(one)->host == "b");
  CHECK(table.find(one)->gpus == std::vector<std::int32_t>{0, 1});
  CHECK(table.free_cores("b") == 1);
  CHECK(refused(table, request("", 3)).code == wire::FailureCode::overloaded);
  table.spawned(one, 11, 100, "t");
  CHECK(table.exited(one, 11, "gone") == false);
  CHECK(table.free_cores("b") == 4);
  CHECK(table.free_gpus("b").size() == 2);
}

TEST_CASE("user actors: pack, spread, together") {
  auto table = two_hosts();
  auto spread = request();
  spread.placement = wire::Placement::spread;
  const auto first = added(table, spread);
  const auto second = added(table, spread);
  CHECK(table.find(first)->host != table.find(second)->host);
  auto together = request();
  together.placement = wire::Placement::together;
  together.group = "those";
  const auto third = added(table, together);
  together.cores = 2;
  const auto fourth = added(table, together);
  CHECK(table.find(third)->host == table.find(fourth)->host);
  together.cores = 5;
  CHECK(refused(table, together).code == wire::FailureCode::overloaded);
}

TEST_CASE("user actors: names are unique among the living") {
  auto table = two_hosts();
  const auto one = added(table, request("n"));
  CHECK(refused(table, request("n")).code == wire::FailureCode::refused);
  table.spawned(one, 5, 1, "t");
  table.created(one, "e", "b");
  CHECK(table.exited(one, 5, "gone") == false);
  CHECK(table.find("n") == nullptr);
  CHECK(added(table, request("n")) != one);
}

TEST_CASE("user actors: restarts are counted, old incarnations have no say") {
  auto table = two_hosts();
  auto wanted = request();
  wanted.max_restarts = 1;
  const auto id = added(table, wanted);
  table.spawned(id, 1, 1, "t");
  table.created(id, "e", "b");
  CHECK(table.exited(id, 99, "not it") == std::nullopt);
  CHECK(table.exited(id, 1, "first") == true);
  table.spawned(id, 2, 2, "t2");
  CHECK(table.find(id)->restarts == 1);
  CHECK(table.exited(id, 1, "late word of the first") == std::nullopt);
  table.created(id, "e", "b");
  CHECK(table.exited(id, 2, "second") == false);
  CHECK(!table.find(id)->living());
  CHECK(table.find(id)->cause == "second");
  CHECK(table.exited(id, 2, "again") == std::nullopt);
}

TEST_CASE("user actors: one that never began has no restarts, one that is not wanted neither") {
  auto table = two_hosts();
  auto wanted = request();
  wanted.max_restarts = -1;
  const auto unborn = added(table, wanted);
  table.spawned(unborn, 1, 1, "t");
  CHECK(table.exited(unborn, 1, "no plugin") == false);
  const auto killed = added(table, wanted);
  table.spawned(killed, 2, 2, "t");
  table.created(killed, "e", "b");
  table.find(killed)->wanted = false;
  CHECK(table.exited(killed, 2, "killed") == false);
}

TEST_CASE("user actors: owners, and a bounded memory of the dead") {
  auto table = two_hosts();
  const Owner client{Owner::Kind::client, 7};
  const auto mine = added(table, request(), client);
  auto detached = request();
  detached.detached = true;
  added(table, detached, client);
  CHECK(table.owned_by(client) == std::vector<UserActorId>{mine});
  for (int i = 0; i < 5; ++i) {
    const auto id = added(table, request());
    table.spawned(id, 50 + static_cast<std::uint64_t>(i), 1, "t");
    table.exited(id, 50 + static_cast<std::uint64_t>(i), "gone");
  }
  const auto last = added(table, request());
  CHECK(table.all().size() == 5);
  CHECK(table.find(mine) != nullptr);
  CHECK(table.find(last - 1) != nullptr);
  CHECK(table.find(last - 3) == nullptr);
}

TEST_CASE("user actors: the dead are forgotten in the order of their deaths, not as they die") {
  ActorTable table(1);
  table.add_host({"a", 2, {0}});
  const auto one = added(table, request()), two = added(table, request());
  const auto three = added(table, request());
  const auto die = [&](UserActorId id) {
    table.spawned(id, id, 1, "t");
    CHECK(table.exited(id, id, "gone") == false);
  };
  die(two);
  die(three);
  die(one);
  REQUIRE(table.find(one));
  CHECK(table.find(one)->cause == "gone");
  added(table, request());
  CHECK(table.find(one));
  CHECK(!table.find(two));
  CHECK(!table.find(three));
}

TEST_CASE("user actors: what a restarting one has had is not in its own way") {
  ActorTable table;
  table.add_host({"a", 2, {0}});
  auto wanted = request("", 2, 1);
  wanted.max_restarts = 1;
  const auto id = added(table, wanted);
  table.spawned(id, 1, 1, "t");
  table.created(id, "e", "b");
  CHECK(table.exited(id, 1, "lost with a") == true);
  // It comes back with less, and then with GPUs of other numbers.
  table.add_host({"a", 1, {3}});
  const auto nowhere = table.place_again(id);
  REQUIRE(nowhere);
  CHECK(nowhere->what ==
        "[spawn] Counter needs 2 cores and 1 GPU: a has 1 of 1 cores and 1 of 1 GPUs free");
  CHECK(table.find(id)->host == "a");
  CHECK(table.find(id)->gpus == std::vector<std::int32_t>{0});
  table.add_host({"a", 2, {3, 4}});
  CHECK(!table.place_again(id));
  CHECK(table.find(id)->host == "a");
  CHECK(table.find(id)->gpus == std::vector<std::int32_t>{3});
  CHECK(table.free_cores("a") == 0);
}

TEST_CASE("user actors: requests that make no sense are refused by name") {
  auto table = two_hosts();
  CHECK(refused(table, request("", -1)).what == "[spawn] cores is -1");
  CHECK(refused(table, request("", 0, -2)).what == "[spawn] gpus is -2");
  auto wanted = request();
  wanted.max_restarts = -2;
  CHECK(refused(table, wanted).code == wire::FailureCode::bad_request);
}

TEST_CASE("user actors: their number, names and constructors' arguments have bounds") {
  ActorTable table(
      2, {.living = 3, .name_bytes = 8, .argument_bytes_of_one = 100, .argument_bytes = 150});
  table.add_host({"a", 2, {}});
  const auto why = [&](const wire::SpawnActor& wanted, Owner owner) {
    const auto result = table.add(wanted, owner);
    const auto* failure = std::get_if<wire::Failure>(&result);
    return failure ? failure->what : "";
  };
  const Owner one{Owner::Kind::client, 1};
  const Owner other{Owner::Kind::client, 2};
  CHECK(why(request("ninebytes"), one) == "[spawn] the name has 9 bytes, at most 8 are taken");
  auto grouped = request();
  grouped.group = "ninebytes";
  CHECK(why(grouped, one) == "[spawn] the group's name has 9 bytes, at most 8 are taken");
  auto large = request();
  large.arguments = std::string(90, 'x');
  const auto first = added(table, large, one);
  CHECK(why(large, one) ==
        "[spawn] constructors' arguments of 180 bytes for one owner and 180 in all would be kept, "
        "at most 100 and 150 are");
  CHECK(why(large, other).starts_with("[spawn] constructors' arguments of 90 bytes for one owner"));
  added(table, request(), one);
  added(table, request(), other);
  CHECK(why(request(), other) == "[spawn] 3 users' actors live already, no more are taken");
  // The dead keep nothing that only a process needs.
  table.spawned(first, 11, 100, "t");
  table.exited(first, 11, "gone");
  CHECK(table.find(first)->request.arguments.empty());
  added(table, large, other);
}

TEST_CASE("user actors: hosts that lack a plugin or are drained take none, and say so") {
  auto table = two_hosts();
  Host beta{.name = "b", .cores = 4, .gpus = {0, 1}};
  beta.lacks["lib.so"] = "there is no such file";
  table.add_host(beta);
  CHECK(table.hosts().size() == 2);
  const auto place = [&](const wire::SpawnActor& wanted, const std::string& plugin) {
    const auto result = table.add(wanted, {}, plugin);
    const auto* id = std::get_if<UserActorId>(&result);
    return id ? table.find(*id)->host : std::get<wire::Failure>(result).what;
  };
  CHECK(place(request("", 4), "other.so") == "b");
  CHECK(place(request("", 2), "lib.so") == "a");
  CHECK(place(request("", 1), "lib.so") ==
        "[spawn] Counter needs 1 core and 0 GPUs: a has 0 of 2 cores and 1 of 1 GPUs free; b "
        "cannot have it (there is no such file)");
  CHECK(table.drain_host("a"));
  CHECK(!table.drain_host("c"));
  CHECK(place(request(), "lib.so") ==
        "[spawn] Counter needs 0 cores and 0 GPUs: a is being drained; b cannot have it (there is "
        "no such file)");
  table.remove_host("b");
  CHECK(place(request(), "other.so") ==
        "[spawn] Counter needs 0 cores and 0 GPUs: a is being drained");
}

TEST_CASE("user actors: whose host is gone begins anew on another, its group with it") {
  ActorTable table;
  table.add_host({"a", 1, {0}});
  table.add_host({"b", 4, {0, 1}});
  table.add_host({"c", 4, {4, 5}});
  auto wanted = request("", 2, 1);
  wanted.max_restarts = 1;
  wanted.placement = wire::Placement::together;
  wanted.group = "g";
  const auto one = added(table, wanted), two = added(table, wanted);
  std::uint64_t incarnation = 10;
  for (const auto id : {one, two}) {
    CHECK(table.find(id)->host == "b");
    table.spawned(id, ++incarnation, 1, "t");
    table.created(id, "e", "b");
  }
  CHECK(table.exited(one, 11, "by itself") == true);
  CHECK(!table.place_again(one));
  CHECK(table.find(one)->host == "b");  // its host is there: it stays
  CHECK(table.find(one)->gpus == std::vector<std::int32_t>{0});
  table.spawned(one, 13, 1, "t");
  table.created(one, "e", "b");

  auto last = wanted;
  last.max_restarts = 0;
  last.cores = 0;
  last.gpus = 0;
  table.remove_host("b");
  table.find(one)->request.max_restarts = 2;
  CHECK(table.exited(one, 13, "lost with b") == true);
  CHECK(table.exited(two, 12, "lost with b") == true);
  CHECK(!table.place_again(one));
  CHECK(table.find(one)->host == "c");
  CHECK(table.find(one)->gpus == std::vector<std::int32_t>{4});
  CHECK(!table.place_again(two));
  CHECK(table.find(two)->host == "c");
  CHECK(table.find(two)->gpus == std::vector<std::int32_t>{5});
  CHECK(table.free_cores("c") == 0);
  // The group goes on where it is now.
  CHECK(table.find(added(table, last))->host == "c");
  // And a third time there is nowhere.
  table.drain_host("c");
  table.spawned(one, 14, 1, "t");
  table.created(one, "e", "b");
  table.find(one)->request.max_restarts = -1;
  CHECK(table.exited(one, 14, "drained") == true);
  const auto nowhere = table.place_again(one);
  REQUIRE(nowhere);
  CHECK(nowhere->what ==
        "[spawn] Counter needs 2 cores and 1 GPU: a has 1 of 1 cores and 1 of 1 GPUs free; c is "
        "being drained; its group is on c");
}

}  // namespace troupe::user
