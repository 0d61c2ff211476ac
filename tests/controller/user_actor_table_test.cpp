#include "controller/actors/actor_table.h"
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
  CHECK(table.all().size() == 4);
  CHECK(table.find(mine) != nullptr);
}

TEST_CASE("user actors: requests that make no sense are refused by name") {
  auto table = two_hosts();
  CHECK(refused(table, request("", -1)).what == "[spawn] cores is -1");
  CHECK(refused(table, request("", 0, -2)).what == "[spawn] gpus is -2");
  auto wanted = request();
  wanted.max_restarts = -2;
  CHECK(refused(table, wanted).code == wire::FailureCode::bad_request);
}

}  // namespace troupe::user
