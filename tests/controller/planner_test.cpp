#include "controller/plan/planner.h"

#include <ctime>
#include <nlohmann/json.hpp>
#include <set>

#include "benchmarks/published_models.h"
#include "controller/plan/report.h"
#include "tests/controller/planning.h"
#include "tests/support/doctest.h"

using namespace troupe;
using plan::choose_degrees;
using plan::machine_of;
using test::sample_model;
using test::square_request;

namespace {

std::tuple<int, int, int, int, int, int> key(const wire::Parallelism& of) {
  return {of.dp, of.cfg, of.pp, of.ulysses, of.ring, of.tp};
}

/// Returns the processor time of this process: another one beside it does not make it more.
double processor_seconds() {
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

}  // namespace

TEST_CASE("candidates come quickest first, each mix once, within the actors") {
  auto request = square_request(Method::pipefusion, 4, 1);
  request.prompts = {"a", "b", "c"};
  const auto machine = machine_of("l40x8");
  const auto found = choose_degrees(sample_model(), request, 6, machine, {.candidates = 1000});
  REQUIRE(found.size() > 5);
  std::set<std::tuple<int, int, int, int, int, int>> seen;
  for (std::size_t i = 0; i < found.size(); ++i) {
    CHECK(found[i].actors() <= 6);
    CHECK(seen.insert(key(found[i].parallelism)).second);
    if (i > 0) CHECK(found[i - 1].cost.total() <= found[i].cost.total() + 1e-9);
    CHECK(found[i].memory > 0);
    CHECK((found[i].sent > 0) == (found[i].actors() > found[i].parallelism.dp));
    CHECK_FALSE(found[i].parallelism.automatic);
  }
  CHECK(seen.contains({1, 1, 1, 1, 1, 1}));
  CHECK(seen.contains({3, 1, 1, 1, 1, 1}));
  CHECK(seen.contains({1, 2, 3, 1, 1, 1}));
  CHECK(seen.contains({1, 1, 5, 1, 1, 1}));
}

TEST_CASE("the choice is the same each time, and more actors are never worse") {
  const auto request = square_request(Method::pipefusion, 4, 1);
  const auto machine = machine_of("a100-nvlink-x16");
  double before = 1e300;
  for (int actors = 1; actors <= 16; ++actors) {
    const auto once = choose_degrees(sample_model(), request, actors, machine);
    const auto again = choose_degrees(sample_model(), request, actors, machine);
    REQUIRE(once.size() == again.size());
    for (std::size_t i = 0; i < once.size(); ++i)
      CHECK(once[i].parallelism == again[i].parallelism);
    CHECK(once[0].cost.total() <= before);
    before = once[0].cost.total();
    const auto* best = plan::best_of(once);
    REQUIRE(best);
    CHECK(best->cost.total() <= 1.03 * once[0].cost.total());
    for (const auto& other : once) {
      if (other.refused.empty() && other.cost.total() <= 1.03 * once[0].cost.total())
        CHECK(best->actors() <= other.actors());
    }
    CHECK(plan::automatic_parallelism(sample_model(), request, actors, machine) ==
          best->parallelism);
  }
}

TEST_CASE("degrees are all that is chosen: every candidate's plan has the request of one actor") {
  auto request = square_request(Method::pipefusion, 5, 2);
  request.prompts = {"a", "b"};
  request.seed = 7;
  const auto alone = plan::make_plan(sample_model(), request, {});
  for (const auto& candidate :
       choose_degrees(sample_model(), request, 8, machine_of("l40x8"), {.candidates = 1000})) {
    const auto plan = plan::make_plan(sample_model(), request, candidate.parallelism);
    CHECK(plan.patches == alone.patches);
    CHECK(plan.synchronous_steps == alone.synchronous_steps);
    CHECK(plan.request.method == Method::pipefusion);
    CHECK(plan.request.num_pipeline_patch == 5);
    CHECK(plan.request.warmup_steps == 2);
    CHECK(plan.request.kv == alone.request.kv);
    CHECK(plan.request.dtype == alone.request.dtype);
    CHECK(plan.request.seed == 7);
    CHECK(candidate.parallelism.stages.empty());
  }
}

TEST_CASE("decoders share a picture where that is quicker, within their replica") {
  const auto decoders = [](int pixels, const plan::Machine& machine) {
    auto request = square_request(Method::pipefusion, 4, 1);
    request.height = request.width = pixels;
    int most = 1;
    for (const auto& candidate : choose_degrees(sample_model(), request, 4, machine)) {
      CHECK(candidate.parallelism.vae <= candidate.actors() / candidate.parallelism.dp);
      most = std::max(most, candidate.parallelism.vae);
    }
    return most;
  };
  CHECK(decoders(256, machine_of("l40x4")) == 1);  // a tenth of a millisecond, and 30 latencies
  CHECK(decoders(256, plan::this_cpu(4)) > 1);
}

TEST_CASE("without guidance no branch is split, and pictures bound dp") {
  auto request = square_request();
  request.guidance_scale = 1;
  for (const auto& candidate :
       choose_degrees(sample_model(), request, 8, machine_of("l40x8"), {.candidates = 1000})) {
    CHECK(candidate.parallelism.cfg == 1);
    CHECK(candidate.parallelism.dp == 1);
  }
}

TEST_CASE("a picture that one decodes sooner is shared where one has no room for it") {
  const auto request = square_request();
  const auto machine = machine_of("l40x8");
  const auto peak = [&](const wire::Parallelism& mix) {
    std::uint64_t most = 0;
    for (const auto& actor : plan::make_plan(sample_model(), request, mix).memory)
      most = std::max(most, actor.peak());
    return most;
  };
  const auto shared = peak({.pp = 2, .vae = 2});
  REQUIRE(shared < peak({.pp = 2}));
  REQUIRE(plan::automatic_parallelism(sample_model(), request, 2, machine, {}).vae == 1);
  const auto picked =
      plan::automatic_parallelism(sample_model(), request, 2, machine, {.memory = shared});
  CHECK(picked.vae == 2);
  CHECK(peak(picked) <= shared);
}

TEST_CASE("mixes beyond the memory limit are marked and not picked") {
  const auto request = square_request(Method::pipefusion, 4, 1);
  const auto machine = machine_of("l40x8");
  const auto all = choose_degrees(sample_model(), request, 4, machine, {.candidates = 1000});
  std::uint64_t least = ~std::uint64_t{0}, most = 0;
  for (const auto& candidate : all) {
    least = std::min(least, candidate.memory);
    most = std::max(most, candidate.memory);
  }
  REQUIRE(least < most);
  const auto limit = (least + most) / 2;
  const auto limited =
      choose_degrees(sample_model(), request, 4, machine, {.memory = limit, .candidates = 1000});
  REQUIRE(limited.size() == all.size());
  int refused = 0;
  for (const auto& candidate : limited) {
    CHECK((candidate.memory > limit) == !candidate.refused.empty());
    refused += !candidate.refused.empty();
    if (!candidate.refused.empty()) CHECK(candidate.refused.starts_with("memory: "));
  }
  CHECK(refused > 0);
  const auto picked =
      plan::automatic_parallelism(sample_model(), request, 4, machine, {.memory = limit});
  for (const auto& candidate : limited)
    if (candidate.parallelism == picked) CHECK(candidate.refused.empty());
  std::string why;
  try {
    plan::automatic_parallelism(sample_model(), request, 4, machine, {.memory = 1000});
  } catch (const std::invalid_argument& error) {
    why = error.what();
  }
  CHECK(why.starts_with("[planner] no mix of degrees on up to 4 actors fits in memory: "));
  CHECK(why.ends_with(" MB per actor, limit 0.00 MB"));
}

TEST_CASE("the table's memory limits simulated devices") {
  auto machine = machine_of("t4x4");
  machine.device.memory = 1000;
  CHECK_THROWS_AS(plan::automatic_parallelism(sample_model(), square_request(), 4, machine),
                  std::invalid_argument);
}

TEST_CASE("actors that share two cores are not taken for more than two") {
  const auto request = square_request(Method::pipefusion, 4, 1);
  const auto own_cores = plan::automatic_parallelism(sample_model(), request, 4, plan::this_cpu(4));
  CHECK(own_cores.cfg * own_cores.pp * own_cores.ulysses * own_cores.ring * own_cores.tp == 4);
  const auto shared = plan::automatic_parallelism(sample_model(), request, 4, plan::this_cpu(4, 2));
  CHECK(shared.cfg * shared.pp * shared.ulysses * shared.ring * shared.tp == 2);
  // Stages of an exact job never compute side by side, so they do not slow each other down.
  const auto seconds = [](int pp) {
    const auto plan = plan::make_plan(sample_model(), square_request(), {.pp = pp});
    return plan::judge({.pp = pp}, plan, sample_model(), plan::this_cpu(4, 1)).cost.denoise();
  };
  CHECK(seconds(4) == doctest::Approx(seconds(1)).epsilon(0.1));
  // One actor with both cores is quicker than one with one.
  CHECK(plan::this_cpu(1, 2).device.float_flops > plan::this_cpu(2, 2).device.float_flops);
}

TEST_CASE("what the request is refused for is said, not that nothing was found") {
  auto request = square_request();
  request.height = 100;
  CHECK_THROWS_WITH(choose_degrees(sample_model(), request, 4, machine_of("l40")),
                    "[plan] `height` is 100: this model takes multiples of 16 from 16 to 16384");
  CHECK_THROWS_WITH(choose_degrees(sample_model(), square_request(), 0, machine_of("l40")),
                    "[planner] actors is 0: at least 1 is needed");
}

TEST_CASE("16 actors are planned for quickly") {
  auto request = square_request(Method::pipefusion, 8, 1);
  request.prompts.assign(16, "a");
  const double start = processor_seconds();
  const auto picked =
      plan::automatic_parallelism(sample_model(), request, 16, machine_of("l40x16"));
  const double seconds = processor_seconds() - start;
  CHECK(picked.dp >= 1);
  MESSAGE("planned in " << seconds * 1e3 << " ms");
  CHECK(seconds < 2);  // 50 ms; sanitizers, shared caches
}

TEST_CASE("published models are planned for 1,024 actors in less than a second") {
  for (const auto* name : {"pixart", "flux", "wan-14b"}) {
    const auto model = published::model_of(name);
    for (const auto method : {Method::exact, Method::pipefusion}) {
      auto request = square_request(method, method == Method::exact ? 1 : 16, 1);
      request.dtype = ComputeType::bfloat16;
      request.guidance_scale = published::guidance_of(name);
      request.max_sequence_length = 0;
      const double start = processor_seconds();
      const auto picked =
          plan::automatic_parallelism(model, request, 1024, machine_of("h100-nvlinkx1024"));
      const double seconds = processor_seconds() - start;
      CHECK(picked.cfg >= 1);
      MESSAGE(std::string(name) << ", " << to_string(method) << ": planned in " << seconds * 1e3
                                << " ms");
      CHECK(seconds < 15);  // 0.1 to 0.8 s; sanitizers, shared caches
    }
  }
}

TEST_CASE("what is tried is bounded, however large cluster and request are") {
  auto model = sample_model();
  auto family = std::get<spec::PixArtSpec>(model.transformer.family);
  family.num_layers = 28;
  family.num_attention_heads = 16;
  model.transformer = spec::TransformerSpec(family);
  const auto took = [&](const wire::ImageRequest& request, const plan::Limits& limits) {
    const double start = processor_seconds();
    auto machine = machine_of("l40x64");
    bool fits = true;
    try {
      plan::automatic_parallelism(model, request, 64, machine, limits);
    } catch (const std::invalid_argument&) {
      fits = false;
    }
    CHECK(fits == (limits.memory == 0));
    return processor_seconds() - start;
  };
  for (const auto method : {Method::exact, Method::pipefusion, Method::distrifusion}) {
    auto request = square_request(method, method == Method::exact ? 1 : 512, 100);
    request.height = request.width = 8192;
    request.steps = 999;  // as many as this sampler can make of 1000 training steps
    request.images_per_prompt = 8;
    for (const std::uint64_t memory : {0, 1000}) {
      const double seconds = took(request, {.memory = memory});
      MESSAGE(to_string(method) << " planned in " << seconds * 1e3 << " ms, limit " << memory);
      CHECK(seconds < 10);  // below 0.5 s; sanitizers, shared caches
    }
  }
}

TEST_CASE("an explanation says what was picked and why, as text and as JSON") {
  wire::JobSpec job;
  job.request = square_request(Method::pipefusion, 4, 1);
  job.parallelism.automatic = true;
  const auto explanation = plan::explain(sample_model(), job, 4, machine_of("l40x4"));
  const auto text = plan::to_text(explanation, sample_model());
  CHECK(text.find("predicted for l40, 4 actors: ") == 0);
  const auto of_more = plan::explain(sample_model(), job, 4, machine_of("l40"));
  CHECK(plan::to_text(of_more, sample_model()).find("predicted for l40, 4 actors on 8 devices: ") ==
        0);
  CHECK(text.find("* " + plan::to_text(explanation.candidates[0].parallelism)) !=
        std::string::npos);
  CHECK(text.find("4/N·p·h·L") != std::string::npos);
  CHECK(text.find("* is the mix that is planned; these are " +
                  std::to_string(explanation.candidates.size()) + " of " +
                  std::to_string(explanation.mixes) + " mixes: ") != std::string::npos);
  CHECK(text.find("e-0") == std::string::npos);
  const auto json = plan::to_json(explanation, sample_model());
  CHECK(json["mixes"] == explanation.mixes);
  CHECK(json["candidates"].size() == explanation.candidates.size());
  CHECK(json["picked"]["seconds"]["total"] == explanation.candidates[0].cost.total());
  CHECK(json["traffic"].size() == static_cast<std::size_t>(explanation.candidates[0].actors()));
  CHECK(json["plan"]["steps"] == 20);

  job.parallelism = {.cfg = 2, .pp = 2};
  const auto fixed = plan::explain(sample_model(), job, 4, machine_of("l40x4"));
  REQUIRE(fixed.candidates.size() == 1);
  CHECK(plan::to_text(fixed.candidates[0].parallelism) == "cfg 2 × pp 2");
  CHECK(fixed.plan.degrees.world() == 4);
}
