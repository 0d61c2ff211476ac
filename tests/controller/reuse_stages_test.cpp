// What was once divided stays divided so, and what hosts tell of their speed is kept as theirs.
#include "controller/jobs/reuse_stages.h"

#include <nlohmann/json.hpp>
#include <numeric>

#include "controller/app/live_environment.h"
#include "controller/deployments/device_kinds.h"
#include "controller/hosts/local_process_host.h"
#include "controller/jobs/batching.h"
#include "controller/plan/machine_json.h"
#include "controller/plan/measured.h"
#include "controller/plan/planner.h"
#include "controller/supervision/host_figures.h"
#include "tests/controller/endpoints.h"
#include "tests/spec/published_hunyuan.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

/// Cluster of four places without actors: what is loaded there stays as it is.
struct EmptyCluster : test::Endpoints {
  cluster::Members members{"secret"};
  jobs::JobTable table{8, 8};
  cluster::LiveEnvironment environment{io, server, blob_server, blobs, {}};
  cluster::Deployments deployments{environment, members};
  EmptyCluster() {
    for (int i = 0; i < 4; ++i)
      members.add("here", "cpu");
  }
};

plan::Machine machine_with(double attention, double bandwidth) {
  plan::HostReport report;
  report.name = "here";
  report.actors = 4;
  report.measured = plan::Measured{.half_flops = 0,
                                   .float_flops = 1e15,
                                   .attention_flops = attention,
                                   .bandwidth = bandwidth,
                                   .launch = 1e-12,
                                   .inside = {3e-6, 5e9}};
  return plan::machine_of_hosts(DeviceKind::cpu, {report});
}

wire::StartProcess launch_of(std::uint32_t id) {
  return {.owner = {PeerRole::actor, id}, .incarnation = id + 100u, .device = "cpu"};
}

}  // namespace

TEST_CASE("figures that change do not divide what is loaded anew") {
  const auto folder = published_sd3(kSd35MediumConfig);
  const auto model = spec::read_model_spec(folder.path());
  wire::ImageRequest request;
  request.prompts = {"x"};
  request.guidance_scale = 5;
  const auto before = machine_with(1e15, 1e6);
  const auto after = machine_with(1e9, 1e15);
  EmptyCluster cluster_;
  const jobs::LoadedStages settled{cluster_.members, cluster_.deployments, cluster_.table};
  const auto planned = [&](const plan::Machine& machine) {
    auto plan = plan::make_plan(model, request, {.pp = 4}, machine);
    jobs::reuse_stages(plan, "model", 7, model, machine, settled);
    return plan;
  };
  const auto first = planned(before);
  const auto other = planned(after);
  REQUIRE(first.stages != other.stages);

  const auto loaded = cluster_.deployments.load({"model", 7}, first, {0, 1, 2, 3});
  const auto again = planned(after);
  CHECK(again.stages == first.stages);
  for (std::size_t rank = 0; rank < again.memory.size(); ++rank) {
    CAPTURE(rank);
    CHECK(again.memory[rank].weights == first.memory[rank].weights);
  }
  // Another model's, or one that somebody listed and that takes much longer, is no reason.
  auto elsewhere = plan::make_plan(model, request, {.pp = 4}, after);
  jobs::reuse_stages(elsewhere, "model", 8, model, after, settled);
  CHECK(elsewhere.stages == other.stages);
  cluster_.deployments.take_down(loaded, "");
  CHECK(planned(after).stages == other.stages);
  const wire::Parallelism odd{.pp = 4, .stages = {1, 1, 1, 21}};
  cluster_.deployments.load({"model", 7}, plan::make_plan(model, request, odd), {0, 1, 2, 3});
  CHECK(planned(after).stages == other.stages);
}

TEST_CASE("so it is where edges follow the stages, since blocks leave for later ones") {
  const auto folder = published_hunyuan(kHunyuanV12Config);
  const auto model = spec::read_model_spec(folder.path());
  wire::ImageRequest request;
  request.prompts = {"x"};
  request.guidance_scale = 5;
  request.max_sequence_length = 0;
  const auto machine = machine_with(1e15, 1e6);
  EmptyCluster cluster_;
  const auto listed =
      plan::make_plan(model, request, {.pp = 4, .stages = {9, 11, 10, 10}}, machine);
  cluster_.deployments.load({"model", 7}, listed, {0, 1, 2, 3});
  auto next = plan::make_plan(model, request, {.pp = 4}, machine);
  REQUIRE(next.stages != listed.stages);
  REQUIRE(next.groups != listed.groups);
  jobs::reuse_stages(next, "model", 7, model, machine,
                     {cluster_.members, cluster_.deployments, cluster_.table});
  CHECK(next.stages == listed.stages);
  CHECK(next.groups == listed.groups);
}

TEST_CASE("a job that waits settles how the next ones and its batch are divided") {
  const auto folder = published_sd3(kSd35MediumConfig);
  const auto model = spec::read_model_spec(folder.path());
  wire::JobSpec job;
  job.model = "model";
  job.request.prompts = {"x"};
  job.request.guidance_scale = 5;
  job.parallelism.pp = 4;
  const auto before = machine_with(1e15, 1e6);
  const auto after = machine_with(1e9, 1e15);
  EmptyCluster cluster_;
  const auto first = plan::make_plan(model, job.request, job.parallelism, before);
  const auto id = cluster_.table.add(job, first, 1, false, 0, 7).value();
  auto next = plan::make_plan(model, job.request, job.parallelism, after);
  REQUIRE(next.stages != first.stages);
  jobs::reuse_stages(next, "model", 7, model, after,
                     {cluster_.members, cluster_.deployments, cluster_.table});
  CHECK(next.stages == first.stages);
  const auto mix = jobs::parallelism_of(*cluster_.table.find(id));
  CHECK(plan::make_plan(model, job.request, mix, after).stages == first.stages);
}

TEST_CASE("what an actor failed by is text, whatever bytes it sent") {
  EmptyCluster cluster_;
  cluster::HostFigures figures(cluster_.server, "here", 4);
  wire::Hello hello;
  hello.attributes["measured.failed"] = std::string(199, 'x') + "µ\n";
  figures.actor_came("here", hello);
  const auto machine = figures.machine(cluster_.members, DeviceKind::cpu);
  REQUIRE(machine.notes.size() == 1);
  CHECK(contains(machine.notes[0], std::string(199, 'x') + "?;"));
  std::string text;
  CHECK_NOTHROW(text = plan::to_json(machine).dump());
  CHECK(contains(text, "xxx?"));
}

TEST_CASE("a host's figures go with it, and a late answer does not bring them back") {
  EmptyCluster cluster_;
  cluster::HostFigures figures(cluster_.server, "here", 4);
  cluster_.members.add("far", "cpu", /*remote=*/true);
  wire::Hello hello;
  hello.attributes["measured.float_flops"] = "4e10";
  hello.attributes["measured.bandwidth"] = "4e9";
  const auto measured = [&] { return figures.machine(cluster_.members, DeviceKind::cpu).measured; };
  figures.host_joined(11, "far", {});
  figures.actor_came("far", hello);
  CHECK(measured());
  // It came back before its old link was given up.
  figures.host_joined(12, "far", {});
  CHECK_FALSE(measured());
  figures.actor_came("far", hello);
  figures.host_left(11);
  CHECK(measured());
  figures.host_left(12);
  CHECK_FALSE(measured());
  // Nobody is at these peers: their pings have failed, or fail now.
  cluster_.io.run_for(std::chrono::milliseconds(1));
  for (const auto& note : figures.machine(cluster_.members, DeviceKind::cpu).notes)
    CHECK_FALSE(contains(note, "measured from the controller"));
}

TEST_CASE("jobs are planned for the kind of device that most actors have") {
  cluster::Members members("secret");
  CHECK(cluster::commonest_kind(members, WeightChoice::as_computed, DeviceKind::cpu) ==
        DeviceKind::cpu);
  members.add("here", "cpu");
  members.add("there", "cuda:0", /*remote=*/true);
  CHECK(cluster::commonest_kind(members, WeightChoice::as_computed, DeviceKind::cpu) ==
        DeviceKind::cpu);
  CHECK(cluster::commonest_kind(members, WeightChoice::as_computed, DeviceKind::cuda) ==
        DeviceKind::cuda);
  CHECK(cluster::commonest_kind(members, WeightChoice::fp8, DeviceKind::cpu) == DeviceKind::cuda);
  members.add("there", "cuda:1", /*remote=*/true);
  CHECK(cluster::commonest_kind(members, WeightChoice::as_computed, DeviceKind::cpu) ==
        DeviceKind::cuda);
  CHECK(cluster::commonest_kind(members, WeightChoice::int8, DeviceKind::cuda) == DeviceKind::cpu);
}

TEST_CASE("who ends before it could tell how fast its device is leaves that to the next one") {
  boost::asio::io_context io;
  int ended = 0;
  const auto run = [&](cluster::LocalProcessHost& processes, std::uint32_t id) {
    processes.start(launch_of(id));
    const int before = ended;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (ended == before && std::chrono::steady_clock::now() < end)
      io.run_one_for(std::chrono::milliseconds(20));
    REQUIRE(ended == before + 1);
    const auto& log = processes.lines(id);
    const auto lines = log.lines(0, 100);
    return std::accumulate(lines.begin(), lines.end(), std::string());
  };
  cluster::LocalProcessHost::Options options;
  const testing::Scratch scratch;
  options.host.actor_program = scratch / "actor";
  options.host.pin = "none";
  cluster::LocalProcessHost processes(io, options, [&](auto, auto, const auto&) { ++ended; });
  // One that cannot be started does not, either.
  CHECK_THROWS(processes.start(launch_of(1)));
  std::filesystem::create_symlink("/bin/echo", options.host.actor_program);
  CHECK(contains(run(processes, 1), "--measure"));
  CHECK(contains(run(processes, 2), "--measure"));
  // While one that was told so lives, nobody else is.
  processes.start(launch_of(3));
  processes.start(launch_of(4));
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (ended < 4 && std::chrono::steady_clock::now() < end)
    io.run_one_for(std::chrono::milliseconds(20));
  const auto lines = processes.lines(4).lines(0, 100);
  CHECK_FALSE(contains(std::accumulate(lines.begin(), lines.end(), std::string()), "--measure"));
}
