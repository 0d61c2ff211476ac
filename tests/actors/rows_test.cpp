#include "actors/stage/rows.h"

#include "tests/support/doctest.h"

using namespace troupe;
using actors::rows_of;

namespace {

std::vector<std::pair<std::int64_t, std::int64_t>> plain(const actors::RowRuns& rows) {
  std::vector<std::pair<std::int64_t, std::int64_t>> pairs;
  for (const auto& run : rows)
    pairs.emplace_back(run.begin, run.end);
  return pairs;
}
using Pairs = std::vector<std::pair<std::int64_t, std::int64_t>>;

}  // namespace

TEST_CASE("a rank's rows of a micro-step, and of all together") {
  const std::vector<wire::RowShares> micro_steps{
      {{{0, 3}, {3, 5}}}, {{{5, 6}, {6, 6}}}, {{{6, 8}, {8, 9}}}};
  CHECK(plain(rows_of(micro_steps, 0, 0)) == Pairs{{0, 3}});
  CHECK(plain(rows_of(micro_steps, 0, 1)) == Pairs{{3, 5}});
  CHECK(rows_of(micro_steps, 1, 1).empty());
  CHECK(plain(rows_of(micro_steps, -1, 0)) == Pairs{{0, 3}, {5, 8}});  // neighbours joined
  CHECK(plain(rows_of(micro_steps, -1, 1)) == Pairs{{3, 5}, {8, 9}});
  CHECK(actors::count_rows(rows_of(micro_steps, -1, 0)) == 6);
  CHECK(actors::count_rows({}) == 0);
  CHECK_THROWS_AS(rows_of(micro_steps, 0, 2), std::out_of_range);
}

TEST_CASE("rows are runs of tokens") {
  const auto tokens = actors::tokens_of({{0, 3}, {5, 8}}, 7);
  CHECK((tokens == models::TokenRuns{{0, 21}, {35, 56}}));
  CHECK(models::count_of(tokens) == 42);
}
