#include <rapidcheck.h>
#include <algorithm>
#include <cmath>

#include "controller/plan/machine.h"
#include "controller/plan/pipeline_clock.h"
#include "controller/plan/ways.h"
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

TEST_CASE("what leaves a host shares its link") {
  auto machine = plan::machine_of("l40x16");
  const auto& between = machine.between;
  // tp 2 lies within hosts; ring 8 × tp 2 spans both.
  const auto inner = plan::ways_of({.pp = 8, .tp = 2}, machine);
  CHECK(inner.tp.seconds_per_byte == doctest::Approx(1 / machine.inside.bandwidth));
  // Only the edge from stage 3 to stage 4 crosses: two ranks share the link.
  CHECK(inner.edge.seconds_per_byte == doctest::Approx(2 / between.bandwidth));
  CHECK(inner.edge.latency == between.latency);
  // Of 15 peers 8 are on the other host, for all 8 ranks of a host.
  const auto outer = plan::ways_of({.ring = 16}, machine);
  CHECK(outer.ring.seconds_per_byte == doctest::Approx(8.0 / 15 * 8 / between.bandwidth));
  CHECK(outer.ring.seconds(0) == 0);
}
