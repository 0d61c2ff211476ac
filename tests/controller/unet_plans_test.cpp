#include <nlohmann/json.hpp>
#include <numeric>
#include <string>

#include "controller/plan/plan.h"
#include "controller/plan/report.h"
#include "controller/plan/traffic.h"
#include "tests/spec/published_unets.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

wire::ImageRequest picture() {
  wire::ImageRequest request;
  request.prompts = {"a red circle"};
  request.guidance_scale = 5;
  request.steps = 30;
  request.dtype = ComputeType::float16;
  request.max_sequence_length = 0;
  return request;
}

wire::ImageRequest by_patches(int patches) {
  auto request = picture();
  request.method = Method::distrifusion;
  request.num_pipeline_patch = patches;
  request.warmup_steps = 4;
  return request;
}

std::uint64_t elements_of(const spec::UNetSpec& unet) {
  std::uint64_t sum = 0;
  for (const auto& tensor : spec::expected_tensors(unet)) {
    sum += std::accumulate(tensor.shape.begin(), tensor.shape.end(), std::uint64_t{1},
                           std::multiplies<>());
  }
  return sum;
}

}  // namespace

TEST_CASE("published SDXL and Stable Diffusion 1.5 are planned at one to sixteen actors") {
  struct Published {
    bool xl;
    int side;
    std::uint64_t elements;
  };
  for (const auto& [xl, side, elements] :
       {Published{true, 1024, 2'567'463'684}, Published{false, 512, 859'520'964}}) {
    const PublishedUNetFolder folder(xl);
    const auto model = spec::read_model_spec(folder.path());
    CHECK(elements_of(*model.transformer.unet()) == elements);
    CHECK(model.zero_negative == xl);
    CHECK(model.notes.size() == (xl ? 0 : 1));
    auto request = picture();
    const auto single = plan::make_plan(model, request, {});
    // 1.5's own scheduler visits the second time twice.
    CHECK(single.request.steps == request.steps + (xl ? 0 : 1));
    CHECK(single.sampler_steps == request.steps);
    CHECK(single.request.height == side);
    CHECK(single.request.width == side);
    CHECK(single.request.max_sequence_length == 77);
    CHECK(single.memory[0].weights == 2 * elements);
    CHECK(single.patches.size() == 1);
    for (const int actors : {2, 4, 8, 16}) {
      CAPTURE(actors);
      auto stale = by_patches(actors / 2);
      const auto plan = plan::make_plan(model, stale, {.cfg = 2, .ulysses = 1, .ring = actors / 2});
      CHECK(plan.memory.size() == static_cast<std::size_t>(actors));
      for (const auto& actor : plan.memory) {
        CHECK(actor.weights == single.memory[0].weights);
        CHECK(actor.activations < single.memory[0].activations);
      }
      const auto exact = plan::make_plan(model, request, {.cfg = 2, .ulysses = actors / 2});
      if (actors > 2) {
        CHECK(exact.memory[0].activations <
              plan::make_plan(model, request, {.cfg = 2}).memory[0].activations);
        CHECK(exact.memory[0].kv < plan.memory[0].kv);  // nothing is kept but the text
      }
      MESSAGE((xl ? "SDXL" : "SD 1.5")
              << " at " << actors << " actors, GB: weights " << double(plan.memory[0].weights) / 1e9
              << ", kept " << double(plan.memory[0].kv) / 1e9 << ", peak "
              << double(plan.memory[0].peak()) / 1e9);
    }
  }
}

TEST_CASE("a U-Net's weights in 8 bits and what its step cache keeps are planned") {
  for (const bool xl : {true, false}) {
    const PublishedUNetFolder folder(xl);
    const auto model = spec::read_model_spec(folder.path());
    auto request = picture();
    const auto plain = plan::make_plan(model, request, {}).memory[0];
    request.step_cache = StepCacheRule::first_block;
    // Two feature maps of 320 channels, of both branches.
    const std::uint64_t side = xl ? 128 : 64;
    CHECK(plan::make_plan(model, request, {}).memory[0].kv ==
          plain.kv + 2 * 2 * side * side * 320 * 2);
    request.weight_dtype = WeightChoice::int8;
    const auto small = plan::make_plan(model, request, {}).memory[0].weights;
    // Embeddings and shortcuts stay in bfloat16.
    const double share = double(small) / double(plain.weights);
    CHECK(share == doctest::Approx(xl ? 0.509 : 0.531).epsilon(0.01));
  }
}

TEST_CASE("SDXL computes as many multiply-accumulates a step as DistriFusion's paper counts") {
  const PublishedUNetFolder folder(true);
  const auto model = spec::read_model_spec(folder.path());
  const auto macs = [&](const wire::ImageRequest& request) {
    const auto plan = plan::make_plan(model, request, {});
    return plan::macs_of(plan::shape_of(model, plan.request), plan::shape_of(plan));
  };
  // 6,763 GMACs at 1024 × 1024 with both branches, the text's keys and values in each step.
  const auto both = macs(picture());
  CHECK((both.step + both.text) / 1e9 == doctest::Approx(6763).epsilon(0.001));
  CHECK(both.text / 1e9 == doctest::Approx(52.5).epsilon(0.01));
  // 338 T in 50 steps.
  CHECK(50 * (both.step + both.text) / 1e12 == doctest::Approx(338).epsilon(0.001));
  auto unguided = picture();
  unguided.guidance_scale = 1;
  CHECK(macs(unguided).step == doctest::Approx(both.step / 2));
  wire::JobSpec job;
  job.request = picture();
  const auto explanation = plan::explain(model, job, 1, plan::machine_of("a100-nvlink-x1"));
  CHECK(contains(plan::to_text(explanation, model), "GMACs per step"));
  CHECK(plan::to_json(explanation, model)["gmacs"]["step"] == doctest::Approx(both.step / 1e9));
}

TEST_CASE("what a U-Net's patches tell each other is planned by kind of layer") {
  const PublishedUNetFolder folder(true);
  const auto model = spec::read_model_spec(folder.path());
  const auto plan = plan::make_plan(model, by_patches(4), {.cfg = 2, .ulysses = 2, .ring = 2});
  const auto steps = plan::unet_step_traffic(plan, model, 0);
  REQUIRE(steps.size() == 3);
  CHECK(steps[0].count == 4);
  CHECK(steps[1].count == 25);
  CHECK(steps[2].count == 1);
  // Keys and values of 32 · 64 · 64 / 4 tokens at the second level and a quarter of them at the
  // third, in ten and sixty blocks, of one picture and branch in float16, to three others.
  const std::uint64_t tokens = 64 * 64 / 4;
  const std::uint64_t kv = 3 * 2 * 2 * (10 * 640 * tokens + 60 * 1280 * tokens / 4);
  CHECK(steps[0].by_layer.at("attention") == kv);
  CHECK(steps[1].by_layer == steps[0].by_layer);
  // Two rows of the latents' 128 columns.
  CHECK(steps[2].by_layer.at("convolution") == 3 * 2 * 4 * 128 * 2);
  CHECK(steps[2].by_layer.size() == 1);
  const auto traffic = plan::predict_traffic(plan, model);
  CHECK(traffic[0].by_layer.at("attention") == 29 * kv);
  CHECK(traffic[0].of("stage") >=
        std::accumulate(traffic[0].by_layer.begin(), traffic[0].by_layer.end(), std::uint64_t{0},
                        [](auto sum, const auto& one) { return sum + one.second; }));
  wire::JobSpec job;
  job.request = by_patches(4);
  job.parallelism = {.cfg = 2, .ring = 4};
  const auto text = plan::to_text(plan::explain(model, job, 8, plan::machine_of("l40x8")), model);
  CHECK(contains(text, "bytes per step from patch to patch by kind of layer"));
  CHECK(contains(text, "stale × 25"));
}

TEST_CASE("rows that do not divide, and fewer rows than patches at deeper levels, are planned") {
  const PublishedUNetFolder folder(true);
  const auto model = spec::read_model_spec(folder.path());
  auto request = by_patches(5);
  request.height = 72;  // nine rows of latents: three at the last level
  request.width = 64;
  const auto plan = plan::make_plan(model, request, {.ring = 3});
  const std::vector<wire::RowRange> patches = {{0, 2}, {2, 4}, {4, 6}, {6, 8}, {8, 9}};
  const std::vector<wire::RowRange> ranks = {{0, 4}, {4, 8}, {8, 9}};
  CHECK(plan.patches == patches);
  REQUIRE(plan.micro_steps.size() == 1);
  CHECK(plan.micro_steps[0].of_rank == ranks);
  CHECK(plan.synchronous_steps == 4);
  CHECK(plan.step_kind(3) == wire::StepKind::whole);
  CHECK(plan.step_kind(4) == wire::StepKind::patches);
  auto all = request;
  all.exchange = PatchExchange::all;
  CHECK(plan::make_plan(model, all, {.ring = 3}).step_kind(4) == wire::StepKind::whole);
  request.num_pipeline_patch = 10;
  CHECK(contains(error_of([&] { plan::make_plan(model, request, {}); }),
                 "`num_pipeline_patch` is 10"));
  CHECK(contains(error_of([&] { plan::make_plan(model, picture(), {.pp = 2}); }), "`pp` is 2"));
}
