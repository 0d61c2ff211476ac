#include <nlohmann/json.hpp>

#include "models/spec/scheduler_config.h"
#include "tests/spec/published_qwen_image.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::testing;

TEST_CASE("Qwen-Image's published folder opens, with its pipeline's customs") {
  const auto folder = published_qwen_image();
  const auto model = spec::read_model_spec(folder.path());
  CHECK(!model.makes_videos());
  CHECK(model.default_size() == 1024);
  CHECK(model.pixel_multiple() == 16);
  CHECK(model.text_tokens == 512);
  CHECK(model.defaults.generation == spec::CallDefaults{50, 4, 0.8});
  CHECK(model.guided_by_negative);
  CHECK(model.renorm == spec::GuidanceRenorm::of_text);
  REQUIRE(model.text_encoders.size() == 1);
  CHECK(model.text_encoders[0].frame.dropped == 34);
  // The values that one frame needs, of the decoder's 73,295,603.
  CHECK(spec::decoder_bytes(model, 1) == 25'291'955);
  CHECK(spec::weight_bytes(model).vae_decoder == 2 * 73'295'603);
  // The 7B of Qwen2.5-VL without its head and its vision tower.
  CHECK(spec::weight_bytes(model).text_encoder == 2 * 7'070'619'136);
  CHECK(contains(
      error_of([&] { spec::check_steps(spec::scheduler_config_for(model.scheduler, ""), 1, {}); }),
      "shift_terminal"));
  CHECK_NOTHROW(spec::check_steps(spec::scheduler_config_for(model.scheduler, ""), 2, {}));
}

TEST_CASE("Qwen2.5-VL's config is read in both of its forms, and refused by key") {
  const auto flat = nlohmann::json::parse(kQwen25VlConfig);
  const auto read = [](const nlohmann::json& config) {
    return spec::read_qwen2_5_vl_spec(spec::ConfigReader(config.dump(), "config.json"));
  };
  const auto spec = read(flat);
  CHECK(spec.head_dim == 128);
  CHECK(spec.rope_theta == 1e6);
  CHECK(spec.qkv_bias);
  CHECK(!spec.qk_norm);
  auto apart = flat;
  apart["text_config"] = flat;
  apart["text_config"].erase("vision_config");
  apart["text_config"]["model_type"] = "qwen2_5_vl_text";
  apart["hidden_size"] = 8192;  // what stands there counts
  CHECK(read(apart) == spec);
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, nlohmann::json>>{{"rope_scaling", {{"type", "yarn"}}},
                                                           {"use_sliding_window", true},
                                                           {"hidden_act", "gelu"},
                                                           {"model_type", "qwen2_vl"},
                                                           {"something", 1}}) {
    CAPTURE(key);
    auto config = flat;
    config[key] = value;
    CHECK(contains(error_of([&] { read(config); }), key));
  }
}

TEST_CASE("settings of Qwen-Image's other pipelines are refused by key") {
  for (const char* key :
       {"guidance_embeds", "zero_cond_t", "use_additional_t_cond", "use_layer3d_rope"}) {
    CAPTURE(key);
    auto config = nlohmann::json::parse(kQwenImageConfig.config);
    config[key] = true;
    CHECK(contains(error_of([&] {
                     spec::QwenImageSpec::read(spec::ConfigReader(config.dump(), "config.json"));
                   }),
                   key));
  }
  auto config = nlohmann::json::parse(kQwenImageConfig.config);
  config["axes_dims_rope"] = {16, 56, 54};
  CHECK(contains(error_of([&] {
                   spec::QwenImageSpec::read(spec::ConfigReader(config.dump(), "config.json"));
                 }),
                 "axes_dims_rope"));
}
