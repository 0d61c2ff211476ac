#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>

#include "controller/plan/link_cost.h"
#include "controller/plan/machine_json.h"
#include "controller/plan/measured.h"
#include "controller/plan/report.h"
#include "controller/plan/shape.h"
#include "tests/spec/published_folder.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

plan::Measured figures(double flops) {
  return {.half_flops = 0,
          .float_flops = flops,
          .attention_flops = flops / 2,
          .bandwidth = flops / 10,
          .launch = 1e-6,
          .inside = {3e-6, 5e9}};
}

plan::HostReport host(const std::string& name, int actors, std::optional<plan::Measured> found) {
  plan::HostReport report;
  report.name = name;
  report.actors = actors;
  report.cores = 8;
  report.measured = found;
  return report;
}

bool notes(const plan::Machine& machine, const std::string& text) {
  return std::any_of(machine.notes.begin(), machine.notes.end(),
                     [&](const auto& note) { return contains(note, text); });
}

wire::ImageRequest measured_request() {
  wire::ImageRequest request;
  request.prompts = {"a red circle"};
  request.guidance_scale = 5;
  request.max_sequence_length = 0;
  return request;
}

/// A machine with made-up rates, so slow at one kind of work that nothing else counts.
plan::Machine slow_at(const std::string& kind) {
  auto found = figures(1e15);
  found.attention_flops = 1e15;
  found.bandwidth = 1e15;
  found.launch = 1e-12;
  if (kind == "attention") found.attention_flops = 1e9;
  if (kind == "products") found.float_flops = 1e9;
  if (kind == "memory") found.bandwidth = 1e6;
  return plan::machine_of_hosts(DeviceKind::cpu, {host("here", 16, found)});
}

}  // namespace

TEST_CASE("what an actor says of its speed is read, and nothing that is no figure") {
  std::map<std::string, std::string> said{{"measured.float_flops", "98000000000"},
                                          {"measured.attention_flops", "5.5e10"},
                                          {"measured.bandwidth", "9e9"},
                                          {"measured.launch", "1.5e-06"},
                                          {"measured.link_latency", "3e-06"},
                                          {"measured.link_bandwidth", "4e9"},
                                          {"threads", "2"}};
  const auto found = plan::Measured::from(said);
  REQUIRE(found);
  CHECK(found->float_flops == 98e9);
  CHECK(found->half_flops == 0);
  CHECK(found->inside.latency == doctest::Approx(3e-6));
  CHECK(found->inside.bandwidth == 4e9);
  CHECK_FALSE(plan::Measured::from({{"threads", "2"}}));
  for (const std::string wrong : {"-1", "0", "inf", "nan", "fast", "1e9 "}) {
    CAPTURE(wrong);
    auto other = said;
    other["measured.bandwidth"] = wrong;
    CHECK_FALSE(plan::Measured::from(other));
  }
}

TEST_CASE("a cluster's machine has the hosts that there are and the slowest figures of them") {
  auto far = host("far", 2, figures(40e9));
  far.remote = true;
  far.link = plan::Interconnect{80e-6, 1e9};
  auto farther = host("farther", 3, figures(90e9));
  farther.remote = true;
  farther.link = plan::Interconnect{50e-6, 2e9};
  const auto machine =
      plan::machine_of_hosts(DeviceKind::cpu, {host("here", 4, figures(100e9)), far, farther});
  CHECK(machine.measured);
  CHECK(machine.devices == 9);
  CHECK(machine.hosts == std::vector<int>{4, 3, 2});
  using Hosts = std::vector<int>;
  CHECK(plan::hosts_of_ranks({.pp = 9}, machine) == Hosts{0, 0, 0, 0, 1, 1, 1, 2, 2});
  CHECK(plan::hosts_of_ranks({.pp = 2}, machine) == Hosts{2, 2});
  CHECK(plan::hosts_of_ranks({.pp = 3, .tp = 2}, machine) == Hosts{0, 0, 0, 0, 2, 2});
  CHECK(plan::hosts_of_ranks({.pp = 11}, machine).size() == 11);
  CHECK(machine.device.float_flops == 40e9);
  CHECK(machine.device.half_flops == 40e9);
  CHECK(machine.device.attention_share == doctest::Approx(0.5));
  CHECK(machine.device.bandwidth == 4e9);
  CHECK(machine.inside.bandwidth == 5e9);
  CHECK(machine.between.bandwidth == 1e9);
  CHECK(machine.between.latency == doctest::Approx(80e-6));
  CHECK(notes(machine, "measured on far: 40 GFLOP/s"));
  CHECK(notes(machine, "measured from the controller to farther, over the control plane: 50 µs"));
  // What goes over the wire is priced as that: a pipeline over two hosts, not one in a host.
  const auto inside = plan::link_costs_of({.pp = 4}, machine);
  const auto over = plan::link_costs_of({.pp = 5}, machine);
  CHECK(over.edge.seconds(1e6) > 2 * inside.edge.seconds(1e6));
  // Three pairs on hosts of 4, 3 and 2: none goes over the wire, the stages do.
  const auto pairs = plan::link_costs_of({.pp = 3, .tp = 2}, machine);
  CHECK(pairs.tp.latency == machine.inside.latency);
  CHECK(pairs.edge.latency == machine.between.latency);
}

TEST_CASE("where nothing was measured the constants stand, and the notes say why") {
  auto lost = host("far", 1, std::nullopt);
  lost.remote = true;
  lost.why_not = "no memory for it";
  lost.why_no_link = "timeout";
  const auto machine =
      plan::machine_of_hosts(DeviceKind::cpu, {host("here", 2, std::nullopt), lost});
  const auto constants = plan::this_cpu(1);
  CHECK_FALSE(machine.measured);
  CHECK(machine.device.float_flops == constants.device.float_flops);
  CHECK(machine.inside.bandwidth == constants.inside.bandwidth);
  CHECK(machine.between.bandwidth == constants.between.bandwidth);
  CHECK(machine.hosts == std::vector<int>{2, 1});
  CHECK(notes(machine, "not measured on far: no memory for it; constants stand for it"));
  CHECK(notes(machine, "not measured on here: no actor of it has told yet"));
  CHECK(notes(machine, "not measured from the controller to far: timeout"));
  // Pings of the control plane say nothing of what GPUs send over.
  auto pinged = lost;
  pinged.link = plan::Interconnect{1e-3, 1e6};
  const auto gpus =
      plan::machine_of_hosts(DeviceKind::cuda, {host("here", 2, std::nullopt), pinged});
  CHECK(gpus.between.bandwidth == plan::machine_here(DeviceKind::cuda, 3, 0).between.bandwidth);
  CHECK(notes(gpus, "between GPUs the constant stands"));
  CHECK(plan::machine_of_hosts(DeviceKind::cpu, {}).devices == 1);
  CHECK(
      plan::machine_of_hosts(DeviceKind::cuda, {host("here", 2, std::nullopt)}).inside.bandwidth ==
      plan::machine_here(DeviceKind::cuda, 2, 0).inside.bandwidth);
}

TEST_CASE("a GPU's name says whose links it has") {
  const std::vector<std::pair<std::string, std::string>> names = {
      {"NVIDIA L40S", "l40"},
      {"NVIDIA L40", "l40"},
      {"NVIDIA L20", "l20"},
      {"Tesla T4", "t4"},
      {"NVIDIA A100-SXM4-80GB", "a100-nvlink"},
      {"NVIDIA A100-SXM4-40GB MIG 3g.20gb", "a100-nvlink"},
      {"NVIDIA A100-PCIE-40GB", "a100-pcie"},
      {"NVIDIA A100 80GB PCIe", "a100-pcie"},
      {"NVIDIA H100 80GB HBM3", "h100-nvlink"},
      {"NVIDIA H100 PCIe", "a100-pcie"},
      {"NVIDIA H100 NVL", "a100-pcie"},
      {"NVIDIA H200", "h200-nvlink"},
      {"NVIDIA L4", ""},
      {"NVIDIA T400 4GB", ""},
      {"NVIDIA GH200 480GB", ""},
      {"NVIDIA B200", ""},
      {"Pretend GPU", ""},
      {"", ""}};
  for (const auto& [name, row] : names) {
    CAPTURE(name);
    CHECK(plan::machine_of_gpu(name) == row);
  }
}

TEST_CASE("GPUs have the links of their row, and the speeds that were measured") {
  const auto of = [](const std::string& gpu, std::optional<plan::Measured> found = std::nullopt) {
    auto report = host("host of " + gpu, 4, found);
    report.gpu = gpu;
    return report;
  };
  const auto l40 = plan::machine_of("l40"), a100 = plan::machine_of("a100-nvlink");
  auto found = figures(50e12);
  found.half_flops = 200e12;
  found.inside = {};
  const auto measured = plan::machine_of_hosts(DeviceKind::cuda, {of("NVIDIA L40S", found)});
  CHECK(measured.inside.bandwidth == l40.inside.bandwidth);
  CHECK(measured.devices_per_socket == 4);
  CHECK(measured.device.half_flops == 200e12);
  CHECK(measured.device.bandwidth == 5e12);
  CHECK(measured.device.memory == l40.device.memory);
  CHECK(measured.devices == 4);
  CHECK(notes(measured,
              "host of NVIDIA L40S has NVIDIA L40S: its GPUs' links, and what was not "
              "measured, are those of l40"));
  const auto unknown = plan::machine_of_hosts(DeviceKind::cuda, {of("NVIDIA B200")});
  CHECK(unknown.inside.bandwidth == a100.inside.bandwidth);
  CHECK(notes(unknown,
              "has NVIDIA B200, which is not in the table: its GPUs' links, and what was "
              "not measured, are those of a100-nvlink"));
  const auto untold = plan::machine_of_hosts(DeviceKind::cuda, {of("")});
  CHECK(untold.device.half_flops == a100.device.half_flops);
  CHECK(notes(untold, "which GPUs host of  has was not told"));
  // Two kinds: the slower of each.
  const auto h100 = plan::machine_of("h100-nvlink");
  for (const bool turned : {false, true}) {
    auto hosts = std::vector{of("NVIDIA H100 80GB HBM3"), of("Tesla T4")};
    if (turned) std::swap(hosts[0], hosts[1]);
    const auto both = plan::machine_of_hosts(DeviceKind::cuda, hosts);
    const auto t4 = plan::machine_of("t4");
    CHECK(both.device.half_flops == t4.device.half_flops);
    CHECK(both.device.memory == t4.device.memory);
    CHECK(both.inside.bandwidth == t4.inside.bandwidth);
    CHECK(both.inside.latency == t4.inside.latency);
    CHECK_FALSE(both.fp8);
    CHECK(both.devices == 8);
  }
  const auto mixed = plan::machine_of_hosts(
      DeviceKind::cuda, {of("NVIDIA A100-SXM4-80GB"), of("NVIDIA L40"), of("NVIDIA L20")});
  CHECK(mixed.devices_per_socket == 4);
  CHECK(mixed.inside.bandwidth == l40.inside.bandwidth);
  CHECK(h100.fp8);
}

TEST_CASE("actors share the cores that their host has") {
  auto crowded = host("here", 4, figures(1e11));
  crowded.cores = 4;
  crowded.threads = 2;
  CHECK(plan::machine_of_hosts(DeviceKind::cpu, {crowded}).busy_devices_per_host == 2);
  crowded.threads = 1;
  CHECK(plan::machine_of_hosts(DeviceKind::cpu, {crowded}).busy_devices_per_host == 0);
}

TEST_CASE("a machine goes to a client and back, and what is no machine is refused by key") {
  auto far = host("far", 2, figures(40e9));
  far.remote = true;
  far.link = plan::Interconnect{80e-6, 1e9};
  const auto machine =
      plan::machine_of_hosts(DeviceKind::cpu, {host("here", 4, figures(1e11)), far});
  const auto json = plan::to_json(machine);
  CHECK(plan::to_json(plan::machine_from_json(json)) == json);
  CHECK(json["notes"].size() == 3);
  for (const std::string key : {"device", "inside", "hosts", "notes", "measured", "devices"}) {
    CAPTURE(key);
    auto without = json;
    without.erase(key);
    CHECK(contains(error_of([&] { plan::machine_from_json(without); }), key));
  }
  auto wrong = json;
  wrong["hosts"] = {4, 0};
  CHECK(contains(error_of([&] { plan::machine_from_json(wrong); }), "hosts"));
  wrong = json;
  wrong["device"]["bandwidth"] = 0;
  CHECK(contains(error_of([&] { plan::machine_from_json(wrong); }), "bandwidth"));
}

TEST_CASE("an explanation says what was measured, and where ranks leave a host") {
  const auto folder = published_sd3(kSd35MediumConfig);
  const auto model = spec::read_model_spec(folder.path());
  wire::JobSpec job;
  job.request = measured_request();
  job.parallelism.automatic = true;
  auto far = host("far", 2, figures(40e9));
  far.remote = true;
  far.link = plan::Interconnect{1e-3, 1e6};
  const auto machine =
      plan::machine_of_hosts(DeviceKind::cpu, {host("here", 2, figures(1e11)), far});
  const auto found = plan::explain(model, job, 4, machine);
  const auto text = plan::to_text(found, model);
  CHECK(contains(text, "predicted for this cluster, 4 actors: 0.04 TFLOP/s in float32"));
  CHECK(contains(text, "between hosts 0.001 GB/s"));
  CHECK(contains(text, "measured on here: 100 GFLOP/s"));
  CHECK(plan::to_json(found, model)["figures"]["hosts"] == nlohmann::json({2, 2}));
  // A link as slow as that decides: exchanges a block stay within a host.
  const auto* best = plan::best_of(found.candidates);
  REQUIRE(best);
  CHECK(best->parallelism.ulysses * best->parallelism.ring * best->parallelism.tp <= 2);
}

TEST_CASE("an explanation says how much slower offload is, and what it saves") {
  const auto folder = published_sd3(kSd35MediumConfig);
  const auto model = spec::read_model_spec(folder.path());
  wire::JobSpec job;
  job.request = measured_request();
  job.request.offload = OffloadChoice::blocks;
  const auto found = plan::explain(model, job, 1, plan::machine_of("l40"));
  REQUIRE(found.offloaded);
  CHECK(found.offloaded->slower() >= 1);
  CHECK(found.offloaded->own.memory < found.offloaded->kept.memory);
  CHECK(contains(plan::to_text(found, model), "× as long as with all blocks in memory"));
  const auto json = plan::to_json(found, model);
  CHECK(json["offload"]["slower"] == found.offloaded->slower());
  CHECK(json["figures"]["device"]["host_bandwidth"] == 31.5e9 * 0.8);
  job.request.offload = OffloadChoice::none;
  CHECK_FALSE(plan::to_json(plan::explain(model, job, 1, plan::machine_of("l40")), model)
                  .contains("offload"));
}

TEST_CASE("stages are split by the seconds that were measured, not by FLOPs") {
  // Its first 13 of 24 blocks have a second attention, and weights for it.
  const auto folder = published_sd3(kSd35MediumConfig);
  const auto model = spec::read_model_spec(folder.path());
  const auto request = measured_request();
  const auto sizes = [&](const plan::Plan& plan) {
    std::vector<int> blocks;
    for (const auto& stage : plan.stages)
      blocks.push_back(stage.blocks());
    return blocks;
  };
  const wire::Parallelism mix{.pp = 4};
  const auto by_flops = plan::make_plan(model, request, mix);
  const auto shape = plan::shape_of(model, by_flops.request);
  const double tokens = static_cast<double>(by_flops.token_rows * by_flops.token_columns);
  // An unmeasured machine splits by FLOPs.
  CHECK(sizes(plan::make_plan(model, request, mix, plan::this_cpu(4))) == sizes(by_flops));
  const auto costliest = [&](const plan::Plan& plan, const plan::Machine& machine) {
    const auto costs =
        plan::block_costs(shape, tokens, plan::rates_of(machine, ComputeType::float32));
    double most = 0;
    for (const auto& stage : plan.stages) {
      most = std::max(most, std::accumulate(costs.begin() + stage.first_block,
                                            costs.begin() + stage.last_block, 0.0));
    }
    return most;
  };
  for (const std::string kind : {"attention", "products", "memory"}) {
    CAPTURE(kind);
    const auto machine = slow_at(kind);
    const auto measured = plan::make_plan(model, request, mix, machine);
    CHECK(costliest(measured, machine) <= costliest(by_flops, machine) * 1.0000001);
    MESSAGE(kind << ": " << sizes(measured)[0] << " " << sizes(measured)[1] << " "
                 << sizes(measured)[2] << " " << sizes(measured)[3]);
  }
  // What only moves memory is the same in every block: evenly. A second attention that takes all
  // the time makes the first blocks twice as dear.
  CHECK(sizes(plan::make_plan(model, request, mix, slow_at("memory"))) ==
        std::vector<int>{6, 6, 6, 6});
  const auto attending = plan::make_plan(model, request, mix, slow_at("attention"));
  CHECK(sizes(attending) != sizes(plan::make_plan(model, request, mix, slow_at("memory"))));
  CHECK(attending.stages.front().blocks() < attending.stages.back().blocks());
  // The planner's candidates are split alike.
  const auto machine = slow_at("attention");
  const auto candidates = plan::choose_degrees(model, request, 4, machine, {.candidates = 1000});
  const auto piped = std::find_if(candidates.begin(), candidates.end(), [](const auto& candidate) {
    return candidate.parallelism.pp == 4;
  });
  REQUIRE(piped != candidates.end());
  CHECK(piped->parallelism.stages.empty());
  const auto& degrees = piped->parallelism;
  const auto own = plan::make_plan(model, request, degrees, machine);
  const auto alien = plan::make_plan(model, request, degrees, slow_at("memory"));
  CHECK(own.stages != alien.stages);
  CHECK(piped->cost.total() == plan::judge(degrees, own, model, machine).cost.total());
  CHECK(piped->cost.total() < plan::judge(degrees, alien, model, machine).cost.total());
}
