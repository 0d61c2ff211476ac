#include <string>
#include <vector>

#include "tests/process/support/family_checks.h"
#include "tests/support/made.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

constexpr double kKontextBound = 1e-5;  // of the reference's range, or of the single actor's

}  // namespace

TEST_CASE("FLUX.1 Kontext's pictures are those of its pipeline in diffusers") {
  if (lacks_made_fixtures()) return;
  Reference reference("kontext");
  Worst latents, levels;
  check_pictures(reference, kKontextBound, latents, levels);
  CHECK(latents.seen == 3);
  CHECK(levels.seen == 1);
  MESSAGE(latents.seen << " cases, latents within " << latents.value << " of range ("
                       << latents.where << "), pictures within " << levels.value << " levels");
}

TEST_CASE("FLUX.1 Kontext makes one picture at any degrees, exact and by patches") {
  if (lacks_made_fixtures()) return;
  Reference reference("kontext");
  auto submission = reference.submission(reference.find("kontext_edit_wide"));
  const Parallelism mixes[] = {{.pp = 2}, {.ulysses = 3}, {.ring = 2, .tp = 2}, {.dp = 2, .pp = 3}};
  for (const auto& way :
       {Way{"exact", "stale", 1}, Way{"pipefusion", "stale", 3}, Way{"distrifusion", "stale", 2}}) {
    way.set(submission.request);
    submission.parallelism = {};
    const auto single = shared_cluster().run(submission).latents.value();
    for (const auto& mix : mixes) {
      CAPTURE(std::string(way.method) + " at " + name_of(mix));
      submission.parallelism = mix;
      const Foreseen foreseen(submission);
      const auto several = shared_cluster().run(submission);
      CHECK(range_error(several.latents.value(), single) <= kDegreesBound);
      check_sent(nlohmann::json::parse(several.report), foreseen);
    }
  }
}
