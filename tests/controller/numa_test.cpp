// Which CPUs an actor gets.
#include "controller/hosts/numa.h"

#include <rapidcheck.h>

#include <algorithm>
#include <numeric>

#include "tests/support/doctest.h"
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

/// Returns `count` nodes of `cpus` CPUs each, numbered through.
std::vector<NumaNode> nodes_of(int count, int cpus) {
  std::vector<NumaNode> nodes;
  for (int id = 0; id < count; ++id)
    nodes.push_back({id, run(id * cpus, cpus)});
  return nodes;
}

std::vector<PinnedActor> on_cpu(std::size_t count, int threads = 1) {
  return std::vector<PinnedActor>(count, PinnedActor{.threads = threads});
}

/// Returns each actor's node as a digit, - for none.
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
