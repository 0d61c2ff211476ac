// Predictions of the planner's cost model beside published latencies, and how far they are off.
// Twice: of the engine that a row was measured with, as its code is; and what `troupe plan
// --simulate` itself prints for that machine. No number belongs to a table or a row: all constants
// are of a GPU, a link, a host or an engine. With --refit they are found anew from data sheets and
// one model's tables, and the errors of the other models' tables show what that is worth.
// benchmarks/results/planner.md explains.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "benchmarks/command_line.h"
#include "benchmarks/published_engines.h"
#include "benchmarks/simulated.h"

namespace {

using namespace troupe;
using published::Constants;
using published::Errors;
using published::Simulation;

/// An error that calls for a reason.
constexpr double kTooFar = 0.4;

/// Errors of one table, of one size or of all.
struct Both {
  Errors engine;  // of the engine that was measured
  Errors ours;    // of what `plan --simulate` prints

  void add(const Both& other) { engine.add(other.engine), ours.add(other.ours); }
};

Both print(const published::Table& table, std::map<int, Both>& by_pixels, Both& several) {
  const Simulation simulation(table);
  std::optional<published::Simulated> own;
  if (published::has_folder(table.model)) own.emplace(table);
  std::printf("\n%s (%d steps)\n", table.name.c_str(), table.steps);
  std::printf("  %-6s %-8s %-14s %-18s %10s %10s %8s %14s %8s\n", "pixels", "devices", "method",
              "simulated as", "predicted", "published", "error", "plan --simulate", "error");
  Both errors;
  for (const auto& row : table.rows) {
    const auto predicted = simulation.predict(row.pixels, row.run);
    const double error = predicted.seconds / row.seconds - 1;
    std::printf("  %-6d %-8d %-14s %-18s %10.2f %10.2f %+7.0f%%", row.pixels, row.run.devices,
                row.run.how.c_str(), predicted.mix.c_str(), predicted.seconds, row.seconds,
                100 * error);
    auto& of_size = by_pixels[row.pixels];
    const auto note = [&](Errors Both::*which, double own_error) {
      for (Both* where : {&errors, &of_size, &several}) {
        if (where != &several || row.run.devices > 1) (where->*which).of_rows.push_back(own_error);
      }
    };
    note(&Both::engine, error);
    if (own) {
      const double ours = own->seconds(row.pixels, row.run);
      std::printf(" %14.2f %+7.0f%%", ours, 100 * (ours / row.seconds - 1));
      note(&Both::ours, ours / row.seconds - 1);
    }
    std::printf("%s\n", std::abs(error) > kTooFar ? " beyond" : "");
  }
  return errors;
}

int compare() {
  Both all, several;
  std::vector<std::pair<std::string, Both>> summary;
  std::map<int, Both> by_pixels;
  for (const auto& table : published::all_tables()) {
    auto errors = print(table, by_pixels, several);
    all.add(errors);
    summary.emplace_back(table.name, std::move(errors));
  }
  for (auto& [pixels, errors] : by_pixels)
    summary.emplace_back("all of " + std::to_string(pixels) + " pixels a side", std::move(errors));
  summary.emplace_back("all on more than one device", std::move(several));
  summary.emplace_back("all", std::move(all));
  std::printf("\n%-46s %6s %8s %8s %8s %8s   %6s %8s %8s %8s\n", "table", "rows", "median", "worst",
              "mean", "beyond", "rows", "median", "worst", "mean");
  for (const auto& [name, errors] : summary) {
    const auto& [engine, ours] = errors;
    std::printf("%-46s %6zu %7.1f%% %+7.0f%% %+7.0f%% %8ld", name.c_str(), engine.of_rows.size(),
                100 * engine.median(), 100 * engine.worst(), 100 * engine.mean(),
                engine.beyond(kTooFar));
    if (!ours.of_rows.empty()) {
      std::printf("   %6zu %7.1f%% %+7.0f%% %+7.0f%%", ours.of_rows.size(), 100 * ours.median(),
                  100 * ours.worst(), 100 * ours.mean());
    }
    std::printf("\n");
  }
  return 0;
}

Errors errors_of(const std::vector<published::Table>& tables, const Constants& constants) {
  Errors errors;
  for (const auto& table : tables) {
    const Simulation simulation(table, constants);
    for (const auto& row : table.rows)
      errors.of_rows.push_back(simulation.predict(row.pixels, row.run).seconds / row.seconds - 1);
  }
  return errors;
}

/// Loss that a refit minimizes. Beyond a factor of e a row counts in proportion, so that rows that
/// contradict each other do not bend all constants.
double loss(const std::vector<published::Table>& tables, const Constants& constants) {
  double sum = 0;
  for (const double error : errors_of(tables, constants).of_rows) {
    const double size = std::abs(std::log1p(error));
    sum += size + std::min(size, 1.0) * std::min(size, 1.0) / 2;
  }
  return sum;
}

void print_errors(const char* of, const Errors& errors) {
  std::printf(
      "%-28s %4zu rows, median %5.1f %%, worst %+4.0f %%, mean %+3.0f %%, %ld beyond %g %%\n", of,
      errors.of_rows.size(), 100 * errors.median(), 100 * errors.worst(), 100 * errors.mean(),
      errors.beyond(kTooFar), 100 * kTooFar);
}

/// Finds the constants from the tables of one model, each in turn a little larger or smaller.
int refit(const std::string& model) {
  std::vector<published::Table> own, others;
  for (auto& table : published::all_tables())
    (table.model == model ? own : others).push_back(std::move(table));
  if (own.empty()) throw std::invalid_argument("[planner_error] no table of " + model);
  auto constants = published::data_sheets();
  print_errors("data sheets, all", errors_of(published::all_tables(), constants));
  double best = loss(own, constants);
  double stride = 0.3;
  for (int round = 0; round < 14; ++round, stride *= round == 7 ? 6 : 0.65) {
    for (auto& [name, value] : constants) {
      const double before = value;
      for (const double factor : {1 + stride, 1 / (1 + stride)}) {
        value = before * factor;
        const double found = loss(own, constants);
        if (found < best - 1e-9) {
          best = found;
          break;
        }
        value = before;
      }
    }
  }
  for (const auto& [name, value] : constants)
    std::printf("  %-32s %.3g\n", name.c_str(), value);
  print_errors(("fitted, " + model).c_str(), errors_of(own, constants));
  print_errors("held out, all others", errors_of(others, constants));
  print_errors("all, constants of the tree",
               errors_of(published::all_tables(), published::engine_constants()));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"The planner's predictions beside published latencies", "planner_error"};
  std::string model;
  app.add_option("--refit", model,
                 "Find all constants anew from data sheets and this model's tables (pixart), and "
                 "print the errors of the others'");
  return troupe::bench::run_program(app, argc, argv,
                                    [&] { return model.empty() ? compare() : refit(model); });
}
