#include <rapidcheck.h>
#include <algorithm>
#include <cmath>
#include <map>

#include "controller/mesh/mesh.h"
#include "controller/plan/cost_model.h"
#include "controller/plan/layout.h"
#include "controller/plan/link_cost.h"
#include "controller/plan/machine.h"
#include "tests/controller/any_plan.h"
#include "tests/support/doctest.h"

using namespace troupe;
using plan::MicroTimes;
using plan::PipelineClock;

namespace {

MicroTimes even(int stages, double seconds, double edge = 0, double feedback = 0) {
  return {std::vector<double>(stages, seconds), edge, feedback};
}

bool near(double a, double b) {
  return std::abs(a - b) <= 1e-9 * std::max({1.0, std::abs(a), std::abs(b)});
}

}  // namespace

TEST_CASE("a whole step goes through the stages one after the other") {
  PipelineClock clock(4, 1);
  clock.whole_steps({even(4, 1, 0.1, 0.2)}, 1);
  CHECK(near(clock.now(), 4 + 3 * 0.1));
  clock.whole_steps({even(4, 1, 0.1, 0.2)}, 1);
  CHECK(near(clock.now(), 8 + 6 * 0.1 + 0.2));
}

TEST_CASE("parts of a batch fill the pipeline in each whole step, and come back once") {
  PipelineClock clock(4, 3);
  const std::vector<MicroTimes> parts(5, even(4, 1, 0.1, 0.2));
  clock.whole_steps(parts, 1);
  const double step = 5 + 3 + 3 * 0.1;
  CHECK(near(clock.now(), step));
  clock.whole_steps(parts, 7);
  CHECK(near(clock.now(), 8 * step + 7 * 0.2));
  clock.whole_steps(parts, 0);
  CHECK(near(clock.now(), 8 * step + 7 * 0.2));
  // All patches wait for the latents.
  clock.patch_step(std::vector<MicroTimes>(3, even(4, 0.5)));
  CHECK(near(clock.now(), 8 * (step + 0.2) + 4 * 0.5 + 2 * 0.5));
}

TEST_CASE("a full pipeline costs its patches, and filling it once") {
  // Efficiency M·S ÷ (M·S + N − 1), as PipeFusion's paper has it.
  const int stages = 4, patches = 4, steps = 50;
  PipelineClock clock(stages, patches);
  clock.patch_steps(std::vector<MicroTimes>(patches, even(stages, 1)), steps);
  CHECK(near(clock.now(), patches * steps + stages - 1));
}

TEST_CASE("fewer patches than stages leave stages idle") {
  PipelineClock clock(4, 2);
  clock.patch_steps(std::vector<MicroTimes>(2, even(4, 1)), 10);
  CHECK(near(clock.now(), 10 * 4 + 1));
}

TEST_CASE("the slowest stage sets the pace, and so does an edge slower than it") {
  PipelineClock slow(2, 4);
  MicroTimes uneven{{1, 3}, 0, 0};
  slow.patch_steps(std::vector<MicroTimes>(4, uneven), 10);
  CHECK(near(slow.now(), 1 + 40 * 3));
  PipelineClock carried(2, 8);
  carried.patch_steps(std::vector<MicroTimes>(8, even(2, 1, 5, 0)), 10);
  CHECK(near(carried.now(), 1 + 80 * 5 + 1));
}

TEST_CASE("patches of any sizes go as if each went its way alone, one after the other") {
  CHECK(rc::check([] {
    const int stages = *rc::gen::inRange(1, 9);
    const auto any = [] { return *rc::gen::inRange(0, 30) / 10.0; };
    std::vector<MicroTimes> patches(*rc::gen::inRange<std::size_t>(1, 9));
    for (auto& patch : patches) {
      patch = even(stages, 0, any(), any());
      for (double& seconds : patch.compute)
        seconds = any();
    }
    PipelineClock clock(stages, static_cast<int>(patches.size()));
    std::vector<double> stage_free(stages), edge_free(stages), back(patches.size());
    for (int step = 0; step < 4; ++step) {
      clock.patch_step(patches);
      double end = 0;
      for (std::size_t patch = 0; patch < patches.size(); ++patch) {
        double at = back[patch];
        for (int stage = 0; stage < stages; ++stage) {
          at = stage_free[stage] = std::max(at, stage_free[stage]) + patches[patch].compute[stage];
          if (stage + 1 == stages) end = at;
          if (stages == 1) break;
          const auto& of = patches[patch];
          at = edge_free[stage] =
              std::max(at, edge_free[stage]) + (stage + 1 < stages ? of.edge : of.feedback);
        }
        back[patch] = at;
      }
      RC_ASSERT(near(clock.now(), end));
    }
  }));
}

TEST_CASE("steps of a settled pipeline may be counted instead of played") {
  CHECK(rc::check([] {
    const int stages = *rc::gen::inRange(1, 9);
    const int patches = *rc::gen::inRange(1, 9);
    const double edge = *rc::gen::inRange(0, 30) / 10.0;
    const double back = *rc::gen::inRange(0, 30) / 10.0;
    std::vector<MicroTimes> times;
    for (int patch = 0; patch < patches; ++patch) {
      auto own = even(stages, 0, edge, back);
      for (double& seconds : own.compute)
        seconds = *rc::gen::inRange(5, 15) / 10.0;
      times.push_back(own);
    }
    const int steps = *rc::gen::inRange(1, 300);
    PipelineClock counted(stages, patches), played(stages, patches);
    counted.patch_steps(times, steps);
    for (int step = 0; step < steps; ++step)
      played.patch_step(times);
    RC_ASSERT(std::abs(counted.now() - played.now()) <= (steps <= 64 ? 1e-9 : 0.01) * played.now());
  }));
}

TEST_CASE("machines are found by name and number") {
  CHECK(plan::machine_of("l40x8").devices == 8);
  CHECK(plan::machine_of("l40x16").devices == 16);
  CHECK(plan::machine_of("a100-nvlink-x8").name == "a100-nvlink");
  CHECK(plan::machine_of("h100-nvlink").devices == 8);
  CHECK(plan::machine_of("t4").devices == 4);
  CHECK(plan::machine_of("cpux3").devices == 3);
  CHECK_THROWS_WITH(
      plan::machine_of("abacus"),
      "[machine] \"abacus\" is not in the table: one of l40, l20, t4, a100-pcie, "
      "a100-nvlink, h100-nvlink, h200-nvlink, cpu, with xN for N devices, such as l40x8");
  CHECK_THROWS_AS(plan::machine_of("l40x0"), std::invalid_argument);
  CHECK_THROWS_AS(plan::machine_of("l40x99999999999999999999"), std::invalid_argument);
  CHECK_THROWS_AS(plan::machine_of(""), std::invalid_argument);
  CHECK_THROWS_AS(plan::machine_of("x8"), std::invalid_argument);
}

TEST_CASE("calibrating scales computing and leaves links") {
  const auto machine = plan::machine_of("l40");
  const auto slower = plan::calibrated(machine, 1, 2);
  CHECK(slower.device.half_flops == machine.device.half_flops / 2);
  CHECK(slower.inside.bandwidth == machine.inside.bandwidth);
  CHECK_THROWS_AS(plan::calibrated(machine, 0, 1), std::invalid_argument);
}

TEST_CASE("on any hosts a way is that of the worst placed rank") {
  CHECK(rc::check([] {
    auto machine = plan::machine_of("l40");
    machine.hosts =
        *rc::gen::nonEmpty(rc::gen::container<std::vector<int>>(rc::gen::inRange(1, 10)));
    const auto degrees = plan::degrees_of(test::any_degrees());
    const auto host_of = plan::hosts_of_ranks(degrees, machine);
    const mesh::Mesh mesh(degrees);
    const auto expected = [&](const std::vector<std::vector<int>>& peers_of) {
      std::map<int, int> senders;
      double most_outside = 0;
      for (int rank = 0; rank < mesh.world(); ++rank) {
        const auto& peers = peers_of[rank];
        const auto outside =
            std::ranges::count_if(peers, [&](int peer) { return host_of[peer] != host_of[rank]; });
        if (outside == 0) continue;
        ++senders[host_of[rank]];
        most_outside = std::max(most_outside, static_cast<double>(outside) / std::ssize(peers));
      }
      double seconds = (1 - most_outside) / machine.inside.bandwidth;
      for (const auto& [host, sharing] : senders)
        seconds = std::max(seconds, most_outside * sharing / machine.between.bandwidth);
      return seconds;
    };
    const auto groups = [&](mesh::Axis axis) {
      std::vector<std::vector<int>> peers_of;
      for (int rank = 0; rank < mesh.world(); ++rank) {
        peers_of.push_back(mesh.group_of(axis, rank));
        std::erase(peers_of.back(), rank);
      }
      return expected(peers_of);
    };
    const auto stages = [&](bool back) {
      std::vector<std::vector<int>> peers_of(mesh.world());
      for (int rank = 0; rank < mesh.world(); ++rank) {
        auto at = mesh.coordinates(rank);
        if (degrees.pp == 1 || (at.pp + 1 == degrees.pp) != back) continue;
        at.pp = back ? 0 : at.pp + 1;
        peers_of[rank] = {mesh.rank(at)};
      }
      return expected(peers_of);
    };
    machine.devices_per_socket = 0;
    const auto ways = plan::link_costs_of(degrees, machine);
    RC_ASSERT(ways.tp.seconds_per_byte == groups(mesh::Axis::tp));
    RC_ASSERT(ways.ulysses.seconds_per_byte == groups(mesh::Axis::ulysses));
    RC_ASSERT(ways.ring.seconds_per_byte == groups(mesh::Axis::ring));
    RC_ASSERT(ways.cfg.seconds_per_byte == groups(mesh::Axis::cfg));
    RC_ASSERT(ways.edge.seconds_per_byte == stages(false));
    RC_ASSERT(ways.feedback.seconds_per_byte == stages(true));
    // And which ways lead through both sockets of a host, three devices each.
    machine.devices_per_socket = 3;
    std::map<int, int> on_host;
    std::vector<int> socket_of;
    for (const int host : host_of)
      socket_of.push_back(on_host[host]++ / 3);
    bool crosses = false;
    for (int rank = 0; rank < mesh.world() && degrees.ulysses > 2; ++rank) {
      for (const int peer : mesh.group_of(mesh::Axis::ulysses, rank))
        crosses |= host_of[peer] == host_of[rank] && socket_of[peer] != socket_of[rank];
    }
    const double between_sockets =
        crosses ? 1 / (machine.inside.bandwidth * machine.across_sockets) : 0;
    RC_ASSERT(plan::link_costs_of(degrees, machine).ulysses.seconds_per_byte ==
              std::max(groups(mesh::Axis::ulysses), between_sockets));
  }));
}

TEST_CASE("what leaves a host shares its link") {
  auto machine = plan::machine_of("l40x16");
  const auto& between = machine.between;
  // tp 2 lies within hosts; ring 8 × tp 2 spans both.
  const auto inner = plan::link_costs_of({.pp = 8, .tp = 2}, machine);
  CHECK(inner.tp.seconds_per_byte == doctest::Approx(1 / machine.inside.bandwidth));
  // Only the edge from stage 3 to stage 4 crosses: two ranks share the link.
  CHECK(inner.edge.seconds_per_byte == doctest::Approx(2 / between.bandwidth));
  CHECK(inner.edge.latency == between.latency);
  // Of 15 peers 8 are on the other host, for all 8 ranks of a host.
  const auto outer = plan::link_costs_of({.ring = 16}, machine);
  CHECK(outer.ring.seconds_per_byte == doctest::Approx(8.0 / 15 * 8 / between.bandwidth));
  CHECK(outer.ring.seconds(0) == 0);
}
