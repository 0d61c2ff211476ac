#include "controller/plan/cost_model.h"

#include <rapidcheck.h>

#include "controller/plan/layout.h"
#include "controller/plan/link_cost.h"
#include "tests/controller/planning.h"
#include "tests/support/doctest.h"

using namespace troupe;
using plan::estimate_cost;
using plan::JobShape;
using plan::Machine;
using plan::ModelShape;

namespace {

/// One width, one head, no text, no launches, infinitely quick memory and full speed at any size.
ModelShape bare_model(int layers) {
  ModelShape model;
  model.layers = layers;
  model.width = 100;
  model.heads = 4;
  model.weights_per_block = 14 * 100 * 100;
  return model;
}

Machine bare_machine() {
  Machine machine;
  machine.device = {.half_flops = 2e9,
                    .float_flops = 1e9,
                    .attention_share = 0.5,
                    .bandwidth = 1e300,
                    .memory = 0,
                    .launch = 0,
                    .queues = true,
                    .half_speed_elements = 0};
  machine.inside = machine.between = {0, 1e300};
  return machine;
}

JobShape bare_job(Method method, int rows, int patches, int warmup) {
  JobShape job;
  job.method = method;
  job.patches = plan::split_rows(rows, patches);
  job.columns = 10;
  job.guidance = false;
  job.steps = 10;
  job.synchronous_steps = method == Method::exact ? job.steps : warmup;
  job.decodes = false;
  return job;
}

double seconds(const ModelShape& model, const JobShape& job, const mesh::Degrees& degrees,
               const Machine& machine) {
  return estimate_cost(model, job, degrees, 1, machine).total();
}

mesh::Degrees any_degrees() {
  mesh::Degrees degrees;
  degrees.dp = *rc::gen::inRange(1, 3);
  degrees.cfg = *rc::gen::inRange(1, 3);
  degrees.pp = *rc::gen::inRange(1, 4);
  degrees.ring = *rc::gen::inRange(1, 4);
  degrees.ulysses = *rc::gen::inRange(1, 4);
  degrees.tp = *rc::gen::inRange(1, 3);
  return degrees;
}

JobShape any_job() {
  const auto method =
      *rc::gen::element<Method>(Method::exact, Method::pipefusion, Method::distrifusion);
  auto job = bare_job(method, 24, method == Method::exact ? 1 : *rc::gen::inRange(1, 9),
                      *rc::gen::inRange(0, 4));
  job.columns = 24;
  job.pictures = 2;
  job.guidance = true;
  job.predict = method != Method::exact && *rc::gen::arbitrary<bool>();
  return job;
}

}  // namespace

TEST_CASE("FLOPs of one actor, by hand") {
  // 40 × 10 tokens: products 2 · 400 · 140,000 FLOP, attention 4 · 400 · 400 · 100 at half speed.
  const double block = 2.0 * 400 * 140'000 / 1e9 + 4.0 * 400 * 400 * 100 / 0.5e9;
  const auto cost =
      estimate_cost(bare_model(8), bare_job(Method::exact, 40, 1, 0), {}, 1, bare_machine());
  CHECK(cost.synchronous == doctest::Approx(10 * 8 * block));
  CHECK(cost.patched == 0);
  CHECK(cost.computing == doctest::Approx(cost.synchronous));
  CHECK(cost.transferring == 0);
  auto half = bare_job(Method::exact, 40, 1, 0);
  half.dtype = ComputeType::float16;
  CHECK(seconds(bare_model(8), half, {}, bare_machine()) == doctest::Approx(cost.synchronous / 2));
}

TEST_CASE("with free links every exact split of the work is a split of the time") {
  const auto model = bare_model(8);
  auto job = bare_job(Method::exact, 40, 1, 0);
  const double one = seconds(model, job, {}, bare_machine());
  for (const auto& degrees : {mesh::Degrees{.ring = 4}, mesh::Degrees{.ulysses = 4},
                              mesh::Degrees{.tp = 4}, mesh::Degrees{.ring = 2, .ulysses = 2}})
    CHECK(seconds(model, job, degrees, bare_machine()) == doctest::Approx(one / 4));
  // Stages without patches wait for each other.
  CHECK(seconds(model, job, {.pp = 4}, bare_machine()) == doctest::Approx(one));
  job.guidance = true;
  CHECK(seconds(model, job, {}, bare_machine()) == doctest::Approx(2 * one));
  CHECK(seconds(model, job, {.cfg = 2}, bare_machine()) == doctest::Approx(one));
}

TEST_CASE("whole steps go through the stages in parts of the batch, as the plan has them") {
  const auto model = bare_model(8);
  auto job = bare_job(Method::exact, 40, 1, 0);
  job.pictures = 3;
  job.guidance = true;
  const double item = seconds(model, bare_job(Method::exact, 40, 1, 0), {}, bare_machine()) / 10;
  CHECK(seconds(model, job, {}, bare_machine()) == doctest::Approx(10 * 6 * item));
  // Six items in four parts of 2, 2, 1, 1: the last stage waits for the first one and takes six.
  CHECK(seconds(model, job, {.pp = 2}, bare_machine()) == doctest::Approx(10 * 8 * item / 2));
  // Six parts through four stages: 6 + 3 quarters.
  CHECK(seconds(model, job, {.pp = 4}, bare_machine()) == doctest::Approx(10 * 9 * item / 4));
  // Three items of each branch, one part each.
  CHECK(seconds(model, job, {.cfg = 2, .pp = 2}, bare_machine()) ==
        doctest::Approx(10 * 4 * item / 2));
  plan::Engine whole;
  whole.parts_of_batch = false;
  CHECK(estimate_cost(model, job, {.pp = 4}, 1, bare_machine(), whole).total() ==
        doctest::Approx(10 * 6 * item));
  // On one core there is nothing to win.
  auto shared = bare_machine();
  shared.busy_devices_per_host = 1;
  CHECK(seconds(model, job, {.pp = 4}, shared) == doctest::Approx(10 * 6 * item));
}

TEST_CASE("stages that were listed set the pace") {
  const auto model = bare_model(8);
  const auto job = bare_job(Method::pipefusion, 40, 4, 2);
  const auto patched = [&](const std::vector<int>& stages) {
    return estimate_cost(model, job, {.pp = 2}, 1, bare_machine(), {}, stages).patched;
  };
  const double block = patched({4, 4}) / (8 * 4 * 4 + 4);
  CHECK(patched({}) == patched({4, 4}));
  CHECK(patched({7, 1}) == doctest::Approx(block * (8 * 4 * 7 + 1)));
}

TEST_CASE("blocks cost what they compute, the ends what stands around them") {
  auto model = bare_model(4);
  CHECK(plan::block_costs(model, 400) ==
        std::vector<double>(4, 2.0 * 400 * 140'000 + 4.0 * 400 * 400 * 100));
  CHECK(plan::stage_sizes(model, bare_job(Method::exact, 40, 1, 0), 3) ==
        std::vector<int>{2, 1, 1});
  // An embedding as costly as two blocks.
  model.embedding_flops = 2 * plan::block_costs(model, 400)[0] / 400;
  CHECK(plan::stage_sizes(model, bare_job(Method::exact, 40, 1, 0), 2) == std::vector<int>{1, 3});
}

TEST_CASE("pipefusion: warm-up steps go stage by stage, the others side by side") {
  const auto model = bare_model(8);
  const double step = seconds(model, bare_job(Method::exact, 40, 1, 0), {}, bare_machine()) / 10;
  const auto cost =
      estimate_cost(model, bare_job(Method::pipefusion, 40, 4, 2), {.pp = 4}, 1, bare_machine());
  CHECK(cost.synchronous == doctest::Approx(2 * step));
  const double micro = step / 16;  // a quarter of the rows on a quarter of the blocks
  CHECK(cost.patched == doctest::Approx(8 * 4 * micro + 3 * micro));
}

TEST_CASE("uneven heads and rows cost what the fullest rank has") {
  auto model = bare_model(1);
  model.heads = 3;
  model.weights_per_block = 0;
  const auto job = bare_job(Method::exact, 40, 1, 0);
  const double one = seconds(model, job, {}, bare_machine());
  CHECK(seconds(model, job, {.ulysses = 2}, bare_machine()) == doctest::Approx(one * 2 / 3));
  CHECK(seconds(model, job, {.ring = 3}, bare_machine()) == doctest::Approx(one * 14 / 40));
}

TEST_CASE("exposed transfers are waited for, others only beyond what hides them") {
  const auto model = bare_model(2);
  const auto job = bare_job(Method::exact, 40, 1, 0);
  auto machine = bare_machine();
  machine.inside = {0, 1e6};
  const double hidden = 400 * 100 * 4;  // bytes
  const auto extra = [&](const JobShape& shape, const mesh::Degrees& degrees) {
    return seconds(model, shape, degrees, machine) - seconds(model, shape, degrees, bare_machine());
  };
  // Half of the own rows' q, k, v and of the output, in 10 steps of 2 blocks.
  CHECK(extra(job, {.ulysses = 2}) == doctest::Approx(20 * 4 * (hidden / 2) / 2 / 1e6));
  CHECK(extra(job, {.tp = 2}) == doctest::Approx(20 * 3 * 2 * hidden / 2 / 1e6));
  machine.inside.bandwidth = 1e8;
  CHECK(extra(job, {.ring = 2}) == doctest::Approx(0).epsilon(1e-12));
  machine.inside.bandwidth = 1e5;
  CHECK(extra(job, {.ring = 2}) > 0);
  // DistriFusion hides more behind a wave than ring behind its attention.
  machine.inside.bandwidth = 4e6;
  CHECK(extra(bare_job(Method::distrifusion, 40, 2, 0), {.ring = 2}) < extra(job, {.ring = 2}));
}

TEST_CASE("a GPU reads and writes between products, a CPU's speed has that in it") {
  auto model = bare_model(2);
  model.elementwise_per_block = 30;
  const auto job = bare_job(Method::exact, 40, 1, 0);
  auto machine = bare_machine();
  const double before = seconds(model, job, {}, machine);
  machine.device.bandwidth = 2e7;
  const double bytes = 30 * 400 * 100 * 4;
  CHECK(seconds(model, job, {}, machine) == doctest::Approx(before + 20 * bytes / 2e7));
  // Shards of the weights each read all of it.
  CHECK(seconds(model, job, {.tp = 4}, machine) > 20 * bytes / 2e7);
  machine.device.queues = false;
  machine.device.bandwidth = 1e9;
  CHECK(seconds(model, job, {}, machine) == doctest::Approx(before));
}

TEST_CASE("attention pads heads to whole multiples where a device does") {
  auto model = bare_model(1);
  model.weights_per_block = 0;
  const auto job = bare_job(Method::exact, 40, 1, 0);
  auto machine = bare_machine();
  const double before = seconds(model, job, {}, machine);
  machine.device.head_step = 32;  // heads of 25 channels
  CHECK(seconds(model, job, {}, machine) == doctest::Approx(before * 32 / 25));
  machine.device.head_step = 5;
  CHECK(seconds(model, job, {}, machine) == doctest::Approx(before));
}

TEST_CASE("all-to-alls between the sockets of a host are slow, those within one are not") {
  auto machine = plan::machine_of("l40x8");
  const double direct = 1 / machine.inside.bandwidth;
  const auto ulysses = [&](const mesh::Degrees& degrees) {
    return plan::link_costs_of(degrees, machine).ulysses.seconds_per_byte;
  };
  CHECK(ulysses({.ulysses = 4}) == doctest::Approx(direct));
  CHECK(ulysses({.pp = 2, .ulysses = 4}) == doctest::Approx(direct));
  CHECK(ulysses({.ulysses = 8}) == doctest::Approx(direct / machine.across_sockets));
  CHECK(plan::link_costs_of({.ring = 8}, machine).ring.seconds_per_byte == doctest::Approx(direct));
  machine.devices_per_socket = 0;
  CHECK(ulysses({.ulysses = 8}) == doctest::Approx(direct));
}

TEST_CASE("an engine without overlap waits for what others hide, one that waits for its host not") {
  const auto model = bare_model(2);
  auto machine = bare_machine();
  machine.inside = {0, 1e8};
  const auto ring = bare_job(Method::exact, 40, 1, 0);
  const auto patches = bare_job(Method::distrifusion, 40, 2, 0);
  for (const auto& job : {ring, patches}) {
    const auto of = [&](const plan::Engine& engine) {
      return estimate_cost(model, job, {.ring = 2}, 1, machine, engine).total();
    };
    CHECK(of({.overlaps = false}) - of({}) == doctest::Approx(20 * 2 * 200 * 100 * 4 / 1e8));
    // A second of the host for each block: the transfer fits in, whoever waits for it.
    CHECK(of({.call_overhead = 1, .overlaps = false}) == doctest::Approx(20));
  }
}

TEST_CASE("levels of a U-Net are small products of their own") {
  auto model = bare_model(1);
  model.weights_per_block = 90'000;
  model.levels = {{.share = 1, .width = 50, .weights = 60'000, .attentions = 0},
                  {.share = 0.25, .width = 200, .weights = 120'000, .attentions = 2}};
  model.told_per_position = 2 * 2 * 200 / 4;
  model.told_per_column = 300;
  model.telling_layers = 9;
  const auto job = bare_job(Method::exact, 40, 1, 0);
  const double products = 2 * 400 * (60'000 + 120'000 / 4.0) / 1e9;
  const double attention = 2 * 4 * 100.0 * 100 * 200 / 0.5e9;
  auto machine = bare_machine();
  CHECK(seconds(model, job, {}, machine) == doctest::Approx(10 * (products + attention)));
  auto bytes = job;
  bytes.weight_dtype = WeightChoice::int8;
  CHECK(seconds(model, bytes, {}, machine) == doctest::Approx(10 * (products / 3 + attention)));
  // The level of fewer positions fills fewer processors.
  machine.device.half_speed_elements = 100 * 200;
  CHECK(seconds(model, job, {}, machine) ==
        doctest::Approx(
            10 * (2 * 400 * 60'000 / 1e9 * 2 + 2 * 100 * 120'000 / 1e9 * 2 + attention * 2)));
  // What a patch tells is waited for in synchronous steps, layer by layer, and hidden in others.
  machine = bare_machine();
  machine.inside = {1e-3, 1e9};
  auto stale = bare_job(Method::distrifusion, 40, 2, 4);
  const double told = (200 * model.told_per_position + 10 * model.told_per_column) * 4 / 1e9;
  const auto cost = [&] { return estimate_cost(model, stale, {.ring = 2}, 1, machine); };
  CHECK(cost().synchronous == doctest::Approx(4 * ((products + attention) / 2 + told + 9 * 1e-3)));
  CHECK(cost().patched == doctest::Approx(6 * (products + attention) / 2));
  machine.inside = {0, 1e3};
  CHECK(cost().patched > 6 * 0.9 * told * 1e6);
  stale.tells = false;
  CHECK(cost().patched == doctest::Approx(6 * (products + attention) / 2));
}

TEST_CASE("what the next stage takes up crosses the edge, too") {
  auto machine = bare_machine();
  machine.inside.bandwidth = 1e6;
  const auto at = [&](std::vector<int> skip_from) {
    auto model = bare_model(8);
    model.skip_from = std::move(skip_from);
    return seconds(model, bare_job(Method::exact, 12, 1, 0), {.pp = 2}, machine);
  };
  const double none = at({}), one = at({-1, -1, -1, -1, -1, -1, -1, 0}),
               three = at({-1, -1, -1, -1, -1, 2, 1, 0});
  CHECK(at({-1, -1, -1, 0, -1, -1, -1, -1}) == none);  // within a stage
  CHECK(one > none * 1.01);
  CHECK(three - none == doctest::Approx(3 * (one - none)));
}

TEST_CASE("a better machine is never slower") {
  CHECK(rc::check([] {
    const auto model = plan::shape_of(test::sample_model(), test::square_request());
    const auto degrees = any_degrees();
    const auto job = any_job();
    auto machine = plan::machine_of("l40x16");
    const double before = seconds(model, job, degrees, machine);
    RC_ASSERT(before > 0);
    const double factor = *rc::gen::inRange(1, 50);
    auto better = machine;
    switch (*rc::gen::inRange(0, 6)) {
      case 0:
        better.inside.bandwidth *= factor;
        break;
      case 1:
        better.inside.latency /= factor;
        break;
      case 2:
        better.between.bandwidth *= factor;
        break;
      case 3:
        better.device.launch /= factor;
        break;
      case 4:
        better.device.bandwidth *= factor;
        break;
      default:
        better.device.half_speed_elements /= factor;
    }
    RC_ASSERT(seconds(model, job, degrees, better) <= before * (1 + 1e-12));
  }));
}

TEST_CASE("more work is never quicker") {
  CHECK(rc::check([] {
    const auto model = plan::shape_of(test::sample_model(), test::square_request());
    const auto degrees = any_degrees();
    const auto job = any_job();
    const auto machine = plan::machine_of("a100-nvlink-x16");
    const double before = seconds(model, job, degrees, machine);
    auto more = job;
    const int kind = *rc::gen::inRange(0, 3);
    if (kind == 0) more.columns += 8;
    if (kind == 1) more.pictures += 2;
    if (kind == 2) more.steps += 1, more.synchronous_steps += job.method == Method::exact;
    RC_ASSERT(seconds(model, more, degrees, machine) >= before * (1 - 1e-12));
  }));
}

TEST_CASE("a picture to begin with costs its encoding, beside the text where another has that") {
  const auto cost = [](const wire::Parallelism& degrees, double text_flops, bool encodes = true) {
    const auto plan = test::planned(test::square_request(), degrees);
    auto shape = plan::shape_of(test::sample_model(), plan.request);
    shape.text_flops = text_flops;
    auto job = plan::shape_of(plan);
    job.encodes = encodes;
    return estimate_cost(shape, job, plan.degrees, degrees.vae, plan::this_cpu(4));
  };
  const auto alone = cost({}, 0);
  // Half of the decoder's layers at the same sizes, and its attention.
  CHECK(alone.encode > 0.3 * alone.decode);
  CHECK(alone.encode < 0.9 * alone.decode);
  CHECK(alone.total() ==
        doctest::Approx(alone.text + alone.encode + alone.denoise() + alone.decode));
  CHECK(cost({.pp = 2, .vae = 2}, 0).encode < 0.7 * alone.encode);
  // The last stage encodes it while the first has the text; one actor has both.
  CHECK(cost({.pp = 2}, 1e12).encode == 0);
  CHECK(cost({.pp = 2}, 0).encode == doctest::Approx(alone.encode).epsilon(0.1));
  for (const wire::Parallelism& both :
       {wire::Parallelism{}, wire::Parallelism{.ulysses = 2}, wire::Parallelism{.pp = 2, .vae = 2}})
    CHECK(cost(both, 1e12).encode > 0);
  CHECK(cost({}, 0, /*encodes=*/false).encode == 0);
}

TEST_CASE("text encoders run side by side on the actors of a replica, the dearest first") {
  using Places = std::vector<int>;
  CHECK(plan::encoder_places({1, 2, 9}, 1) == Places{0, 0, 0});
  CHECK(plan::encoder_places({1, 2, 9}, 2) == Places{1, 1, 0});
  CHECK(plan::encoder_places({1, 2, 9}, 3) == Places{2, 1, 0});
  CHECK(plan::encoder_places({4, 4, 0}, 8) == Places{0, 1, 0});
  CHECK(plan::busiest_encoder({5, 4, 3}, 2) == 7);
  const auto text = [](const wire::Parallelism& degrees) {
    const auto plan = test::planned(test::square_request(), degrees);
    auto shape = plan::shape_of(test::sample_model(), plan.request);
    shape.text_flops = 4e12;
    shape.text_encoder_flops = {1e12, 3e12};
    auto machine = plan::this_cpu(4);
    machine.busy_devices_per_host = 0;  // each actor has cores of its own
    return estimate_cost(shape, plan::shape_of(plan), plan.degrees, 1, machine).text;
  };
  CHECK(text({.pp = 2}) == doctest::Approx(0.75 * text({})).epsilon(0.01));
  CHECK(text({.pp = 3}) == doctest::Approx(text({.pp = 2})).epsilon(0.01));
}

TEST_CASE("text that is given and latents that are taken cost neither encoder nor decoder") {
  auto request = test::square_request();
  const auto cost = [&] {
    const auto plan = test::planned(request, {});
    auto shape = plan::shape_of(test::sample_model(), plan.request);
    shape.text_flops = 1e12;
    return estimate_cost(shape, plan::shape_of(plan), plan.degrees, 1, plan::this_cpu(1));
  };
  const auto whole = cost();
  CHECK(whole.decode > 0);
  request.output_type = OutputType::latent;
  const auto latents = cost();
  CHECK(latents.decode == 0);
  CHECK(latents.text == whole.text);
  CHECK(latents.denoise() == whole.denoise());
  const auto plan = test::planned(request, {});
  auto job = plan::shape_of(plan);
  job.encodes_text = false;
  auto shape = plan::shape_of(test::sample_model(), plan.request);
  shape.text_flops = 1e12;
  const auto given = estimate_cost(shape, job, plan.degrees, 1, plan::this_cpu(1));
  CHECK(given.text < 0.01 * whole.text);
}

TEST_CASE("the demo model on this kind of CPU takes about what was measured") {
  // benchmarks/pipeline.py: 1.03 s on one actor, 0.65 s with pp 2, 4 patches and one warm-up step,
  // 0.60 s with cfg 2; denoising alone.
  const auto& model = test::sample_model();
  const auto denoise = [&](const wire::ImageRequest& request, const wire::Parallelism& degrees) {
    const auto plan = test::planned(request, degrees);
    return estimate_cost(plan::shape_of(model, plan.request), plan::shape_of(plan), plan.degrees, 1,
                         plan::this_cpu(2))
        .denoise();
  };
  CHECK(denoise(test::square_request(), {}) == doctest::Approx(1.03).epsilon(0.2));
  CHECK(denoise(test::square_request(Method::pipefusion, 4, 1), {.pp = 2}) ==
        doctest::Approx(0.65).epsilon(0.25));
  CHECK(denoise(test::square_request(), {.cfg = 2}) == doctest::Approx(0.60).epsilon(0.25));
}

TEST_CASE("with offload a GPU takes the longer of computing and copying, a CPU the sum of both") {
  auto model = bare_model(8);
  model.stored_per_block = 14 * 100 * 100 + 6 * 100;
  auto machine = bare_machine();
  auto job = bare_job(Method::exact, 10, 1, 0);
  const double kept = seconds(model, job, {}, machine);
  job.offload = OffloadChoice::blocks;
  // float32: four bytes of a value, in each of ten steps.
  const double bytes = 4 * 8 * model.stored_per_block;
  machine.device.host_bandwidth = 10 * bytes / (3 * kept);
  CHECK(seconds(model, job, {}, machine) == doctest::Approx(3 * kept).epsilon(0.02));
  machine.device.host_bandwidth = 10 * bytes / (0.5 * kept);
  CHECK(seconds(model, job, {}, machine) == doctest::Approx(kept));
  machine.device.queues = false;
  const auto cpu = [&](OffloadChoice offload) {
    job.offload = offload;
    return seconds(model, job, {}, machine);
  };
  CHECK(cpu(OffloadChoice::blocks) ==
        doctest::Approx(cpu(OffloadChoice::none) + 0.5 * kept).epsilon(0.02));
  // Two blocks of a stage stay.
  machine.device.queues = true;
  machine.device.host_bandwidth = 1;
  const mesh::Degrees four{.pp = 4};
  job.offload = OffloadChoice::none;
  const double split = seconds(model, job, four, machine);
  job.offload = OffloadChoice::blocks;
  CHECK(seconds(model, job, four, machine) == split);
}
