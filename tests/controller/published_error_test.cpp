#include "benchmarks/published_engines.h"
#include "tests/support/doctest.h"

using namespace troupe;
using published::Errors;

namespace {

Errors errors_where(const auto& chosen) {
  Errors errors;
  for (const auto& table : published::all_tables()) {
    const published::Simulation simulation(table);
    for (const auto& row : table.rows) {
      if (chosen(table, row))
        errors.of_rows.push_back(simulation.predict(row.pixels, row.run).seconds / row.seconds - 1);
    }
  }
  return errors;
}

}  // namespace

TEST_CASE("published latencies are predicted as well as benchmarks/results/planner.md says") {
  const auto all = errors_where([](const auto&, const auto&) { return true; });
  MESSAGE("median " << 100 * all.median() << " %, worst " << 100 * all.worst()
                    << " %, beyond 40 %: " << all.beyond(0.4) << " of " << all.of_rows.size());
  CHECK(all.of_rows.size() >= 332);
  CHECK(all.median() < 0.1);
  CHECK(all.beyond(0.4) <= 12);
  const auto several =
      errors_where([](const auto&, const auto& row) { return row.run.devices > 1; });
  CHECK(several.median() < 0.1);
  // Where the authors' mix is known, and where it is searched for.
  const auto unets = errors_where([](const auto& table, const auto&) {
    return table.model == "sdxl" && table.runtime == published::Runtime::captured;
  });
  CHECK(unets.median() < 0.1);
  CHECK(unets.beyond(0.4) == 0);
}
