// How many ends of tasks a controller carries: rows of jobs × actors.
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "benchmarks/command_line.h"
#include "benchmarks/dispatch/alone.h"

namespace {

using namespace troupe;
using bench::DispatchFigures;
using bench::DispatchShape;

struct Settings {
  bool json = false;
  double task_ms = 5;
  std::size_t ends = 400'000;  // of a row, at least
};

const std::vector<DispatchShape>& shapes() {
  static const wire::Parallelism of_8{.pp = 8};
  static const std::vector<DispatchShape> rows{
      {1, of_8},
      {1, {.cfg = 2, .pp = 8, .ulysses = 4}},
      {1, {.cfg = 2, .pp = 8, .ulysses = 8, .ring = 2}},
      {1, {.cfg = 2, .pp = 8, .ulysses = 8, .ring = 8}},
      {8, of_8},
      {32, of_8},
      {128, of_8},
      {32, {.cfg = 2, .pp = 8, .ulysses = 2}},
  };
  return rows;
}

nlohmann::json row_of(const DispatchFigures& figures, const Settings& settings) {
  return {{"jobs", figures.jobs},
          {"actors", figures.actors},
          {"ends", figures.ends},
          {"ends_per_second", figures.ends_per_second()},
          {"us_per_end", 1e6 / figures.ends_per_second()},
          {"worst_ms", 1e3 * figures.worst},
          {"needed_per_second", 1e3 * figures.actors / settings.task_ms}};
}

void print(const nlohmann::json& row) {
  std::printf(
      "%4d jobs on %4d actors: %10.0f ends/s, %7.2f us per end, worst %8.3f ms, needed %7.0f\n",
      row["jobs"].get<int>(), row["actors"].get<int>(), row["ends_per_second"].get<double>(),
      row["us_per_end"].get<double>(), row["worst_ms"].get<double>(),
      row["needed_per_second"].get<double>());
  std::fflush(stdout);
}

int run(const Settings& settings) {
  auto rows = nlohmann::json::array();
  for (const auto& shape : shapes()) {
    rows.push_back(
        row_of(bench::dispatch_alone(shape, settings.task_ms * 1e-3, settings.ends), settings));
    if (!settings.json) print(rows.back());
  }
  if (settings.json) std::cout << rows.dump(1) << std::endl;
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  using namespace troupe::bench;
  CLI::App app{"Ends of tasks per second that the dispatcher carries", "dispatch"};
  app.add_option("--task-ms", settings.task_ms, "Milliseconds that a task takes")
      ->check(number_above(0, 10'000))
      ->capture_default_str();
  app.add_option("--ends", settings.ends,
                 "Of tasks in a row, at least; of its plays the quickest counts")
      ->check(whole(1000, 100'000'000))
      ->capture_default_str();
  app.add_flag("--json", settings.json, "Print one JSON document");
  return run_program(app, argc, argv, [&] { return run(settings); });
}
