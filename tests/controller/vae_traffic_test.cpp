#include "controller/plan/vae_traffic.h"

#include "tests/controller/planning.h"
#include "tests/support/doctest.h"

using namespace troupe;
using plan::decode_traffic;
using plan::encode_traffic;
using test::sample_model;
using test::square_request;

namespace {

/// Returns a model of two levels, 8 and 16 wide, one layer each: two pixels per latent.
spec::ModelSpec small_model() {
  auto model = sample_model();
  model.vae.latent_channels = 4;
  model.vae.block_out_channels = {8, 16};
  model.vae.layers_per_block = 1;
  model.vae.norm_num_groups = 4;
  model.vae.mid_block_add_attention = true;
  model.vae.sample_size = 32;
  return model;
}

/// The sample model's 32 × 32 latents, as if they were two pixels wide each.
plan::Plan small_plan(const wire::ImageRequest& request, const wire::Parallelism& parallelism) {
  auto plan = plan::make_plan(sample_model(), request, parallelism);
  plan.request.height = plan.request.width = 64;
  return plan;
}

constexpr std::uint64_t kFloat = 4;

}  // namespace

TEST_CASE("decoders tell rows to neighbours, moments and keys to all, pixels to the first") {
  const auto model = small_model();
  const auto plan = small_plan(square_request(), {.pp = 3, .vae = 3});
  REQUIRE(plan.latent_height == 32);
  REQUIRE(plan.decoders(0) == std::vector<int>{2, 1, 0});  // 11, 11 and 10 rows
  // The way in, the middle's four, the first block's four and what it doubles, then at twice the
  // width the second's four and the way out.
  const std::uint64_t border =
      4 * 32 + 4 * 16 * 32 + 4 * 16 * 32 + 16 * 32 + (16 + 8 + 8 + 8) * 64 + 8 * 64;
  const auto first = decode_traffic(plan, model, 2);
  const auto second = decode_traffic(plan, model, 1);
  const auto third = decode_traffic(plan, model, 0);
  CHECK(first.halos == border * kFloat);
  CHECK(second.halos == 2 * border * kFloat);
  CHECK(third.halos == border * kFloat);
  // 14 norms of 4 groups: a third of 12 float64 to each of two, and the sum of the own third.
  for (const auto& one : {first, second, third})
    CHECK(one.moments == 14 * (8 + 2 * 4) * 8);
  CHECK(first.attention == 2 * 2 * 11 * 32 * 16 * kFloat);
  CHECK(third.attention == 2 * 2 * 10 * 32 * 16 * kFloat);
  CHECK(first.collected == 0);
  CHECK(second.collected == 3 * 22 * 64 * kFloat);
  CHECK(third.collected == 3 * 20 * 64 * kFloat);
  const auto traffic = plan::predict_traffic(plan, model);
  CHECK(traffic[1].of("vae") == second.total());
  // The last stage holds all latents, of which two others decode some.
  CHECK(traffic[2].of("rows") == 2 * 4 * 32 * 32 * kFloat);
  CHECK(traffic[1].of("rows") == 0);
}

TEST_CASE("encoders tell the same on the way down, where halving reads no row above") {
  const auto model = small_model();
  auto plan = small_plan(square_request(), {.pp = 3, .vae = 3});
  CHECK(encode_traffic(plan, model, 1).total() == 0);
  plan.request.init_image_bytes = 1;
  const std::uint64_t border = 3 * 64 + 2 * 8 * 64 + (8 + 16) * 32 + 4 * 16 * 32 + 16 * 32;
  const std::uint64_t halving = 8 * 64;
  const auto first = encode_traffic(plan, model, 2);
  const auto second = encode_traffic(plan, model, 1);
  const auto third = encode_traffic(plan, model, 0);
  CHECK(first.halos == border * kFloat);
  CHECK(second.halos == (2 * border + halving) * kFloat);
  CHECK(third.halos == (border + halving) * kFloat);
  CHECK(first.moments == 10 * (8 + 2 * 4) * 8);
  CHECK(first.attention == decode_traffic(plan, model, 2).attention);
  CHECK(first.collected == 0);
  CHECK(third.collected == 4 * 10 * 32 * kFloat);
  CHECK(plan::predict_traffic(plan, model)[0].of("vae") ==
        third.total() + decode_traffic(plan, model, 0).total());
}

TEST_CASE("of tiles only the results are sent, and of several pictures so many times as much") {
  const auto model = small_model();
  auto request = square_request();
  request.vae_tiling = true;
  const auto tiled = small_plan(request, {.pp = 2, .vae = 2});
  // Tiles of 16 latents, one every 12: three and three, 16, 16 and 8 long. The second decoder has
  // those with odd numbers.
  const auto told = decode_traffic(tiled, model, 0);
  CHECK(told.total() == told.collected);
  CHECK(told.collected == (16 * 16 + 16 * 16 + 16 * 8 + 8 * 16) * 4 * 3 * kFloat);
  CHECK(decode_traffic(tiled, model, 1).total() == 0);

  request = square_request();
  const auto one = small_plan(request, {.pp = 2, .vae = 2});
  request.images_per_prompt = 3;
  const auto three = small_plan(request, {.pp = 2, .vae = 2});
  CHECK(decode_traffic(three, model, 0).total() == 3 * decode_traffic(one, model, 0).total());
  request.dtype = ComputeType::bfloat16;
  const auto half = small_plan(request, {.pp = 2, .vae = 2});
  CHECK(2 * decode_traffic(half, model, 0).halos == decode_traffic(three, model, 0).halos);
  CHECK(decode_traffic(half, model, 0).moments == decode_traffic(three, model, 0).moments);
  // float16 is decoded in float32 where the checkpoint asks for it.
  request.dtype = ComputeType::float16;
  for (const bool upcast : {false, true}) {
    auto asking = model;
    asking.vae.force_upcast = upcast;
    const auto plan = small_plan(request, {.pp = 2, .vae = 2});
    CHECK(decode_traffic(plan, asking, 0).halos ==
          decode_traffic(upcast ? three : half, model, 0).halos);
  }
}

TEST_CASE("one decoder sends nothing but what it holds of the latents for it") {
  const auto model = small_model();
  auto request = square_request();
  request.steps = 5;
  const auto plan = small_plan(request, {.ulysses = 2});
  CHECK(decode_traffic(plan, model, 0).total() == 0);
  const auto traffic = plan::predict_traffic(plan, model);
  CHECK(traffic[0].of("rows") == 0);
  CHECK(traffic[1].of("rows") == 4 * 16 * 32 * kFloat);
  request.progress_interval = 2;
  request.progress_content = ProgressContent::preview;
  const auto shown = small_plan(request, {.ulysses = 2});
  CHECK(plan::predict_traffic(shown, model)[1].of("rows") == 3 * traffic[1].of("rows"));
}
