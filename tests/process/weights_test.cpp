#include <nlohmann/json.hpp>

#include "tests/process/support/foreseen.h"
#include "tests/process/support/mixes.h"
#include "tests/process/support/random_model.h"
#include "tests/process/support/shared_cluster.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::testing;
using nlohmann::json;

namespace {

/// Eight blocks of 17 MB.
constexpr TransformerSize kLarge = {.blocks = 8, .heads = 8, .head_dim = 64};
constexpr double kMegabyte = 1e6;

/// Captions as long as they may be, so that their K,V are what the plan reckons with.
Submission job(const std::string& model, const Parallelism& mix) {
  Submission submission;
  submission.model = model;
  submission.parallelism = mix;
  auto& request = submission.request;
  request.prompts = {"a red circle above a blue square"};
  request.negative_prompt = "a dog beside a cat";
  request.max_sequence_length = 4;
  request.height = 80;
  request.width = 48;
  request.steps = 2;
  return submission;
}

json actors_of(const JobResult& result) {
  return json::parse(result.report).at("actors");
}

/// Bytes that every actor of a stage holds, whatever its shard.
std::uint64_t unsharded(const spec::TransformerSpec& spec, const plan::Plan& plan, int rank) {
  const auto at = mesh::Mesh(plan.degrees).coordinates(rank);
  return 4 * spec::kept_elements(spec,
                                 {.embeds = at.pp == 0, .projects = at.pp == plan.degrees.pp - 1});
}

}  // namespace

TEST_CASE("weights and memory of the blocks fall as 1 / (pp · tp)") {
  const RandomModel model(kLarge);
  const auto spec = spec::read_model_spec(model.folder()).transformer;
  const double blocks = 4.0 * double(spec::kept_elements(spec, {.last_block = kLarge.blocks}) -
                                     spec::kept_elements(spec, {}));
  REQUIRE(blocks > 130 * kMegabyte);
  const Parallelism mixes[] = {{.pp = 8}, {.pp = 4, .tp = 2}, {.pp = 2, .tp = 4}, {.tp = 8},
                               {.pp = 4}, {.pp = 2, .tp = 2}, {.tp = 4},          {.pp = 2},
                               {.tp = 2}, {.pp = 1, .tp = 1}};
  for (const auto& mix : mixes) {
    const auto name = name_of(mix);
    CAPTURE(name);
    // Actors of its own: others keep the models that they have had.
    SharedCluster fresh(mix.world());
    // What a job costs besides its weights.
    fresh.run(job(odd_model().folder(), {.tp = static_cast<int>(mix.world())}));
    const auto idle = private_memory(fresh);
    const double part = blocks / (mix.pp * mix.tp);
    const auto submission = job(model.folder(), mix);
    const auto plan = plan_of(submission);
    const auto actors = actors_of(fresh.run(submission));
    const auto now = private_memory(fresh);
    double most_above = 0;
    for (int rank = 0; rank < mix.world(); ++rank) {
      CAPTURE(rank);
      const auto held = actors[rank].at("weight_bytes").get<std::uint64_t>();
      // Packed in panels, of which the last may be padded: the output projection is narrow.
      CHECK(held >= plan.memory[rank].weights);
      CHECK(held < plan.memory[rank].weights * 1.01);
      const double own = double(held - unsharded(spec, plan, rank));
      CHECK(own == doctest::Approx(part).epsilon(0.015));
      const auto actor = actors[rank].at("actor").get<std::uint32_t>();
      const double above = now.at(actor) - idle.at(actor);
      CHECK(above < double(held) * 1.05 + 8 * kMegabyte);
      most_above = std::max(most_above, above);
    }
    MESSAGE(name << ": blocks " << part / kMegabyte
                 << " MB an actor, private memory above idle at most " << most_above / kMegabyte
                 << " MB");
  }
}

TEST_CASE("plans know weights and K,V to the byte") {
  struct Way {
    const char* method;
    const char* kv;
    int patches;
    const char* exchange = "stale";
  };
  const Way ways[] = {{"exact", "stale", 1},          {"pipefusion", "stale", 3},
                      {"pipefusion", "predict", 3},   {"distrifusion", "stale", 3},
                      {"distrifusion", "predict", 3}, {"distrifusion", "stale", 3, "naive"}};
  const Parallelism mixes[] = {{},
                               {.dp = 2, .cfg = 2},
                               {.pp = 3},
                               {.ulysses = 3},
                               {.ring = 3},
                               {.tp = 3},
                               {.tp = 7},
                               {.pp = 2, .ulysses = 2, .tp = 2},
                               {.cfg = 2, .ulysses = 2, .ring = 2},
                               {.pp = 2, .ring = 2, .tp = 2}};
  for (const auto& mix : mixes) {
    for (const auto& way : ways) {
      auto submission = job(odd_model().folder(), mix);
      auto& request = submission.request;
      request.images_per_prompt = 3;
      request.method = way.method;
      request.kv = way.kv;
      request.num_pipeline_patch = way.patches;
      request.exchange = way.exchange;
      request.dtype = "bfloat16";  // not packed in panels, so that odd widths are exact, too
      CAPTURE(std::string(way.method) + " " + way.kv + " at " + name_of(mix));
      const Foreseen foreseen(submission);
      const auto report = json::parse(shared_cluster().run(submission).report);
      check_weights(report, foreseen);
      check_kv(report, foreseen);
    }
  }
}
