#include <nlohmann/json.hpp>

#include "models/spec/resolution_bins.h"
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

TEST_CASE("Qwen-Image-Edit's folders open, with the vision tower and its processor") {
  const auto folder = published_qwen_edit("QwenImageEditPlusPipeline");
  const auto model = spec::read_model_spec(folder.path());
  CHECK(model.inputs.most_images == 3);
  CHECK(model.inputs.needs_images);
  CHECK(model.notes.empty());
  const auto& encoder = model.text_encoders.at(0);
  CHECK(encoder.frame.dropped == 64);
  REQUIRE(encoder.vision() != nullptr);
  CHECK(encoder.vision()->hidden_size == 1280);
  CHECK(encoder.vision()->max_pixels == 12'845'056);
  // The 7B and the vision tower.
  CHECK(spec::weight_bytes(model).text_encoder == 2 * (7'070'619'136 + 676'550'144));
  // The size that the VAE gets and the size that the text encoder sees, in whole tokens of 28.
  const auto sizes = [](const spec::ModelSpec& of, std::int64_t height, std::int64_t width) {
    const auto size = spec::edited_size(of, {height, width});
    CHECK(size.cut == size.resized);
    return std::pair{size.cut, spec::seen_size(*of.text_encoders[0].vision(), size.seen)};
  };
  using Sizes = std::pair<spec::PixelSize, spec::PixelSize>;
  CHECK(sizes(model, 80, 70) == Sizes{{1088, 960}, {420, 364}});
  CHECK(sizes(model, 1000, 1200) == Sizes{{928, 1120}, {364, 420}});
  CHECK(sizes(model, 10, 1280) == Sizes{{96, 11584}, {28, 4340}});
  CHECK(spec::seen_tokens(model, {1000, 1200}) == 13 * 15);
  const auto one = spec::read_model_spec(published_qwen_edit("QwenImageEditPipeline").path());
  CHECK(one.inputs.most_images == 1);
  CHECK(sizes(one, 1024, 1024) == Sizes{{1024, 1024}, {1036, 1036}});
  CHECK(spec::seen_tokens(one, {1024, 1024}) == 37 * 37);
  auto few = *one.text_encoders[0].vision();
  few.max_pixels = 70'000;
  CHECK(spec::seen_size(few, {352, 416}) == spec::PixelSize{224, 280});
  CHECK(spec::seen_size(few, {30, 40}) == spec::PixelSize{56, 84});
  CHECK(spec::seen_size(few, {98, 70}) == spec::PixelSize{112, 56});  // 3.5 and 2.5 tokens
}

TEST_CASE("a vision tower or a processor of another kind is refused by key") {
  const auto whole = nlohmann::json::parse(qwen25_vl_seeing());
  const auto processor = nlohmann::json::parse(kQwenProcessor);
  const Scratch folder;
  const auto error = [&](const nlohmann::json& config, const nlohmann::json& of_processor) {
    write_bytes(folder.path / "preprocessor_config.json", of_processor.dump());
    return error_of([&] {
      spec::read_qwen_vision_spec(spec::ConfigReader(config.dump(), "config.json"), folder.path,
                                  128, 3584);
    });
  };
  CHECK(error(whole, processor).empty());
  for (const auto& [key, value] : std::vector<std::pair<std::string, nlohmann::json>>{
           {"hidden_act", "gelu"}, {"num_heads", 7}, {"window_size", 20}, {"unknown", 1}}) {
    CAPTURE(key);
    auto config = whole;
    config["vision_config"][key] = value;
    CHECK(contains(error(config, processor), key));
  }
  auto config = whole;
  config["rope_scaling"]["mrope_section"] = {16, 24, 23};
  CHECK(contains(error(config, processor), "mrope_section"));
  config = whole;
  config["vision_config"]["out_hidden_size"] = 2048;
  CHECK(contains(error(config, processor), "out_hidden_size"));
  config.erase("vision_config");
  CHECK(contains(error(config, processor), "vision_config"));
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, nlohmann::json>>{{"resample", 2},
                                                           {"do_normalize", false},
                                                           {"patch_size", 16},
                                                           {"rescale_factor", 1},
                                                           {"image_std", {0.5, 0.5}},
                                                           {"min_pixels", 1 << 25}}) {
    CAPTURE(key);
    auto other = processor;
    other[key] = value;
    CHECK(!error(whole, other).empty());
  }
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
  for (const char* key : {"guidance_embeds", "use_additional_t_cond", "use_layer3d_rope"}) {
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
