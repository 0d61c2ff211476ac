#include "actors/stage/job_latents.h"

#include <ATen/ATen.h>

#include "tests/support/doctest.h"

using namespace troupe;
using actors::NoiseSource;

TEST_CASE("pictures of several seeds have the noise that each seed's alone have, draw after draw") {
  const std::vector<wire::SeedRun> runs{{2, 11}, {1, 3}, {3, 11}};
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    NoiseSource together(runs, {6, 4, 3, 5}, type);
    std::vector<NoiseSource> alone;
    for (const auto& run : runs)
      alone.emplace_back(run.seed, std::vector<std::int64_t>{run.pictures, 4, 3, 5}, type);
    for (int draw = 0; draw < 3; ++draw) {
      const auto all = together.draw();
      std::int64_t first = 0;
      for (std::size_t i = 0; i < runs.size(); ++i) {
        CHECK(at::equal(all.slice(0, first, first + runs[i].pictures), alone[i].draw()));
        first += runs[i].pictures;
      }
      CHECK_FALSE(at::equal(all.slice(0, 0, 1), all.slice(0, 2, 3)));
    }
  }
  CHECK_THROWS_WITH_AS(NoiseSource(runs, {5, 4, 3, 5}, at::kFloat),
                       "[noise] seeds are given for 6 pictures, there are 5",
                       std::invalid_argument);
}
