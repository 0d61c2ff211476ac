#include "controller/plan/plan.h"

#include <rapidcheck.h>
#include <algorithm>
#include <nlohmann/json.hpp>
#include <numeric>

#include "controller/plan/layout.h"
#include "tests/controller/sample_model.h"
#include "tests/support/doctest.h"

using namespace troupe;
using plan::make_plan;
using plan::split_blocks;
using plan::Stage;

namespace {

wire::ImageRequest request_for(int height, int width) {
  wire::ImageRequest request;
  request.prompts = {"a red circle"};
  request.height = height;
  request.width = width;
  return request;
}

double costliest(const std::vector<double>& costs, const std::vector<Stage>& stages) {
  double most = 0;
  for (const auto& stage : stages) {
    most = std::max(most, std::accumulate(costs.begin() + stage.first_block,
                                          costs.begin() + stage.last_block, 0.0));
  }
  return most;
}

/// The cheapest costliest stage by trying every split.
double best_by_trying(const std::vector<double>& costs, std::size_t from, int stages) {
  if (stages == 1) return std::accumulate(costs.begin() + from, costs.end(), 0.0);
  double best = 1e300;
  double sum = 0;
  for (std::size_t cut = from + 1; cut + stages - 1 <= costs.size(); ++cut) {
    sum += costs[cut - 1];
    best = std::min(best, std::max(sum, best_by_trying(costs, cut, stages - 1)));
  }
  return best;
}

}  // namespace

TEST_CASE("token rows split with the remainder first") {
  CHECK(plan::split_rows(5, 3) == std::vector<wire::RowRange>{{0, 2}, {2, 4}, {4, 5}});
  CHECK_THROWS_WITH(plan::split_rows(3, 4),
                    "[plan] `num_pipeline_patch` is 4, but the picture has only 3 token rows: each "
                    "patch needs one");
}

TEST_CASE("28 equal blocks on 8 stages leave no stage empty") {
  const auto stages = split_blocks(std::vector<double>(28, 1.0), 8);
  std::vector<int> sizes;
  for (const auto& stage : stages)
    sizes.push_back(stage.blocks());
  CHECK(sizes == std::vector<int>{4, 4, 4, 4, 3, 3, 3, 3});
}

TEST_CASE("stages are balanced by cost, contiguous and never empty") {
  CHECK(rc::check([] {
    const auto raw =
        *rc::gen::nonEmpty(rc::gen::container<std::vector<int>>(rc::gen::inRange(1, 20)));
    std::vector<double> costs(raw.begin(), raw.begin() + std::min<std::size_t>(raw.size(), 9));
    const int count = *rc::gen::inRange(1, static_cast<int>(costs.size()) + 1);
    const auto stages = split_blocks(costs, count);
    RC_ASSERT(static_cast<int>(stages.size()) == count);
    int next = 0;
    for (const auto& stage : stages) {
      RC_ASSERT(stage.first_block == next);
      RC_ASSERT(stage.blocks() >= 1);
      next = stage.last_block;
    }
    RC_ASSERT(next == static_cast<int>(costs.size()));
    RC_ASSERT(costliest(costs, stages) <= best_by_trying(costs, 0, count) * (1.02 + 1e-9));
  }));
}

TEST_CASE("a pipefusion plan says every shape and place") {
  auto request = request_for(256, 128);
  request.method = Method::pipefusion;
  request.num_pipeline_patch = 3;
  request.warmup_steps = 2;
  request.prompts = {"a", "b", "c"};
  const auto plan = make_plan(test::sample_model(), request, {.dp = 2, .cfg = 2, .pp = 2});
  CHECK(plan.degrees.world() == 8);
  CHECK(plan.latent_height == 32);
  CHECK(plan.latent_width == 16);
  CHECK(plan.token_rows == 16);
  CHECK(plan.patches == std::vector<wire::RowRange>{{0, 6}, {6, 11}, {11, 16}});
  CHECK(plan.stages == std::vector<Stage>{{0, 4}, {4, 8}});
  CHECK(plan.images == std::vector<wire::RowRange>{{0, 2}, {2, 3}});
  CHECK(plan.synchronous_steps == 2);
  CHECK(plan.text_rank(1) == 4);
  CHECK(plan.decode_rank(1) == 5);
  using Role = plan::GroupPlan::Role;
  CHECK(plan.group_with(Role::edge, 2, 0)->ranks == std::vector<int>{2, 3});
  CHECK(plan.group_with(Role::feedback, 3, 0)->ranks == std::vector<int>{3, 2});
  CHECK(plan.group_with(Role::cfg, 5, -1)->ranks == std::vector<int>{5, 7});
  CHECK(plan.group_with(Role::caption, 6, -1)->ranks == std::vector<int>{4, 5, 6, 7});
  CHECK(plan.group_with(Role::cfg, 4, -1) == nullptr);
}

TEST_CASE("the native size fills in where none is given") {
  const auto plan = make_plan(test::sample_model(), request_for(0, 0), {});
  CHECK(plan.request.height == 256);
  CHECK(plan.request.width == 256);
}

TEST_CASE("weights per actor fall with pp, and K,V with the blocks of a stage") {
  auto request = request_for(256, 256);
  request.method = Method::pipefusion;
  request.num_pipeline_patch = 4;
  const auto one = make_plan(test::sample_model(), request, {});
  const auto four = make_plan(test::sample_model(), request, {.pp = 4});
  CHECK(four.memory[1].weights * 4 < one.memory[0].weights * 2);
  CHECK(four.memory[1].kv * 4 == one.memory[0].kv);
  CHECK(one.memory[0].text > 0);
  CHECK(four.memory[1].text == 0);
  CHECK(four.memory[3].vae > 0);
}

TEST_CASE("a refusal has its field as a value") {
  const auto model = test::sample_model();
  const auto field = [&](auto change, wire::Parallelism parallelism = {}) {
    auto request = request_for(256, 256);
    change(request);
    try {
      make_plan(model, request, parallelism);
    } catch (const wire::BadField& error) {
      return to_string(error.field);
    }
    return std::string("accepted");
  };
  const auto same = [](auto&) {};
  CHECK(field([](auto& r) { r.width = 100; }) == "width");
  CHECK(field([](auto& r) { r.steps = -1; }) == "steps");
  CHECK(field([](auto& r) { r.steps = 1001; }) == "steps");
  CHECK(field([](auto& r) { r.sampler = "magic"; }) == "sampler");
  CHECK(field([](auto& r) { r.sampler = "flow-euler"; }) == "sampler");
  CHECK(field([](auto& r) { r.eta = 0.5; }) == "eta");
  CHECK(field([](auto& r) { r.timesteps = {5, 7}; }) == "timesteps");
  CHECK(field([](auto& r) { r.sigmas = {1, 0}; }) == "sigmas");
  CHECK(field([](auto& r) { r.prompts.clear(); }) == "prompts");
  CHECK(field([](auto& r) { r.negative_prompts = {"a", "b"}; }) == "negative_prompts");
  CHECK(field([](auto& r) { r.picture_seeds = {1, 2}; }) == "picture_seeds");
  CHECK(field([](auto& r) { r.step_cache_threshold = 1; }) == "step_cache_threshold");
  CHECK(field([](auto& r) { r.num_pipeline_patch = 4; }) == "num_pipeline_patch");
  CHECK(field([](auto& r) { r.loras = {{"", 1}}; }) == "loras");
  CHECK(field([](auto& r) { r.mask_image_bytes = 9; }) == "mask_image");
  CHECK(field([](auto& r) { r.exchange = PatchExchange::naive; }) == "exchange");
  CHECK(field(same, {.cfg = 3}) == "cfg");
  CHECK(field(same, {.ring = 0}) == "ring");
  CHECK(field(same, {.ulysses = 2000}) == "ulysses");
  CHECK(field(same, {.pp = 9}) == "pp");
  CHECK(field(same, {.pp = 2, .stages = {8}}) == "stages");
  CHECK(field(same, {.vae = 2}) == "vae");
}

TEST_CASE("impossible requests are refused with the field, the value and the reason") {
  const auto model = test::sample_model();
  const auto why = [&](auto change, wire::Parallelism parallelism = {}) {
    auto request = request_for(256, 256);
    change(request);
    try {
      make_plan(model, request, parallelism);
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string("accepted");
  };
  const auto same = [](auto&) {};
  CHECK(why(same) == "accepted");
  CHECK(why([](auto& r) { r.height = 100; }) ==
        "[plan] `height` is 100: this model takes multiples of 16 from 16 to 16384");
  CHECK(why([](auto& r) { r.steps = -1; }) == "[plan] `steps` is -1: at least 0 is needed");
  CHECK(why([](auto& r) { r.prompts.clear(); }) == "[plan] `prompts` is missing");
  CHECK(why([](auto& r) { r.num_pipeline_patch = 4; }) ==
        "[plan] `num_pipeline_patch` is 4, but `method` is exact: only pipefusion and distrifusion "
        "have patches");
  CHECK(why([](auto& r) { r.guidance_scale = 1; }, {.cfg = 2}) ==
        "[plan] `cfg` is 2, but `guidance_scale` is 1: there is no second branch to compute unless "
        "`guidance_scale` is above 1");
  CHECK(why(same, {.dp = 2}) ==
        "[plan] `dp` is 2, but there is only 1 picture to split (prompts × `images_per_prompt`)");
  CHECK(why(same, {.pp = 9}) ==
        "[plan] `pp` is 9, but the transformer has 8 blocks: each stage needs one");
  CHECK(why([](auto& r) {
          r.method = Method::pipefusion;
          r.num_pipeline_patch = 17;
        }) ==
        "[plan] `num_pipeline_patch` is 17, but the picture has only 16 token rows: each patch "
        "needs one");
  CHECK(why([](auto& r) {
          r.method = Method::pipefusion;
          r.warmup_steps = 21;
        }) == "[plan] `warmup_steps` is 21, but there are only 20 steps");
  CHECK(why([](auto& r) {
          r.sampler = "magic";
        }).starts_with("[sampler] sampler is \"magic\", which is unknown: choose dpmsolver++"));
  CHECK(why([](auto& r) { r.steps = 1001; }) ==
        "[sampler] steps is 1001: the model was trained with 1000 timesteps");
  CHECK(why([](auto& r) { r.prompts[0] = "caf\xe9"; }) == "[plan] `prompts` is not UTF-8 text");
  CHECK(why([](auto& r) { r.prompts[0] = std::string("a\0b", 3); }) ==
        "[plan] `prompts` has a zero byte in it");
  CHECK(why([](auto& r) { r.negative_prompt = std::string(20000, 'x'); }) ==
        "[plan] `negative_prompt` has 20000 bytes: at most 16384 are taken");
  CHECK(why([](auto& r) { r.prompts.assign(17, std::string(16000, 'x')); }) ==
        "[plan] all prompts have 272000 bytes: at most 262144 are taken");
  CHECK(why([](auto& r) { r.images_per_prompt = 5000; }) ==
        "[plan] prompts × `images_per_prompt` is 5000 pictures: at most 4096 are made");
  CHECK(why([](auto& r) { r.max_sequence_length = 5000; }) ==
        "[plan] `max_sequence_length` is 5000: at most 4096");
  CHECK(why([](auto& r) { r.guidance_scale = NAN; }).starts_with("[plan] `guidance_scale` is nan"));
  CHECK(why([](auto& r) {
          r.init_latents_blob = 1;
          r.init_latents_shape = {1, 4, 32, 32};
          r.init_latents_bytes = 12;
        }) == "[plan] `init_latents` have 12 bytes, but [1, 4, 32, 32] in float32 needs 16384");
  // As many values in another shape are other latents.
  CHECK(why([](auto& r) {
          r.init_latents_blob = 1;
          r.init_latents_shape = {1, 16, 16, 16};
          r.init_latents_bytes = 16384;
        }) ==
        "[plan] `init_latents` have shape [1, 16, 16, 16], but [pictures, channels, rows, columns] "
        "of this request are [1, 4, 32, 32]");
  CHECK(why([](auto& r) {
          r.height = 0;
          r.init_latents_shape = {1, 4, 1 << 20, 32};
        }) ==
        "[plan] `init_latents` say `height` where none is given, by 1048576 rows or columns: 1 to "
        "2048 "
        "are taken");
}

TEST_CASE("a plan prints as text and as JSON") {
  const auto plan = make_plan(test::sample_model(), request_for(256, 384), {.pp = 2});
  const auto text = to_text(plan);
  CHECK(text.starts_with("picture   384 × 256, latents [4, 32, 48], tokens 24 × 16\n"));
  CHECK(text.find("stage 1   blocks 4–7") != std::string::npos);
  CHECK(text.find("pp      [0, 1]") != std::string::npos);
  const auto json = to_json(plan);
  CHECK(json["stages"][1] == nlohmann::json::array({4, 8}));
  CHECK(json["memory"].size() == 2);
}

TEST_CASE(
    "a sampler that clips latents by its own default is told of, the checkpoint's own is not") {
  auto request = request_for(256, 256);
  CHECK(make_plan(test::sample_model(), request, {}).warnings.empty());
  for (const std::string sampler : {"ddim", "ddpm"}) {
    request.sampler = sampler;
    const auto warnings = make_plan(test::sample_model(), request, {}).warnings;
    REQUIRE(warnings.size() == 1);
    CHECK(warnings[0].find(sampler + " clips latents to ±1,") == 0);
  }
  auto model = test::sample_model();
  auto config = nlohmann::json::parse(model.scheduler.config);
  config["clip_sample"] = false;
  model.scheduler.config = config.dump();
  CHECK(make_plan(model, request, {}).warnings.empty());
}

TEST_CASE("an empty prompt and a negative prompt without guidance are told of") {
  using Texts = std::vector<std::string>;
  const auto warnings_of = [](const wire::ImageRequest& request) {
    return make_plan(test::sample_model(), request, {}).warnings;
  };
  auto request = request_for(256, 256);
  request.prompts = {" "};
  CHECK(warnings_of(request) == Texts{"the prompt is empty: nothing says what to show"});
  request.prompts = {"a", ""};
  CHECK(warnings_of(request) == Texts{"prompt 2 of 2 is empty: nothing says what to show"});
  request.prompts = {"a"};
  request.negative_prompt = "b";
  CHECK(warnings_of(request).empty());
  request.guidance_scale = 1;
  CHECK(
      warnings_of(request) ==
      Texts{"the negative prompt is unused: `guidance_scale` is 1, and above 1 is needed for it"});
}

TEST_CASE("a size far from the model's native one is a warning that names it, others are none") {
  const auto warnings_of = [](wire::ImageRequest request) {
    return make_plan(test::sample_model(), request, {}).warnings;
  };
  const auto of_size = [&](int height, int width) {
    return warnings_of(request_for(height, width));
  };
  using Texts = std::vector<std::string>;
  CHECK(of_size(2048, 1024) ==
        Texts{"1024 x 2048 is far beyond 256 x 256, this model's native size: things may repeat or "
              "lose their shape"});
  CHECK(of_size(512, 512).size() == 1);
  CHECK(of_size(64, 128) ==
        Texts{"128 x 64 is far below 256 x 256, this model's native size: there may be little to "
              "be seen"});
  // The next size to these, shapes of the native area, a quarter of it.
  for (const auto& [height, width] :
       {std::pair{512, 496}, {1024, 64}, {128, 512}, {384, 384}, {128, 128}, {64, 256}}) {
    CAPTURE(height);
    CHECK(of_size(height, width).empty());
  }
  auto request = request_for(2560, 2560);
  request.resolution_binning = true;
  CHECK(warnings_of(request).empty());
  // A larger picture's details, where the whole was settled before.
  request = request_for(512, 512);
  request.init_image_bytes = 100;
  for (const auto& [strength, count] : {std::pair{0.5, 0}, {0.9, 1}}) {
    request.strength = strength;
    CHECK(std::ssize(warnings_of(request)) == count);
  }
  const auto video = spec::read_model_spec(TROUPE_SOURCE_DIR "/tests/fixtures/tiny-wan");
  request = request_for(0, 0);
  request.max_sequence_length = 0;
  CHECK(make_plan(video, request, {}).warnings.empty());
  request.height = request.width = 64;
  const auto small = make_plan(video, request, {}).warnings;
  REQUIRE(small.size() == 1);
  CHECK(small[0].starts_with("64 x 64 is far below " + std::to_string(video.default_width()) +
                             " x " + std::to_string(video.default_size()) + ", "));
}
