#include "controller/jobs/replan.h"
#include "controller/plan/plan.h"
#include "models/spec/transformer_spec.h"
#include "tests/controller/planning.h"
#include "tests/support/doctest.h"
#include "tests/support/text.h"

using namespace troupe;
using test::sample_model;
using test::square_request;
using testing::has;

namespace {

wire::ImageRequest cached_request(Method method = Method::exact, int patches = 1) {
  auto request = square_request(method, patches);
  request.step_cache = StepCacheRule::first_block;
  return request;
}

std::string refusal(const wire::ImageRequest& request) {
  try {
    plan::make_plan(sample_model(), request, {});
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("a plan says which threshold a step cache has, and refuses what it cannot be") {
  auto request = cached_request();
  CHECK(plan::make_plan(sample_model(), request, {}).request.step_cache_threshold == 0.05);
  request.step_cache = StepCacheRule::teacache;
  CHECK(plan::make_plan(sample_model(), request, {}).request.step_cache_threshold == 0.25);
  request.step_cache_threshold = 0.4;
  const auto plan = plan::make_plan(sample_model(), request, {});
  CHECK(plan.request.step_cache_threshold == 0.4);
  CHECK(has(plan::to_text(plan), "step cache teacache up to 0.4"));
  request.step_cache_threshold = 10.5;
  CHECK(has(refusal(request), "10.5"));
  request.step_cache_threshold = -1;
  CHECK(has(refusal(request), "above 0"));
  request.step_cache = StepCacheRule::none;
  request.step_cache_threshold = 0.1;
  CHECK(has(refusal(request), "`step_cache_threshold` needs `step_cache`"));
}

TEST_CASE("what a step cache keeps is in the plan's memory, twice at the first stage") {
  for (const int pp : {1, 2}) {
    const auto with = plan::make_plan(sample_model(), cached_request(), {.pp = pp});
    const auto without = plan::make_plan(sample_model(), square_request(), {.pp = pp});
    const std::uint64_t one = 2 * 16 * 16 * 192 * 4;  // branches × tokens × width × float32
    for (int rank = 0; rank < pp; ++rank)
      CHECK(with.memory[rank].kv == without.memory[rank].kv + (rank == 0 ? 2 : 1) * one);
  }
}

TEST_CASE("a job with a step cache that goes on after a loss says where the cache began anew") {
  auto exact = plan::make_plan(sample_model(), cached_request(), {});
  jobs::add_refill(exact, 0);
  CHECK(exact.request.refill_steps.empty());
  jobs::add_refill(exact, 7);
  jobs::add_refill(exact, 7);
  jobs::add_refill(exact, 20);
  CHECK(exact.request.refill_steps == std::vector<std::int32_t>{7});
  CHECK(plan::make_plan(sample_model(), exact.request, {}).is_whole(7));

  auto plain = plan::make_plan(sample_model(), square_request(), {});
  jobs::add_refill(plain, 7);
  CHECK(plain.request.refill_steps.empty());
  auto request = square_request();
  request.refill_steps = {7};
  CHECK(has(refusal(request), "`refill_steps` needs"));

  auto patched = plan::make_plan(sample_model(), cached_request(Method::pipefusion, 4), {});
  jobs::add_refill(patched, 7);
  CHECK(patched.request.refill_steps == std::vector<std::int32_t>{7});
}

TEST_CASE("TeaCache has the published polynomials, and the change itself where there is none") {
  CHECK(spec::teacache_polynomial(spec::TransformerSpec(spec::FluxSpec{})).size() == 5);
  CHECK(spec::teacache_polynomial(spec::TransformerSpec(spec::Sd3Spec{})) ==
        std::vector<double>{1, 0});
  spec::WanSpec wan;
  wan.attention_head_dim = 128;
  wan.num_attention_heads = 12;
  CHECK(spec::teacache_polynomial(spec::TransformerSpec(wan)).front() == 2.39676752e+03);
  wan.num_attention_heads = 40;
  CHECK(spec::teacache_polynomial(spec::TransformerSpec(wan)).front() == -5784.54975374);
  wan.num_attention_heads = 3;
  CHECK(spec::teacache_polynomial(spec::TransformerSpec(wan)).size() == 2);
}
