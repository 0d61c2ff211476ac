// Which CPUs an actor gets, and what of a host's files is believed.
#include "controller/cluster/numa.h"

#include <rapidcheck.h>

#include <numeric>

#include "controller/cluster/actor_pins.h"
#include "controller/cluster/affinity.h"
#include "controller/cluster/gpu_order.h"
#include "controller/cluster/numa_reader.h"
#include "controller/cluster/process.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"

using namespace troupe;
using namespace troupe::cluster;
using testing::has;
using testing::message_of;

namespace {

std::vector<int> run(int first, int count) {
  std::vector<int> cpus(static_cast<std::size_t>(count));
  std::iota(cpus.begin(), cpus.end(), first);
  return cpus;
}

/// So many nodes of so many CPUs each, numbered through.
std::vector<NumaNode> nodes_of(int count, int cpus) {
  std::vector<NumaNode> nodes;
  for (int id = 0; id < count; ++id)
    nodes.push_back({id, run(id * cpus, cpus)});
  return nodes;
}

std::vector<PinnedActor> on_cpu(std::size_t count, int threads = 1) {
  return std::vector<PinnedActor>(count, PinnedActor{.threads = threads});
}

/// Each actor's node as a digit, - for none.
std::string seats(const Pins& pins) {
  std::string text;
  for (const auto& pin : pins.of_actor)
    text += pin ? std::to_string(pin->node) : "-";
  return text;
}

std::string seats(const std::vector<NumaNode>& nodes, const std::string& allowed,
                  const std::vector<PinnedActor>& actors) {
  return seats(pins_of(nodes, parse_cpu_list(allowed), actors));
}

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

TEST_CASE("actors on the CPU are spread over the nodes, neighbours together") {
  CHECK(seats(nodes_of(2, 8), "0-15", on_cpu(4)) == "0011");
  CHECK(seats(nodes_of(2, 8), "0-15", on_cpu(1)) == "0");
  CHECK(seats(nodes_of(2, 8), "0-15", on_cpu(3)) == "001");
  CHECK(seats(nodes_of(4, 8), "0-31", on_cpu(8)) == "00112233");
  CHECK(seats(nodes_of(4, 8), "0-31", on_cpu(6)) == "001123");
  CHECK(seats(nodes_of(4, 8), "0-31", on_cpu(2)) == "01");
  // Every actor has the whole node, also where its CPUs are not in a row.
  const std::vector<NumaNode> interleaved = {{1, {1, 3, 5}}, {0, {0, 2, 4}}};
  const auto pins = pins_of(interleaved, run(0, 6), on_cpu(2));
  CHECK(pins.of_actor[0] == Pin{0, {0, 2, 4}});
  CHECK(pins.of_actor[1] == Pin{1, {1, 3, 5}});
  CHECK(pins.why_not.empty());
}

TEST_CASE("nodes of unequal size, restricted CPUs, nodes without any") {
  CHECK(seats({{0, run(0, 6)}, {1, run(6, 2)}}, "0-7", on_cpu(4)) == "0001");
  // Of node 1 a quarter is allowed.
  CHECK(seats(nodes_of(2, 8), "0-7,14-15", on_cpu(5)) == "00001");
  const auto pins = pins_of(nodes_of(2, 8), parse_cpu_list("2-3,14-15"), on_cpu(2));
  CHECK(pins.of_actor[0] == Pin{0, {2, 3}});
  CHECK(pins.of_actor[1] == Pin{1, {14, 15}});
  // Nothing of node 1 is allowed; memory alone in node 2.
  CHECK(seats(nodes_of(4, 4), "0-3,8-15", on_cpu(6)) == "002233");
  CHECK(seats({{0, run(0, 4)}, {1, run(4, 4)}, {2, {}}}, "0-7", on_cpu(4)) == "0011");
}

TEST_CASE("where there is no choice nobody is pinned") {
  const auto nothing = [](const Pins& pins) { return seats(pins) == "--" && pins.why_not.empty(); };
  CHECK(nothing(pins_of(nodes_of(1, 8), run(0, 8), on_cpu(2))));
  CHECK(nothing(pins_of({}, run(0, 8), on_cpu(2))));
  CHECK(nothing(pins_of(nodes_of(2, 8), run(0, 8), on_cpu(2))));  // all of one node
  CHECK(nothing(pins_of({{0, run(0, 8)}, {1, {}}}, run(0, 8), on_cpu(2))));
  CHECK(nothing(pins_of(nodes_of(2, 8), {}, on_cpu(2))));
}

TEST_CASE("threads that the host has room for are not crowded into a node") {
  const auto nodes = nodes_of(2, 16);
  CHECK(seats(nodes, "0-31", on_cpu(1, 16)) == "0");
  const auto wide = pins_of(nodes, run(0, 32), on_cpu(1, 32));
  CHECK(seats(wide) == "-");
  CHECK(wide.why_not ==
        "32 threads of actors would share the 16 CPUs of NUMA node 0, where the host has room for "
        "them");
  CHECK(seats(nodes, "0-31", on_cpu(3, 10)) == "---");
  // More than the host has, but no node more than its part.
  CHECK(seats(nodes, "0-31", on_cpu(8, 16)) == "00001111");
  CHECK(seats(nodes, "0-31", on_cpu(3, 16)) == "001");
}

TEST_CASE("actors on GPUs go to the nodes of these") {
  const auto on = [](int node) { return PinnedActor{.on_gpu = true, .gpu_node = node}; };
  CHECK(seats(nodes_of(2, 8), "0-15", {on(1), on(1), on(0), on(1)}) == "1101");
  const auto pins = pins_of(nodes_of(2, 8), run(0, 16), {on(1), on(-1)});
  CHECK(seats(pins) == "1-");
  CHECK(pins.why_not == "the NUMA node of its GPU is not known");
  const auto restricted = pins_of(nodes_of(3, 4), parse_cpu_list("0-7"), {on(2), on(0)});
  CHECK(seats(restricted) == "-0");
  CHECK(restricted.why_not == "no CPU of NUMA node 2, its GPU's, is allowed");
  // Beside actors on the CPU, which are spread among themselves.
  CHECK(seats(nodes_of(2, 8), "0-15", {on(1), {}, {}}) == "101");
}

TEST_CASE("on equal nodes no one has two actors more than another, and ranks go up with nodes") {
  CHECK(rc::check([] {
    const auto count = *rc::gen::inRange(2, 9);
    const auto actors = *rc::gen::inRange(1, 40);
    const auto pins =
        pins_of(nodes_of(count, 16), run(0, 16 * count), on_cpu(static_cast<std::size_t>(actors)));
    std::vector<int> of_node(static_cast<std::size_t>(count));
    int last = 0;
    for (const auto& pin : pins.of_actor) {
      RC_ASSERT(pin.has_value());
      RC_ASSERT(pin->node >= last);
      last = pin->node;
      ++of_node[static_cast<std::size_t>(pin->node)];
    }
    const auto [least, most] = std::minmax_element(of_node.begin(), of_node.end());
    RC_ASSERT(*most - *least <= 1);
  }));
}

TEST_CASE("lists of CPUs are read and written as Linux does it, and nothing else is one") {
  CHECK(parse_cpu_list("0-3,8\n") == std::vector<int>{0, 1, 2, 3, 8});
  CHECK(parse_cpu_list("5") == std::vector<int>{5});
  CHECK(parse_cpu_list("\n").empty());
  CHECK(cpu_list_text({0, 1, 2, 3, 8}) == "0-3,8");
  CHECK(cpu_list_text({}).empty());
  for (const char* bad : {"x", "0-", "-1", "3-1", "0,", ",0", "0,,1", "1,0", "0-3,2", "0-3:1/2",
                          "0x3", "65536", "99999999999999", "0 1", "0-3\n4", "1-2-3", "+1"}) {
    CAPTURE(bad);
    CHECK(has(message_of([&] { parse_cpu_list(bad); }), "is no list of CPUs"));
  }
  CHECK(rc::check([](const std::string& text) {
    try {
      const auto cpus = parse_cpu_list(text);
      RC_ASSERT(std::is_sorted(cpus.begin(), cpus.end()));
      RC_ASSERT(parse_cpu_list(cpu_list_text(cpus)) == cpus);
    } catch (const std::invalid_argument&) {
    }
  }));
}

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
        std::vector<NumaNode>{{0, run(0, 4)}, {1, run(4, 4)}, {10, {}}});
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
