// What of a host's files is believed, and pins on the host that runs this.
#include "controller/hosts/affinity.h"

#include <filesystem>

#include "controller/hosts/actor_pins.h"
#include "controller/hosts/numa.h"
#include "controller/hosts/process.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"

using namespace troupe;
using namespace troupe::cluster;
using testing::has;
using testing::message_of;

namespace {

/// A machine's files in a folder of its own.
struct Machine {
  testing::Scratch folder;

  void file(const std::string& name, const std::string& text) {
    std::filesystem::create_directories((folder.path / name).parent_path());
    folder.file(name, text);
  }
  void node(int id, const std::string& cpus) {
    file("sys/devices/system/node/node" + std::to_string(id) + "/cpulist", cpus);
  }
  void gpu(const std::string& bus, const std::string& uuid, const std::string& model,
           const std::string& node) {
    file("proc/driver/nvidia/gpus/" + bus + "/information",
         "Model: \t\t " + model + "\nIRQ:   \t\t 97\nGPU UUID: \t " + uuid + "\nBus Location: \t " +
             bus + "\nGPU Excluded:\t No\n");
    if (!node.empty()) file("sys/bus/pci/devices/" + bus + "/numa_node", node);
  }
};

}  // namespace

TEST_CASE("a host's nodes are read from its files, and what is wrong is named with its file") {
  Machine machine;
  CHECK(read_numa_nodes(machine.folder.path).empty());
  machine.node(1, "4-7\n");
  machine.node(0, "0-3\n");
  machine.node(10, "\n");
  machine.file("sys/devices/system/node/possible", "0-1\n");
  machine.file("sys/devices/system/node/node/cpulist", "0\n");
  machine.file("sys/devices/system/node/nodes/cpulist", "0\n");
  CHECK(read_numa_nodes(machine.folder.path) ==
        std::vector<NumaNode>{{0, {0, 1, 2, 3}}, {1, {4, 5, 6, 7}}, {10, {}}});
  CHECK(read_numa_nodes("/").size() <= 1024);
  for (const std::string& bad :
       {std::string("4-"), std::string("\0\0", 2), std::string(70'000, '1'),
        std::string("4-7;rm -rf /"), std::string("7-4")}) {
    machine.node(1, bad);
    const auto what = message_of([&] { read_numa_nodes(machine.folder.path); });
    CAPTURE(what);
    CHECK(what.starts_with("[numa] "));
    CHECK(has(what, "node1/cpulist: "));
    CHECK(what.size() < 400);
  }
  machine.node(1, "3-7");
  CHECK(has(message_of([&] { read_numa_nodes(machine.folder.path); }),
            "CPU 3 is of node 0 and of node 1"));
  std::filesystem::remove(machine.folder.path / "sys/devices/system/node/node1/cpulist");
  CHECK(has(message_of([&] { read_numa_nodes(machine.folder.path); }), "it cannot be read"));
}

TEST_CASE("GPUs are counted as CUDA does, or not at all") {
  Machine machine;
  CHECK(read_gpus(machine.folder.path).empty());
  machine.gpu("0000:81:00.0", "GPU-b", "H100", "1\n");
  machine.gpu("0000:18:00.0", "GPU-a", "H100", "0\n");
  machine.gpu("10000:01:00.0", "GPU-c", "H100", "-1\n");
  machine.gpu("0000:90:00.0", "GPU-bb", "H100", "");
  const auto gpus = read_gpus(machine.folder.path);
  const auto order = [&](const CudaView& view, const std::vector<LocalGpu>& of) {
    std::string text;
    for (const auto& gpu : in_cuda_order(of, view))
      text += gpu.uuid.substr(4) + std::to_string(gpu.node) + " ";
    return text;
  };
  CHECK(order({}, gpus) == "a0 b1 bb-1 c-1 ");
  CHECK(order({.visible = "2,0"}, gpus) == "bb-1 a0 ");
  CHECK(order({.visible = "GPU-c, 1"}, gpus) == "c-1 b1 ");
  CHECK(order({.visible = "0,7,1"}, gpus) == "a0 ");
  CHECK(order({.visible = "GPU-b"}, gpus).empty());  // two begin so
  CHECK(order({.visible = ""}, gpus).empty());
  CHECK(order({.visible = "-1"}, gpus).empty());
  CHECK(has(message_of([&] { order({.visible = "MIG-1"}, gpus); }), "a part of a GPU"));
  auto mixed = gpus;
  mixed[0].model = "A100";
  CHECK(has(message_of([&] { order({}, mixed); }), "CUDA_DEVICE_ORDER=PCI_BUS_ID"));
  CHECK(order({.visible = {}, .order = "PCI_BUS_ID"}, mixed) == "a0 b1 bb-1 c-1 ");
  CHECK(order({.visible = "GPU-a"}, mixed) == "a0 ");

  for (const char* bad : {"x", "-2", "", "0 1", "99999999999"}) {
    CAPTURE(bad);
    machine.gpu("0000:18:00.0", "GPU-a", "H100", "0");
    machine.file("sys/bus/pci/devices/0000:18:00.0/numa_node", bad);
    CHECK(has(message_of([&] { read_gpus(machine.folder.path); }), "0000:18:00.0/numa_node: "));
  }
}

TEST_CASE("what cannot be read costs the pins alone, and its name is told") {
  CHECK(message_of([] { ActorPins({.how = "cores"}); }) ==
        "[cluster] pin is \"cores\": none or numa");
  Machine machine;
  machine.node(0, "0");
  machine.node(1, "1-");
  ActorPins pins({.actors = 2, .root = machine.folder.path.string()});
  CHECK_FALSE(pins.of(0, "cpu"));
  CHECK(has(pins.why_not(), "node1/cpulist"));
  ActorPins none({.how = "none", .actors = 2, .root = machine.folder.path.string()});
  CHECK_FALSE(none.of(0, "cpu"));
  CHECK(none.why_not().empty());
}

TEST_CASE("a place keeps its pin, whatever its number in the cluster") {
  const auto here = allowed_cpus();
  if (here.size() < 2) {
    MESSAGE("skipped: this process may use one CPU only");
    return;
  }
  Machine machine;
  machine.node(0, std::to_string(here[0]));
  machine.node(1, std::to_string(here[1]));
  ActorPins pins({.actors = 2, .root = machine.folder.path.string()});
  for (int round = 0; round < 2; ++round) {
    REQUIRE(pins.of(7, "cpu"));
    CHECK(pins.of(7, "cpu")->cpus == std::vector<int>{here[0]});
    REQUIRE(pins.of(4, "cpu"));
    CHECK(pins.of(4, "cpu")->cpus == std::vector<int>{here[1]});
  }
  CHECK_FALSE(pins.of(9, "cpu"));

  // The thread is back where it was, whatever came of it.
  {
    const OnCpus one({here[1]});
    CHECK(one.error().empty());
    CHECK(allowed_cpus() == std::vector<int>{here[1]});
  }
  CHECK(allowed_cpus() == here);
  {
    const OnCpus nowhere({60'000});
    CHECK_FALSE(nowhere.error().empty());
    CHECK(allowed_cpus() == here);
  }
  CHECK(allowed_cpus() == here);
}

TEST_CASE("a process knows whether it was kept to its CPUs") {
  boost::asio::io_context io{1};
  std::vector<std::string> lines;
  ProcessOptions options;
  options.program = "/bin/true";
  options.on_line = [&](const std::string& line) { lines.push_back(line); };
  const auto pinned = [&](std::vector<int> cpus) {
    options.cpus = std::move(cpus);
    return Process(io, options, [](const ExitCause&) {}).pinned();
  };
  CHECK_FALSE(pinned({}));
  CHECK(pinned({allowed_cpus().front()}));
  CHECK(lines.empty());
  CHECK_FALSE(pinned({60'000}));  // no machine has so many
  REQUIRE(lines.size() == 1);
  CHECK(has(lines[0], "it cannot be kept to CPUs 60000"));
}
