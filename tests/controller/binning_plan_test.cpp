#include <nlohmann/json.hpp>

#include "controller/plan/plan.h"
#include "tests/controller/sample_model.h"
#include "tests/support/doctest.h"

using namespace troupe;
using plan::make_plan;
using test::sample_model;

namespace {

wire::ImageRequest binned(int height, int width) {
  wire::ImageRequest request;
  request.prompts = {"a red circle"};
  request.height = height;
  request.width = width;
  request.resolution_binning = true;
  return request;
}

}  // namespace

TEST_CASE("a binned picture is planned at the bin's size and comes out at its own") {
  const auto plan = make_plan(sample_model(), binned(333, 500), {});
  CHECK(plan.request.height == 208);
  CHECK(plan.request.width == 304);
  CHECK(plan.request.output_height == 333);
  CHECK(plan.request.output_width == 500);
  CHECK(plan.latent_height == 26);
  CHECK(plan.latent_width == 38);
  CHECK(plan.token_rows == 13);
  CHECK(plan.patches == std::vector<wire::RowRange>{{0, 13}});
  CHECK(plan::to_text(plan).find("500 × 333, computed at 304 × 208") != std::string::npos);
  const auto json = plan::to_json(plan);
  CHECK(json.at("height") == 333);
  CHECK(json.at("width") == 500);
  CHECK(json.at("computed_height") == 208);
  CHECK(json.at("computed_width") == 304);
}

TEST_CASE("without binning the size computed is the size asked for") {
  auto request = binned(256, 192);
  request.resolution_binning = false;
  request.output_height = 8;  // what a client says of it does not count
  const auto plan = make_plan(sample_model(), request, {});
  CHECK(plan.request.height == 256);
  CHECK(plan.request.output_height == 256);
  CHECK(plan.request.output_width == 192);
  CHECK(plan::to_text(plan).find("computed at") == std::string::npos);
}

TEST_CASE("a binned picture of no size is the native one") {
  const auto plan = make_plan(sample_model(), binned(0, 0), {});
  CHECK(plan.request.height == 256);
  CHECK(plan.request.output_height == 256);
  CHECK(plan.request.output_width == 256);
}

TEST_CASE("memory and initial latents are those of the bin") {
  auto large = binned(2560, 2560);
  const auto plan = make_plan(sample_model(), large, {});
  const auto native = make_plan(sample_model(), binned(256, 256), {});
  CHECK(plan.memory.at(0).activations == native.memory.at(0).activations);
  CHECK(plan.memory.at(0).peak() == native.memory.at(0).peak());
  large.init_latents_blob = 1;
  large.init_latents_bytes = 4 * 32 * 32 * 4;
  large.init_latents_shape = {1, 4, 32, 32};
  CHECK_NOTHROW(make_plan(sample_model(), large, {}));
}

TEST_CASE("HunyuanDiT's pictures come out in the shape that they are computed in") {
  const auto model = spec::read_model_spec(TROUPE_SOURCE_DIR "/tests/fixtures/tiny-hunyuan");
  auto request = binned(1080, 1920);
  request.max_sequence_length = 0;
  auto plan = make_plan(model, request, {});
  CHECK(plan.request.height == 768);
  CHECK(plan.request.width == 1280);
  CHECK(plan.request.output_height == 768);
  CHECK(plan.request.output_width == 1280);
  REQUIRE(plan.warnings.size() == 1);
  CHECK(plan.warnings[0].find("comes out at 1280 x 768") != std::string::npos);
  request.height = 1280;
  request.width = 960;
  plan = make_plan(model, request, {});
  CHECK(plan.request.height == 1280);
  CHECK(plan.request.width == 960);
  CHECK(plan.warnings.empty());
}

TEST_CASE("what cannot be binned is refused by name") {
  CHECK_THROWS_WITH(make_plan(sample_model(), binned(-8, 256), {}),
                    "[plan] `height` is -8: from 1 to 16384 under resolution binning");
  CHECK_THROWS_WITH(make_plan(sample_model(), binned(256, 20000), {}),
                    "[plan] `width` is 20000: from 1 to 16384 under resolution binning");
  auto model = sample_model();
  model.transformer.sample_size = 16;
  CHECK_THROWS_WITH(make_plan(model, binned(64, 64), {}),
                    "[plan] `resolution_binning` is on, but the transformer's sample_size is 16: "
                    "there are bins for 32, 64, 128 and 256");
}

TEST_CASE("a caption to be cleaned may not be endless") {
  auto request = binned(256, 256);
  request.prompts = {std::string(4097, 'a')};
  CHECK_NOTHROW(make_plan(sample_model(), request, {}));
  request.clean_caption = true;
  CHECK_THROWS_WITH(make_plan(sample_model(), request, {}),
                    "[plan] `prompts` has 4097 bytes: with `clean_caption` at most 4096 are taken");
  request.prompts = {"a cat"};
  CHECK_NOTHROW(make_plan(sample_model(), request, {}));
  request.negative_prompt = std::string(4097, 'a');
  CHECK_THROWS(make_plan(sample_model(), request, {}));
}
