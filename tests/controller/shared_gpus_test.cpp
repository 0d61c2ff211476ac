// Actors that share a GPU: which device each gets, what its process is told, and what it may hold.
// A script stands for troupe-actor.
#include <sys/stat.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <thread>

#include "controller/app/cluster.h"
#include "controller/app/joined_host.h"
#include "controller/deployments/members.h"
#include "controller/hosts/host_options.h"
#include "controller/hosts/local_process_host.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"

using namespace troupe;
using testing::has;
using testing::message_of;

namespace {

/// Writes down what it was started with, one file an actor, and says no hello.
struct Recorder {
  testing::Scratch folder;

  Recorder() {
    const auto script = folder.file("actor",
                                    "#!/bin/sh\n"
                                    "folder=$(dirname \"$0\"); words=\"$*\"\n"
                                    "while [ \"$1\" != --id ]; do shift; done\n"
                                    "{ echo \"words $words\"; env; } > \"$folder/$2.new\"\n"
                                    "mv \"$folder/$2.new\" \"$folder/actor-$2\"\n"
                                    "exec sleep 60\n");
    chmod(script.c_str(), 0700);
  }
  std::string program() const { return folder / "actor"; }
  std::string of(int actor) const {
    const auto file = folder / ("actor-" + std::to_string(actor));
    for (int look = 0; look < 3000 && !std::filesystem::exists(file); ++look)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    return testing::read_all(file);
  }
};

cluster::HostOptions two_on_each(const Recorder& recorder, int actors) {
  cluster::HostOptions options;
  options.actors = actors;
  options.device = "cuda";
  options.actors_per_gpu = 2;
  options.actor_program = recorder.program();
  return options;
}

}  // namespace

TEST_CASE("actors are dealt out to GPUs in the order of their ranks") {
  cluster::HostOptions options;
  options.actors = 5;
  CHECK(options.gpus() == 0);
  options.device = "cuda";
  CHECK(options.gpus() == 5);
  options.actors_per_gpu = 2;
  CHECK(options.gpus() == 3);
  CHECK(cluster::device_of("cpu", 3, 1) == "cpu");
  CHECK(cluster::device_of("cuda", 3, 1) == "cuda:3");
  CHECK(cluster::device_of("cuda", 3, 2) == "cuda:1");
  CHECK(cluster::device_of("cuda", 4, 2) == "cuda:2");
}

TEST_CASE("on GPUs actors load modules at once; where they share one, NCCL takes each for a host") {
  const Recorder recorder;
  boost::asio::io_context io{1};
  const auto exits = [](const auto&, std::uint64_t, const cluster::ExitCause&) {};
  const auto launch = [](std::uint32_t id, const std::string& device) {
    return wire::StartProcess{
        .owner = {PeerRole::actor, id}, .incarnation = id + 1u, .device = device};
  };
  cluster::LocalProcessHost::Options options;
  options.host = two_on_each(recorder, 2);
  cluster::LocalProcessHost shared(io, options, exits);
  for (const std::uint32_t id : {0u, 1u})
    shared.start(launch(id, "cuda:0"));
  for (const int id : {0, 1}) {
    const auto told = recorder.of(id);
    CHECK(has(told, "--device cuda:0"));
    CHECK(has(told, "\nCUDA_MODULE_LOADING=EAGER\n"));
    CHECK(has(told, "\nCUDA_DEVICE_MAX_CONNECTIONS=32\n"));
    CHECK(has(told, "-troupe-actor-" + std::to_string(id) + "\n"));
    CHECK(has(told, "\nNCCL_HOSTID="));
  }
  options.host.actors_per_gpu = 1;
  cluster::LocalProcessHost alone(io, options, exits);
  alone.start(launch(7, "cuda:1"));
  CHECK(has(recorder.of(7), "\nCUDA_MODULE_LOADING=EAGER\n"));
  CHECK_FALSE(has(recorder.of(7), "NCCL_HOSTID"));
  alone.start(launch(8, "cpu"));
  CHECK_FALSE(has(recorder.of(8), "CUDA_MODULE_LOADING"));
}

TEST_CASE(
    "a cluster's own actors, and those of a host that joins, share GPUs as they were told to") {
  const Recorder here, there;
  cluster::ClusterOptions options;
  static_cast<cluster::HostOptions&>(options) = two_on_each(here, 3);
  options.listen = "tcp://127.0.0.1:0";
  cluster::Cluster cluster(options);
  for (const int id : {0, 1, 2})
    CHECK(has(here.of(id), "--device cuda:" + std::to_string(id / 2) + " "));

  cluster::JoinOptions join;
  static_cast<cluster::HostOptions&>(join) = two_on_each(there, 3);
  join.endpoint = cluster.endpoint();
  join.name = "there";
  cluster::JoinedHost host(join);
  std::thread guest([&] { host.run([] {}); });
  for (const int id : {3, 4, 5}) {
    const auto told = there.of(id);
    CHECK(has(told, "--device cuda:" + std::to_string((id - 3) / 2) + " "));
    CHECK(has(told, "-troupe-actor-" + std::to_string(id) + "\n"));
  }
  cluster.stop();
  guest.join();
}

TEST_CASE("actors that share a GPU have its memory together") {
  cluster::Members members("secret");
  const auto enter = [&](cluster::ActorId id, const std::string& memory) {
    members.spawned(id, 100 + id, 1);
    control::PeerInfo peer;
    peer.id = 5 + id;
    peer.incarnation = 100 + id;
    peer.hello.attributes = {{"token", "secret"}, {"memory", memory}};
    REQUIRE_FALSE(members.hello(peer).has_value());
    return members.at(id).memory_limit;
  };
  for (const char* device : {"cuda:0", "cuda:0", "cuda:1"})
    members.add("here", device);
  members.add("there", "cuda:0");
  CHECK(enter(0, "2000") == 900);
  CHECK(enter(1, "400") == 900);  // its neighbour has loaded a model already
  CHECK(enter(2, "2000") == 1800);
  CHECK(enter(3, "3000") == 2700);
}

TEST_CASE("so many on a GPU that there is none is refused") {
  cluster::ClusterOptions options;
  options.device = "cuda";
  options.actors_per_gpu = 0;
  CHECK(has(message_of([&] { cluster::Cluster cluster(options); }),
            "[cluster] actors_per_gpu is 0: at least 1 is needed"));
  cluster::JoinOptions join;
  join.endpoint = "tcp://127.0.0.1:9";
  join.actors_per_gpu = -1;
  CHECK(has(message_of([&] { cluster::JoinedHost host(join); }),
            "[join] actors_per_gpu is -1: at least 1 is needed"));
}
