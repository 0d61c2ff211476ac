#include <chrono>
#include <map>

#include "tests/process/support/company.h"
#include "tests/process/support/compare.h"
#include "tests/process/support/mixes.h"
#include "tests/process/support/pictures.h"
#include "tests/process/support/random_model.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

constexpr double kLatentBound = 1e-4;  // of the single actor's range

struct Outcome {
  Latents latents;
  std::vector<Bytes> pictures;
};

/// Five rows of three tokens: shards are uneven, and empty from six sequence ranks on.
Submission small_job(int pictures) {
  Submission submission;
  submission.model = odd_model().folder();
  auto& request = submission.request;
  request.prompts = {"a red circle"};
  request.images_per_prompt = pictures;
  request.height = 80;
  request.width = 48;
  request.steps = 3;
  request.seed = 5;
  request.max_sequence_length = 12;
  request.want_latents = true;
  return submission;
}

Outcome outcome_of(const JobResult& result) {
  Outcome outcome{.latents = result.latents.value(), .pictures = {}};
  for (const auto& picture : result.pictures)
    outcome.pictures.push_back(decode_png(picture.png));
  return outcome;
}

/// One more picture than replicas, so that they get uneven shares.
int pictures_for(const Parallelism& mix) {
  return mix.dp == 1 ? 1 : mix.dp + 1;
}

/// Runs all mixes and holds them against one actor.
void check_mixes(Company& company, const std::vector<Parallelism>& mixes) {
  std::map<int, Outcome> of_one;
  Worst latents;
  Worst levels;
  Worst seconds;
  double total = 0;
  for (const auto& mix : mixes) {
    const int pictures = pictures_for(mix);
    if (!of_one.contains(pictures)) of_one[pictures] = outcome_of(company.run(small_job(pictures)));
  }
  for (const auto& mix : mixes) {
    const auto name = name_of(mix);
    CAPTURE(name);
    const auto& expected = of_one.at(pictures_for(mix));
    auto submission = small_job(pictures_for(mix));
    submission.parallelism = mix;
    const auto start = std::chrono::steady_clock::now();
    const auto outcome = outcome_of(company.run(submission));
    const double took =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    seconds.see(took, name);
    total += took;
    const double error = range_error(outcome.latents, expected.latents);
    CHECK(error <= kLatentBound);
    latents.see(error, name);
    REQUIRE(outcome.pictures.size() == expected.pictures.size());
    for (std::size_t i = 0; i < outcome.pictures.size(); ++i) {
      const int level = level_error(outcome.pictures[i], expected.pictures[i]);
      CHECK(level <= 1);
      levels.see(level, name);
    }
  }
  MESSAGE(latents.seen << " mixes, latents within " << latents.value << " of range ("
                       << latents.where << "), " << levels.seen << " pictures within "
                       << levels.value << " levels; " << total << " s, at most " << seconds.value
                       << " s (" << seconds.where << ")");
}

}  // namespace

TEST_CASE("the pictures of the matrix have something in them") {
  const auto outcome = outcome_of(company().run(small_job(2)));
  REQUIRE(outcome.pictures.size() == 2);
  CHECK(level_error(outcome.pictures[0], outcome.pictures[1]) > 8);
  for (const float value : outcome.latents.data)
    REQUIRE(std::abs(value) < 50);
  auto other = small_job(2);
  other.request.prompts = {"a tree"};
  const auto of_tree = outcome_of(company().run(other));
  CHECK(range_error(of_tree.latents, outcome.latents) > 10 * kLatentBound);
}

TEST_CASE("exact: any dp, cfg, pp, ulysses, ring and tp within eight actors equals one") {
  const auto mixes = all_mixes({.least = 1, .most = 8, .blocks = 8});
  CHECK(mixes.size() > 100);
  check_mixes(company(), mixes);
}

TEST_CASE("exact: a sample of mixes of nine to sixteen actors equals one") {
  Company large(16);
  auto mixes = all_mixes({.least = 9, .most = 16, .blocks = 8});
  CHECK(mixes.size() > 200);
  if (!full_matrix()) mixes = sample_of(std::move(mixes), 12, 16);
  check_mixes(large, mixes);
}
