#include "controller/deployments/members.h"
#include "base/text.h"

#include "controller/deployments/memory_room.h"
#include "controller/hosts/capacity.h"
#include "controller/hosts/process_host.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"

using namespace troupe;
using cluster::crowding;
using cluster::HostCapacity;

namespace {

control::PeerInfo hello_of(std::uint64_t incarnation, control::PeerId peer) {
  control::PeerInfo info;
  info.id = peer;
  info.incarnation = incarnation;
  info.hello.role = PeerRole::actor;
  info.hello.attributes = {{"address.shm", "a"}, {"device", "cpu"}, {"token", "secret"}};
  return info;
}

}  // namespace

TEST_CASE("a place is filled by one incarnation at a time") {
  cluster::Members members("secret");
  const auto id = members.add("here", "cpu").id;
  members.spawned(id, 100, 1);
  CHECK(members.hello(hello_of(99, 5)) == "no actor of this cluster: incarnation 99");
  CHECK_FALSE(members.hello(hello_of(100, 5)).has_value());
  CHECK(members.at(id).addresses.at("shm") == "a");
  CHECK(members.by_peer(5)->id == id);
  CHECK(members.idle() == std::vector<cluster::ActorId>{id});
  CHECK(members.exited(id, 100, "killed"));
  CHECK(members.by_peer(5) == nullptr);
  CHECK(members.at(id).state == ActorState::dead);
  members.spawned(id, 200, 2);
  CHECK(members.at(id).restarts == 1);
  CHECK_FALSE(members.exited(id, 100, "late word of the old one"));
  CHECK(members.at(id).state == ActorState::starting);
}

TEST_CASE("of hosts that are gone for good the last places are kept, the others are used anew") {
  cluster::Members members("secret");
  const auto own = members.add("here", "cpu").id;
  std::vector<cluster::ActorId> left;
  for (int host = 0; host < 5; ++host) {
    const auto name = "node" + std::to_string(host);
    const auto id = members.add(name, "cuda:0", /*remote=*/true).id;
    members.spawned(id, 100 + static_cast<std::uint64_t>(host), 1);
    if (host == 3) continue;  // in the cluster
    members.host_lost(name, "was lost");
    members.exited(id, 100 + static_cast<std::uint64_t>(host), "was lost");
    left.push_back(id);
  }
  const auto is_here = [](const std::string& host) { return host == "node3"; };
  CHECK(members.forgettable(is_here, 4).empty());
  CHECK(members.forgettable(is_here, 1) ==
        std::vector<cluster::ActorId>(left.begin(), left.begin() + 3));
  members.keep_part(left[1], 7, 0);
  CHECK(members.forgettable(is_here, 0) ==
        std::vector<cluster::ActorId>{left[0], left[2], left[3]});
  members.move(left[0], "node9", "cuda:0");
  members.move(left[2], "node9", "cuda:0");
  const auto& moved = members.at(left[2]);
  CHECK(moved.host == "node9");
  CHECK(moved.local_rank == 1);
  CHECK_FALSE(moved.closed);
  CHECK(moved.last_cause.empty());
  members.spawned(left[2], 900, 2);
  CHECK(members.at(left[2]).restarts == 0);
  CHECK(members.at(own).host == "here");
  CHECK(members.all().size() == 6);
}

TEST_CASE("who does not know the cluster's token is none of its actors") {
  cluster::Members members("secret");
  const auto id = members.add("here", "cpu").id;
  members.spawned(id, 100, 1);
  auto stranger = hello_of(100, 5);
  stranger.hello.attributes["token"] = "guess";
  CHECK(members.hello(stranger) == "no actor of this cluster: wrong token");
  stranger.hello.attributes.erase("token");
  CHECK(members.hello(stranger) == "no actor of this cluster: wrong token");
  CHECK(members.at(id).state == ActorState::starting);
  CHECK(members.stranger(stranger) == "no actor of this cluster: wrong token");
  CHECK(members.stranger(hello_of(101, 5)) == "no actor of this cluster: incarnation 101");
  CHECK_FALSE(members.stranger(hello_of(100, 5)).has_value());
  CHECK(members.at(id).state == ActorState::starting);
}

TEST_CASE("an actor whose link is lost gets nothing more to do") {
  cluster::Members members("secret");
  const auto id = members.add("here", "cpu").id;
  members.spawned(id, 100, 1);
  members.hello(hello_of(100, 5));
  CHECK(members.lost(6) == nullptr);
  REQUIRE(members.lost(5) != nullptr);
  CHECK(members.idle().empty());
  CHECK(members.ready_count() == 0);
  CHECK(members.by_peer(5) == nullptr);
  CHECK(members.hello(hello_of(100, 6)) == "actor 0 was lost before");
  CHECK(members.living_count() == 1);
  CHECK(members.exited(id, 100, "killed"));
  CHECK(members.at(id).failed_starts == 0);
}

TEST_CASE("who comes late may hold as much as its neighbours, whatever they have left") {
  cluster::Members members("secret");
  const auto enter = [&](cluster::ActorId id, const std::string& memory) {
    members.spawned(id, 100 + id, 1);
    auto hello = hello_of(100 + id, 5 + id);
    hello.hello.attributes["memory"] = memory;
    REQUIRE_FALSE(members.hello(hello).has_value());
    return members.at(id).memory_limit;
  };
  for (int i = 0; i < 2; ++i)
    members.add("here", "cpu");
  members.add("there", "cpu");
  for (int i = 0; i < 2; ++i)
    members.add("gpus", "cuda:" + std::to_string(i));
  CHECK(enter(0, "2000") == 900);
  CHECK(enter(1, "400") == 900);
  CHECK(enter(2, "1000") == 900);
  CHECK(enter(3, "3000") == 2700);
  CHECK(enter(4, "1000") == 900);  // a GPU each
  // Of its second process nothing is asked.
  members.exited(0, 100, "killed");
  CHECK(enter(0, "100") == 900);
}

TEST_CASE("an actor that finds nothing left may hold nothing, one that does not know anything") {
  cluster::Members members("secret");
  std::uint64_t incarnation = 100;
  const auto enter = [&](cluster::ActorId id, const std::optional<std::string>& memory) {
    members.spawned(id, ++incarnation, 1);
    auto hello = hello_of(incarnation, incarnation);
    if (memory) hello.hello.attributes["memory"] = *memory;
    REQUIRE_FALSE(members.hello(hello).has_value());
    return members.at(id).memory_limit;
  };
  members.add("full", "cpu");
  members.add("full gpu", "cuda:0");
  members.add("silent", "cpu");
  CHECK(enter(0, "0") == 0);
  CHECK(members.at(0).may_hold() == 0);
  CHECK(enter(1, "0") == 0);
  CHECK(enter(2, std::nullopt) == std::nullopt);
  CHECK(members.at(2).may_hold() == cluster::kNoLimit);
  CHECK(enter(2, "no number") == std::nullopt);
  CHECK(members.memory_steps() == std::vector<std::pair<std::uint64_t, int>>{{1, 3}});
  // The place's next process may find more; one that does not know takes no limit away.
  members.exited(0, members.at(0).incarnation, "killed");
  CHECK(enter(0, std::nullopt) == 0);
  members.exited(0, members.at(0).incarnation, "killed");
  CHECK(enter(0, "1000") == 900);
  members.exited(0, members.at(0).incarnation, "killed");
  CHECK(enter(0, "0") == 900);
}

TEST_CASE("what actors may hold, least first, also while a lost one's process is still there") {
  cluster::Members members("secret");
  using Steps = std::vector<std::pair<std::uint64_t, int>>;
  CHECK(members.memory_steps() == Steps{{0, 0}});
  for (const std::uint64_t limit : {40, 0, 10, 40}) {
    const auto id = members.add("here", "cpu").id;
    members.spawned(id, 100 + id, 1);
    members.hello(hello_of(100 + id, 5 + id));
    if (limit > 0) members.limit_memory(id, limit);
  }
  CHECK(members.memory_steps() == Steps{{10, 4}, {40, 3}});
  members.lost(7);
  CHECK(members.memory_steps() == Steps{{10, 4}, {40, 3}});
  members.drain(2);
  CHECK(members.memory_steps() == Steps{{40, 3}});
}

TEST_CASE("far more threads than cores, and more memory than is free, are said beforehand") {
  const HostCapacity capacity{.cores = 2, .free_memory = 20'000'000'000};
  CHECK_FALSE(crowding(4, 1, "cpu", capacity));
  CHECK_FALSE(crowding(16, 1, "cpu", capacity));
  const auto many = crowding(17, 1, "cpu", capacity);
  REQUIRE(many);
  CHECK(many->starts_with("17 actors compute with 17 threads on 2 cores: "));
  CHECK(crowding(1, 17, "cpu", capacity)->starts_with("1 actor computes with 17 threads on 2 "));
  CHECK_FALSE(crowding(17, 1, "cuda", capacity));
  CHECK_FALSE(cluster::too_crowded(333, capacity));
  CHECK(cluster::too_crowded(1000, capacity) ==
        "1000 actors take about 60 GB of memory before any model, and 20 GB are free: at most 333 "
        "here");
  CHECK_FALSE(cluster::too_crowded(1000, {.cores = 2, .free_memory = std::nullopt}));
  CHECK(cluster::too_crowded(1, {.cores = 2, .free_memory = 0}) ==
        "1 actor takes about 60 MB of memory before any model, and 0 kB are free: not even one "
        "here");
}

TEST_CASE("of a host's memory no more is free than its control group has left") {
  const testing::Scratch root;
  std::filesystem::create_directories(root.path / "proc/self");
  std::filesystem::create_directories(root.path / "sys/fs/cgroup");
  root.file("proc/meminfo", "MemTotal: 90000000 kB\nMemAvailable: 80000000 kB\n");
  CHECK(cluster::local_capacity(root.path).free_memory == 81'920'000'000);
  root.file("proc/self/mountinfo", "31 22 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n");
  root.file("proc/self/cgroup", "0::/\n");
  root.file("sys/fs/cgroup/memory.max", "1000000000\n");
  root.file("sys/fs/cgroup/memory.current", "400000000\n");
  const auto capacity = cluster::local_capacity(root.path);
  CHECK(capacity.free_memory == 600'000'000);
  CHECK_FALSE(cluster::too_crowded(10, capacity));
  CHECK(cluster::too_crowded(11, capacity));
  root.file("sys/fs/cgroup/memory.current", "1000000000\n");
  const auto full = cluster::too_crowded(1, cluster::local_capacity(root.path));
  REQUIRE(full);
  CHECK(full->ends_with("and 0 kB are free: not even one here"));
  const testing::Scratch silent;
  CHECK(cluster::local_capacity(silent.path).free_memory == std::nullopt);
  CHECK_FALSE(cluster::too_crowded(1, cluster::local_capacity(silent.path)));
}

TEST_CASE("bytes are told in the units of --memory-limit") {
  CHECK(bytes_text(1'250'000'000) == "1.25 GB");
  CHECK(bytes_text(830'000'000) == "830 MB");
  CHECK(bytes_text(12'340) == "12.34 kB");
  CHECK(bytes_text(0) == "0 kB");
}

TEST_CASE("ends without a hello are counted") {
  cluster::Members members("secret");
  const auto id = members.add("here", "cpu").id;
  members.spawned(id, 1, 1);
  members.exited(id, 1, "x");
  members.spawned(id, 2, 1);
  members.exited(id, 2, "x");
  CHECK(members.at(id).failed_starts == 2);
  members.spawned(id, 3, 1);
  members.hello(hello_of(3, 7));
  CHECK(members.at(id).failed_starts == 0);
}

TEST_CASE("the cause of an end reads well") {
  CHECK(cluster::exit_cause(9, {}).text() == "killed by signal 9 (SIGKILL)");
  CHECK(cluster::exit_cause(3 << 8, {"a", "out of luck"}).text() == "exit code 3: out of luck");
}

TEST_CASE("an actor with another version of a model plugin is not taken") {
  cluster::Members members("secret", {{"libplain.so", "aa"}, {"libother.so", "bb"}});
  const auto id = members.add("there", "cpu").id;
  members.spawned(id, 100, 1);
  auto hello = hello_of(100, 5);
  hello.hello.attributes["model_plugin.libplain.so"] = "ab";
  CHECK(members.hello(hello) ==
        "actor 0 on there: its model plugin libplain.so is another version than the controller's");
  CHECK(members.at(id).state == ActorState::starting);
  hello.hello.attributes["model_plugin.libplain.so"] = "aa";  // and of the other it has no copy
  CHECK_FALSE(members.hello(hello).has_value());
}
