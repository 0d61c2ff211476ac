#include <algorithm>
#include <string>

#include "controller/plan/plan.h"
#include "controller/plan/traffic.h"
#include "tests/spec/published_flux2.h"
#include "tests/spec/published_hunyuan.h"
#include "tests/spec/published_krea2.h"
#include "tests/spec/published_qwen_image.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

wire::ImageRequest request_of(double guidance) {
  wire::ImageRequest request;
  request.prompts = {"a red circle"};
  request.guidance_scale = guidance;
  request.dtype = ComputeType::bfloat16;
  request.max_sequence_length = 0;
  return request;
}

/// PixArt-XL-2-1024-MS's transformer: PixArt-Σ's and what it makes of size and aspect.
constexpr std::uint64_t kPixArtXlElements = 611'349'152;

std::uint64_t model_text_bytes(const spec::ModelSpec& model) {
  return spec::weight_bytes_around(model).text_encoder;
}

std::uint64_t most_of(const plan::Plan& plan, std::uint64_t plan::ActorMemory::*part) {
  std::uint64_t most = 0;
  for (const auto& actor : plan.memory)
    most = std::max(most, actor.*part);
  return most;
}

std::uint64_t peak_of(const plan::Plan& plan) {
  std::uint64_t most = 0;
  for (const auto& actor : plan.memory)
    most = std::max(most, actor.peak());
  return most;
}

/// Plans at 1 to 16 actors by pipeline, by heads and by weights.
void check_plans(const std::string& name, const spec::ModelSpec& model, double guidance,
                 std::uint64_t elements) {
  const auto request = request_of(guidance);
  const auto single = plan::make_plan(model, request, {});
  CHECK(single.request.height == 1024);
  CHECK(single.request.max_sequence_length == model.text_tokens);
  CHECK(single.memory[0].weights <= 2 * elements);
  CHECK(single.memory[0].weights > 2 * elements * 9 / 10);
  const auto& alone = single.memory[0];
  // An exact job on one actor keeps nothing but what its blocks make of the caption.
  if (!model.transformer.joint) {
    const auto& transformer = model.transformer;
    const auto tokens =
        static_cast<std::uint64_t>(transformer.caption_tokens(single.request.max_sequence_length));
    const auto width = static_cast<std::uint64_t>(transformer.inner_dim());
    const auto layers = static_cast<std::uint64_t>(transformer.num_layers);
    const auto pooled = static_cast<std::uint64_t>(transformer.pooled_width);
    CHECK(alone.kv == layers * 2 * 2 * 2 * width * tokens + 2 * 2 * pooled);
  }
  // The T5-XXL or mT5 passes through block by block, and the decoder has the picture in full size.
  CHECK(alone.text < model_text_bytes(model) / 3);
  CHECK(alone.vae > alone.decoder + 1024 * 1024 * 128 * 2);
  CHECK(alone.peak() == alone.weights + std::max({alone.kv + alone.activations, alone.text,
                                                  alone.vae + alone.activations}));
  std::uint64_t before = alone.peak();
  for (const int actors : {2, 4, 8, 16}) {
    CAPTURE(actors);
    const auto by_stages = plan::make_plan(model, request, {.pp = actors});
    const auto by_weights = plan::make_plan(model, request, {.tp = actors});
    const auto by_rows = plan::make_plan(model, request, {.ulysses = 2, .ring = actors / 2});
    const auto weights = &plan::ActorMemory::weights;
    CHECK(most_of(by_stages, weights) <
          single.memory[0].weights * 22 / (10 * actors) + 2 * elements / 20);
    CHECK(most_of(by_weights, weights) < single.memory[0].weights);
    CHECK(most_of(by_rows, weights) == single.memory[0].weights);
    CHECK(most_of(by_rows, &plan::ActorMemory::activations) <
          most_of(single, &plan::ActorMemory::activations));
    // Of an actor in all: what is split by weights and decoded together falls at every step.
    const auto peak =
        std::min(peak_of(plan::make_plan(model, request, {.tp = actors, .vae = actors})),
                 peak_of(plan::make_plan(model, request, {.pp = actors, .vae = actors})));
    CHECK(peak < before);
    CHECK(peak >= single.memory[0].weights / actors);
    before = peak;
    for (const auto& plan : {by_stages, by_weights, by_rows})
      CHECK(plan::predict_traffic(plan, model).size() == static_cast<std::size_t>(actors));
    MESSAGE(name << " at " << actors << " actors, GB an actor at most: weights by pp "
                 << double(most_of(by_stages, weights)) / 1e9 << ", by tp "
                 << double(most_of(by_weights, weights)) / 1e9
                 << ", by ulysses 2 × ring whole; in all " << double(peak) / 1e9);
  }
}

}  // namespace

TEST_CASE("text encoder and decoder take memory as they are computed, not as they are stored") {
  const PublishedJointFolder folder = published_sd3(kSd3MediumConfig);
  const auto model = spec::read_model_spec(folder.path());
  auto request = request_of(7);
  const auto half = plan::make_plan(model, request, {}).memory[0];
  request.dtype = ComputeType::float32;
  const auto single = plan::make_plan(model, request, {}).memory[0];
  // The largest part of the encoders is a block of T5-XXL, which is stored in 16 bits.
  CHECK(single.text == 2 * half.text);
  CHECK(single.decoder == 2 * half.decoder);
}

TEST_CASE("published models that cross-attend are planned at one to sixteen actors") {
  const PublishedTransformer xl{kPixArtXl1024Config, 0, 0, 0};
  const PublishedJointFolder pixart(kPixArtModelIndex, kPixArtScheduler, xl,
                                    {{"text_encoder", "tokenizer", kT5XxlConfig, false, false}},
                                    kSdVaeConfig);
  check_plans("PixArt-XL", spec::read_model_spec(pixart.path()), 4.5, kPixArtXlElements);
  const auto sigma = published_sigma();
  check_plans("PixArt-Σ", spec::read_model_spec(sigma.path()), 4.5, kPixArtSigmaConfig.elements);
  const auto hunyuan = published_hunyuan(kHunyuanV12Config);
  check_plans("HunyuanDiT", spec::read_model_spec(hunyuan.path()), 6, kHunyuanV12Config.elements);
}

TEST_CASE("published joint models are planned at one to sixteen actors") {
  const auto medium = published_sd3(kSd3MediumConfig);
  check_plans("SD3 medium", spec::read_model_spec(medium.path()), 7, kSd3MediumConfig.elements);
  const auto large = published_sd3(kSd35LargeConfig);
  check_plans("SD3.5 large", spec::read_model_spec(large.path()), 3.5, kSd35LargeConfig.elements);
  const auto dev = published_flux(kFluxDevConfig);
  check_plans("FLUX.1 dev", spec::read_model_spec(dev.path()), 3.5, kFluxDevConfig.elements);
  const auto chroma = published_chroma();
  check_plans("Chroma", spec::read_model_spec(chroma.path()), 5, kChromaConfig.elements);
  const auto ovis = published_ovis();
  check_plans("Ovis-Image", spec::read_model_spec(ovis.path()), 5, kOvisImageConfig.elements);
  const auto zimage = spec::read_model_spec(published_zimage().path());
  check_plans("Z-Image", zimage, 5, kZImageConfig.elements);
  // The last layer's states are not asked for, so it is not read.
  CHECK(model_text_bytes(zimage) == 2 * 3'921'534'720);
  auto request = request_of(0);
  CHECK(!plan::make_plan(zimage, request, {}).guidance);
  request.guidance_scale = 0.5;
  CHECK(plan::make_plan(zimage, request, {}).guidance);
  const auto longcat = published_longcat();
  check_plans("LongCat-Image", spec::read_model_spec(longcat.path()), 4.5,
              kLongCatImageConfig.elements);
  const auto qwen = published_qwen_image();
  check_plans("Qwen-Image", spec::read_model_spec(qwen.path()), 4, kQwenImageConfig.elements);
  const auto krea = published_krea2();
  check_plans("Krea 2", spec::read_model_spec(krea.path()), 4.5, kKrea2Config.elements);
  const auto klein = published_klein(kKlein4bConfig, kQwen34bConfig);
  check_plans("FLUX.2-klein 4B", spec::read_model_spec(klein.path()), 4, kKlein4bConfig.elements);
  const auto larger = published_klein(kKlein9bConfig, kQwen38bConfig, false);
  check_plans("FLUX.2-klein base 9B", spec::read_model_spec(larger.path()), 4,
              kKlein9bConfig.elements);
}

TEST_CASE("FLUX.1 Fill and Depth are refused without the pictures that they need") {
  const auto fill =
      spec::read_model_spec(published_flux(kFluxFillConfig, "FluxFillPipeline").path());
  const auto depth =
      spec::read_model_spec(published_flux(kFluxDepthConfig, "FluxControlPipeline").path());
  auto request = request_of(30);
  const auto refused = [&](const spec::ModelSpec& model) {
    return error_of([&] { plan::make_plan(model, request, {}); });
  };
  CHECK(contains(refused(fill), "`init_image` is missing: FluxFillPipeline paints within"));
  CHECK(contains(refused(depth), "`control_images` is missing"));
  request.control_images = {{.blob = 3, .bytes = 100, .height = 64, .width = 64}};
  request.control_scale = {0.5};
  CHECK(contains(refused(depth), "`control_scale` is a ControlNet's"));
  request.control_scale.clear();
  CHECK(contains(refused(depth), "has no encoder"));
}

TEST_CASE("FLUX.2-klein is guided unless it was distilled, and begins with no picture") {
  const auto model = spec::read_model_spec(published_klein(kKlein4bConfig, kQwen34bConfig).path());
  const auto base =
      spec::read_model_spec(published_klein(kKlein4bConfig, kQwen34bConfig, false).path());
  auto request = request_of(4);
  CHECK(!plan::make_plan(model, request, {}).guidance);
  CHECK(plan::make_plan(base, request, {.cfg = 2}).guidance);
  CHECK(plan::make_plan(base, request, {}).latent_channels == 128);
  CHECK(plan::make_plan(base, request, {}).token_rows == 64);
  request.guidance_scale = 1;
  CHECK(!plan::make_plan(base, request, {}).guidance);
  request.init_image_bytes = 100;
  request.init_image_blob = 1;
  request.init_image_height = request.init_image_width = 64;
  CHECK(contains(error_of([&] { plan::make_plan(base, request, {}); }),
                 "`images` are what this model edits"));
}

TEST_CASE("Qwen-Image is guided where a negative prompt is given, and takes no picture yet") {
  const auto folder = published_qwen_image();
  const auto model = spec::read_model_spec(folder.path());
  auto request = request_of(4);
  const auto without = plan::make_plan(model, request, {});
  CHECK(!without.guidance);
  CHECK(without.request.guidance_scale == 1);
  REQUIRE(without.warnings.size() == 1);
  CHECK(contains(without.warnings[0], "guides only where a negative prompt is given"));
  CHECK(contains(error_of([&] { plan::make_plan(model, request, {.cfg = 2}); }),
                 "no negative prompt is given"));
  request.negative_prompt = "";
  const auto guided = plan::make_plan(model, request, {.cfg = 2});
  CHECK(guided.guidance);
  CHECK(guided.warnings.empty());
  request.vae_tiling = true;
  CHECK(contains(error_of([&] { plan::make_plan(model, request, {}); }), "decoded whole"));
  request.vae_tiling = false;
  request.init_image_bytes = 100;
  request.init_image_blob = 1;
  request.init_image_height = request.init_image_width = 64;
  CHECK(contains(error_of([&] { plan::make_plan(model, request, {}); }), "from text alone"));
}

TEST_CASE("requests that a joint model cannot meet are refused with the reason") {
  const auto folder = published_flux(kFluxDevConfig);
  const auto model = spec::read_model_spec(folder.path());
  const auto refusal = [&](const wire::ImageRequest& request, const wire::Parallelism& mix) {
    return error_of([&] { plan::make_plan(model, request, mix); });
  };
  auto request = request_of(3.5);
  CHECK(contains(refusal(request, {.cfg = 2}), "takes the guidance scale as an input"));
  request.clean_caption = true;
  CHECK(contains(refusal(request, {}), "clean_caption"));
  request = request_of(3.5);
  request.resolution_binning = true;
  CHECK(contains(refusal(request, {}), "resolution_binning"));
  const auto medium = published_sd3(kSd3MediumConfig);
  const auto sd3 = spec::read_model_spec(medium.path());
  request = request_of(7);
  request.height = 4096;
  CHECK(contains(error_of([&] { plan::make_plan(sd3, request, {}); }), "positions for up to 3072"));
}
