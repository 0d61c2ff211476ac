#include <map>
#include <string>

#include "tests/process/support/compare.h"
#include "tests/process/support/mixes.h"
#include "tests/process/support/pictures.h"
#include "tests/process/support/random_model.h"
#include "tests/process/support/same_picture.h"
#include "tests/process/support/shared_cluster.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

/// Five rows of three tokens: shards are uneven, and empty from six sequence ranks on.
Submission small_job(const RandomModel& model, int pictures = 1) {
  Submission submission;
  submission.model = model.folder();
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

struct Way {
  std::string method, kv;
};
const Way kByPatches[] = {{"pipefusion", "stale"},
                          {"pipefusion", "predict"},
                          {"distrifusion", "stale"},
                          {"distrifusion", "predict"}};

/// Returns the submission by three patches of two, two and one row.
Submission by_patches(Submission submission, const Way& way) {
  auto& request = submission.request;
  request.method = way.method;
  request.kv = way.kv;
  request.num_pipeline_patch = 3;
  request.steps = 4;
  return submission;
}

/// Holds all mixes against one actor. Replicas have one picture more than they are, so that they
/// get uneven shares.
void check_mixes(SharedCluster& cluster, const Submission& submission,
                 const std::vector<Parallelism>& mixes, Seen& seen) {
  std::map<int, SamePicture> of_one;
  for (const auto& mix : mixes) {
    auto job = submission;
    job.request.images_per_prompt = mix.dp == 1 ? 1 : mix.dp + 1;
    of_one.try_emplace(job.request.images_per_prompt, cluster, job, seen)
        .first->second.check_at(mix);
  }
}

/// A few of the mixes of nine to sixteen actors, among them some of more stages than eight.
std::vector<Parallelism> large_mixes(std::size_t count, std::uint32_t seed) {
  auto mixes = sample_of(all_mixes({.least = 9, .most = 16, .blocks = 16}), count, seed);
  mixes.push_back({.pp = 9 + static_cast<int>(seed) % 8});
  return mixes;
}

}  // namespace

TEST_CASE("the pictures of the matrix have something in them") {
  for (const auto* model : {&odd_model(), &deep_model()}) {
    const auto result = shared_cluster().run(small_job(*model, 2));
    const auto& latents = result.latents.value();
    REQUIRE(result.pictures.size() == 2);
    CHECK(level_error(decode_png(result.pictures[0].png), decode_png(result.pictures[1].png)) > 8);
    for (const float value : latents.data)
      REQUIRE(std::abs(value) < 50);
    auto other = small_job(*model, 2);
    other.request.prompts = {"a tree"};
    CHECK(range_error(shared_cluster().run(other).latents.value(), latents) > 100 * kSameBound);
  }
}

TEST_CASE("exact: any dp, cfg, pp, ulysses, ring and tp within eight actors equals one") {
  const auto mixes = all_mixes({.least = 1, .most = 8, .blocks = 8});
  CHECK(mixes.size() == 122);
  Seen seen;
  check_mixes(shared_cluster(), small_job(odd_model()), mixes, seen);
  MESSAGE("exact, up to 8 actors: " << seen.text());
}

TEST_CASE("a sample of mixes of nine to sixteen actors equals one, exact and by patches") {
  SharedCluster large(16);
  const auto job = small_job(deep_model());
  const auto all = all_mixes({.least = 9, .most = 16, .blocks = 16});
  CHECK(all.size() == 315);
  auto mixes = full_matrix() ? all : large_mixes(drawn(8), 16);
  for (const int stages : {11, 14, 16})
    if (!full_matrix()) mixes.push_back({.pp = stages});
  Seen exact;
  check_mixes(large, job, mixes, exact);
  MESSAGE("exact, 9 to 16 actors: " << exact.text());

  const auto every = all_mixes({.least = 1, .most = 16, .blocks = 16});
  std::uint32_t seed = 0;
  for (const auto& way : kByPatches) {
    Seen seen;
    check_mixes(large, by_patches(job, way),
                full_matrix() ? every : large_mixes(drawn(3), 4 + 2 * seed++), seen);
    MESSAGE(way.method << " " << way.kv << ": " << seen.text());
  }
}
