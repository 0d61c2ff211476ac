#include <algorithm>
#include <cstdlib>
#include <memory>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "tests/process/support/mixes.h"
#include "tests/process/support/models.h"
#include "tests/process/support/random_model.h"
#include "tests/process/support/same_picture.h"
#include "tests/process/support/shared_cluster.h"
#include "tests/support/doctest.h"

// Jobs of random sizes, of models of random blocks and heads, at random degrees.
// TROUPE_JOB_SEEDS=N plays N seeds, TROUPE_JOB_SEED=S that one alone.

using namespace troupe;
using namespace troupe::testing;

namespace {

constexpr std::uint64_t kSeeds = 20;

std::uint64_t number(const char* name, std::uint64_t otherwise) {
  const char* text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

class Dice {
 public:
  explicit Dice(std::uint64_t seed) : generator_(seed * 0x9e3779b97f4a7c15) {}

  int from(int least, int most) {
    return least + static_cast<int>(generator_() % static_cast<std::uint64_t>(most - least + 1));
  }
  bool one_in(int many) { return from(1, many) == 1; }
  template <class T>
  const T& of(const std::vector<T>& choices) {
    return choices.at(static_cast<std::size_t>(from(0, static_cast<int>(choices.size()) - 1)));
  }

 private:
  std::mt19937_64 generator_;
};

/// A drawn model, which a job's limits follow from.
struct Drawn {
  std::unique_ptr<RandomModel> own;  // of a model that was made for this job
  std::string folder, name;
  int blocks = 0;
  bool branches = true;
};

Drawn draw_model(Dice& dice) {
  Drawn drawn;
  if (dice.one_in(2)) {
    const TransformerSize size{
        .blocks = dice.from(1, 9), .heads = dice.from(1, 7), .head_dim = 4 * dice.from(1, 4)};
    drawn.own = std::make_unique<RandomModel>(size);
    drawn.folder = drawn.own->folder();
    drawn.blocks = size.blocks;
    std::ostringstream name;
    name << size.blocks << " blocks, " << size.heads << " heads of " << size.head_dim;
    drawn.name = name.str();
    return drawn;
  }
  static const std::vector<std::pair<std::string, int>> kFamilies = {
      {"tiny-sigma", 3}, {"tiny-sd3", 4}, {"tiny-sd35", 4}, {"tiny-flux", 5}, {"tiny-hunyuan", 6}};
  const auto& [name, blocks] = dice.of(kFamilies);
  drawn.folder = checkpoint(name);
  drawn.name = name;
  drawn.blocks = blocks;
  drawn.branches = name != "tiny-flux";
  return drawn;
}

Submission draw_job(Dice& dice, const Drawn& model) {
  Submission submission;
  submission.model = model.folder;
  auto& request = submission.request;
  request.prompts = {dice.of(std::vector<std::string>{"a red circle", "a tree", ""})};
  request.height = 16 * dice.from(1, 9);
  request.width = 16 * dice.from(1, 9);
  request.steps = dice.from(1, 4);
  request.guidance_scale = model.branches && dice.one_in(4) ? 1 : 3.5;
  request.seed = static_cast<std::uint64_t>(dice.from(0, 1000));
  request.max_sequence_length = model.name == "tiny-hunyuan" ? 0 : 12;
  request.vae_tiling = dice.one_in(4);
  request.method = dice.of(std::vector<std::string>{"exact", "pipefusion", "distrifusion"});
  if (request.method != "exact") {
    request.kv = dice.one_in(2) ? "stale" : "predict";
    request.num_pipeline_patch = dice.from(1, std::min(5, request.height / 16));
    request.warmup_steps = dice.from(0, std::min(2, request.steps));
  }
  return submission;
}

Parallelism draw_degrees(Dice& dice, const Drawn& model, const ImageRequest& request) {
  auto mixes = all_mixes({.least = 2, .most = 8, .blocks = model.blocks});
  const bool branches = model.branches && request.guidance_scale > 1;
  std::erase_if(mixes, [&](const auto& mix) { return mix.cfg == 2 && !branches; });
  auto mix = dice.of(mixes);
  mix.vae = dice.from(1, std::min(static_cast<int>(mix.world()) / mix.dp, request.height / 8));
  if (mix.pp == 1 || dice.one_in(2)) return mix;
  for (int left = model.blocks, stage = 1; stage <= mix.pp; ++stage) {
    const int after = mix.pp - stage;  // each of those needs a block
    mix.stages.push_back(after == 0 ? left : dice.from(1, left - after));
    left -= mix.stages.back();
  }
  return mix;
}

std::string words(const Drawn& model, const ImageRequest& request) {
  std::ostringstream text;
  text << model.name << ", " << request.height << " x " << request.width << ", " << request.steps
       << " steps, guidance " << request.guidance_scale.value() << ", n "
       << request.images_per_prompt << ", " << request.num_pipeline_patch << " patches, warm-up "
       << request.warmup_steps << (request.vae_tiling ? ", tiled" : "");
  return text.str();
}

}  // namespace

TEST_CASE("a job of any size, of a model of any size, has one picture at any degrees") {
  const auto only = number("TROUPE_JOB_SEED", 0);
  const auto first = only != 0 ? only : 1;
  const auto last = only != 0 ? only : number("TROUPE_JOB_SEEDS", kSeeds);
  Seen seen;
  for (auto seed = first; seed <= last; ++seed) {
    Dice dice(seed);
    const auto model = draw_model(dice);
    auto submission = draw_job(dice, model);
    const auto degrees = draw_degrees(dice, model, submission.request);
    submission.request.images_per_prompt = degrees.dp + dice.from(0, 1);
    const auto what =
        "TROUPE_JOB_SEED=" + std::to_string(seed) + ": " + words(model, submission.request);
    CAPTURE(what);
    CAPTURE(name_of(degrees));
    try {
      SamePicture(shared_cluster(), submission, seen).check_at(degrees);
    } catch (const std::exception& error) {
      FAIL_CHECK(error.what());
    }
  }
  MESSAGE("seeds " << first << " to " << last << ": " << seen.text());
}
