#include "actors/probe.h"

#include <ATen/Parallel.h>

#include <chrono>

#include "base/numbers.h"
#include "tests/support/doctest.h"

using namespace troupe;

TEST_CASE("an actor says how fast its device and its link to a neighbour are") {
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  std::map<std::string, std::string> said{{"device", "cpu"}};
  const auto start = std::chrono::steady_clock::now();
  actors::tell_speed(at::kCPU, said);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  at::set_num_threads(threads);
  CHECK(said.size() == 7);
  for (const std::string name : {"float_flops", "attention_flops", "bandwidth", "launch",
                                 "link_latency", "link_bandwidth"}) {
    CAPTURE(name);
    const auto figure = parse_number<double>(said["measured." + name]);
    REQUIRE(figure);
    CHECK(*figure > 0);
    MESSAGE(name << " " << *figure);
  }
  MESSAGE("in " << took.count() << " s");
}

TEST_CASE("what cannot be measured is named, and no figure is made up for it") {
  std::map<std::string, std::string> said{{"device", "mps"}};
  actors::tell_speed(at::Device("mps"), said);
  CHECK(said.size() == 2);
  CHECK(said["measured.failed"] != "");
  CHECK(said["measured.failed"].find('\n') == std::string::npos);
}
