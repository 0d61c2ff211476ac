#include <algorithm>
#include <string>

#include "controller/plan/plan.h"
#include "controller/plan/traffic.h"
#include "tests/spec/published_wan.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

wire::ImageRequest video_request() {
  wire::ImageRequest request;
  request.prompts = {"a cat walks on the grass"};
  request.guidance_scale = 5;
  request.dtype = ComputeType::bfloat16;
  request.max_sequence_length = 0;
  return request;
}

std::uint64_t most_for_video(const plan::Plan& plan, std::uint64_t plan::ActorMemory::*part) {
  std::uint64_t most = 0;
  for (const auto& actor : plan.memory)
    most = std::max(most, actor.*part);
  return most;
}

void check_plans(const std::string& name, const PublishedWanFolder& folder,
                 const PublishedTransformer& published) {
  const auto model = spec::read_model_spec(folder.path());
  auto request = video_request();
  const wire::SentPicture frame{.bytes = 1 << 20, .height = 1080, .width = 1920};
  if (model.inputs.needs_images) request.images = {frame};
  if (model.inputs.needs_last_image) request.last_image = frame;
  const auto single = plan::make_plan(model, request, {});
  CHECK(single.request.height == 480);
  CHECK(single.request.width == 832);
  CHECK(single.request.num_frames == 81);
  const auto scale = model.video_vae->scale_factor();
  CHECK(single.latent_height == 21 * 480 / scale);
  CHECK(single.token_rows * single.token_columns == 32760 * 64 / (scale * scale));
  CHECK(single.memory[0].weights <= 2 * published.elements);
  CHECK(single.memory[0].weights > 2 * published.elements * 99 / 100);
  for (const int actors : {1, 2, 4, 8, 16}) {
    CAPTURE(actors);
    const auto by_stages = plan::make_plan(model, request, {.pp = actors});
    const auto by_weights = plan::make_plan(model, request, {.tp = actors});
    const auto by_rows = plan::make_plan(
        model, request, {.ulysses = actors > 1 ? 2 : 1, .ring = std::max(actors / 2, 1)});
    CHECK(most_for_video(by_stages, &plan::ActorMemory::weights) <
          single.memory[0].weights * 12 / (10 * actors) + 2 * published.elements / 20);
    if (actors > 1) {
      CHECK(most_for_video(by_weights, &plan::ActorMemory::weights) < single.memory[0].weights);
      CHECK(most_for_video(by_rows, &plan::ActorMemory::activations) <
            single.memory[0].activations * 12 / (10 * actors) + single.memory[0].activations / 5);
    }
    for (const auto& plan : {by_stages, by_weights, by_rows})
      CHECK(plan::predict_traffic(plan, model).size() == static_cast<std::size_t>(actors));
    const auto peak = [](const plan::Plan& plan) {
      std::uint64_t most = 0;
      for (const auto& actor : plan.memory)
        most = std::max(most, actor.peak());
      return static_cast<double>(most) / 1e9;
    };
    MESSAGE(name << " at " << actors << " actors, GB an actor at most: by pp " << peak(by_stages)
                 << ", by tp " << peak(by_weights) << ", by ulysses × ring " << peak(by_rows));
  }
}

}  // namespace

TEST_CASE("published video models are planned at one to sixteen actors") {
  check_plans("Wan 2.1 1.3B", PublishedWanFolder(kWan13bConfig), kWan13bConfig);
  check_plans("Wan 2.1 14B", PublishedWanFolder(kWan14bConfig), kWan14bConfig);
  check_plans("Wan 2.2 TI2V-5B", published_wan22(), kWan22Ti2vConfig);
  check_plans("Wan 2.2 A14B", published_wan_a14b(), kWan14bConfig);
  check_plans("Wan 2.1 I2V", published_wan_i2v(), kWanI2vConfig);
  check_plans("Wan 2.1 FLF2V", published_wan_i2v(kWanFlf2vConfig), kWanFlf2vConfig);
  check_plans("Wan 2.2 I2V-A14B", published_wan_i2v_a14b(), kWanI2vA14bConfig);
}

TEST_CASE("a plan of two transformers says when the second takes over, and what it would keep") {
  const auto folder = published_wan_a14b();
  const auto model = spec::read_model_spec(folder.path());
  auto request = video_request();
  const auto exact = plan::make_plan(model, request, {.pp = 2});
  // The last of the first one's timesteps is 875.
  CHECK(exact.second_from == 16);
  CHECK(exact.whole_steps() == 50);
  CHECK(exact.step_kind(16) == wire::StepKind::whole);
  for (const auto& own : exact.memory)
    CHECK(own.second == own.weights);
  const auto kv = [&](const spec::ModelSpec& of) {
    return plan::make_plan(of, request, {}).memory.front().kv;
  };
  auto one = model;
  one.second_transformer.reset();
  CHECK(kv(model) - kv(one) == 2 * 512 * 2 * 5120 * 2);  // the text waits for the second
  CHECK(plan::make_plan(one, request, {}).memory.front().second == 0);

  request.method = Method::pipefusion;
  request.num_pipeline_patch = 7;
  request.warmup_steps = 1;
  const auto patched = plan::make_plan(model, request, {.pp = 2});
  CHECK(patched.step_kind(15) == wire::StepKind::patches);
  CHECK(patched.step_kind(16) == wire::StepKind::refill);
  CHECK(patched.step_kind(17) == wire::StepKind::patches);
  CHECK(patched.whole_steps() == 2);
  request.method = Method::distrifusion;
  request.exchange = PatchExchange::naive;
  CHECK(plan::make_plan(model, request, {.ring = 7}).step_kind(16) == wire::StepKind::patches);
  request.exchange = PatchExchange::stale;
  request.method = Method::exact;
  request.num_pipeline_patch = 1;
  request.step_cache = StepCacheRule::teacache;
  CHECK(plan::make_plan(model, request, {}).step_kind(16) == wire::StepKind::refill);
}

TEST_CASE("frames decide what a plan of a video computes") {
  const PublishedWanFolder folder(kWan13bConfig);
  const auto model = spec::read_model_spec(folder.path());
  auto request = video_request();
  request.num_frames = 1;
  const auto picture = plan::make_plan(model, request, {});
  CHECK(picture.latent_height == 60);
  request.num_frames = 5;
  CHECK(plan::make_plan(model, request, {}).latent_height == 120);
  const auto refusal = [&](const wire::Parallelism& mix = {}) {
    return error_of([&] { plan::make_plan(model, request, mix); });
  };
  request.num_frames = 80;
  CHECK(contains(refusal(), "`num_frames` is 80: this model takes multiples of 4 and one more"));
  request.num_frames = 4101;
  CHECK(contains(refusal(), "up to 4097"));
  request.num_frames = 81;
  request.height = 16384;
  CHECK(refusal().empty());
  request.height = 16;
  CHECK(contains(refusal({.pp = 4, .vae = 3}), "have only 2 rows to split"));
}
