#include "models/unet/unet_2d_condition.h"

#include <ATen/core/grad_mode.h>

#include "models/unet/patch_port.h"
#include "tests/models/unet_support.h"
#include "tests/models/vae_support.h"
#include "tests/spec/model_folder.h"
#include "tests/support/doctest.h"

using namespace troupe::models;
using namespace troupe::models::testing;
using troupe::testing::contains;
using troupe::testing::error_of;
using unet::LocalExchange;
using unet::PatchCuts;
using unet::PatchPort;

namespace {

std::int64_t elements_of(const troupe::spec::UNetSpec& spec) {
  std::int64_t sum = 0;
  for (const auto& tensor : troupe::spec::expected_tensors(spec)) {
    std::int64_t count = 1;
    for (const auto size : tensor.shape)
      count *= size;
    sum += count;
  }
  return sum;
}

nlohmann::json sdxl_config() {
  return {{"_class_name", "UNet2DConditionModel"},
          {"_diffusers_version", "0.19.0.dev0"},
          {"act_fn", "silu"},
          {"addition_embed_type", "text_time"},
          {"addition_embed_type_num_heads", 64},
          {"addition_time_embed_dim", 256},
          {"attention_head_dim", {5, 10, 20}},
          {"block_out_channels", {320, 640, 1280}},
          {"center_input_sample", false},
          {"class_embed_type", nullptr},
          {"class_embeddings_concat", false},
          {"conv_in_kernel", 3},
          {"conv_out_kernel", 3},
          {"cross_attention_dim", 2048},
          {"cross_attention_norm", nullptr},
          {"down_block_types", {"DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"}},
          {"downsample_padding", 1},
          {"dual_cross_attention", false},
          {"encoder_hid_dim", nullptr},
          {"encoder_hid_dim_type", nullptr},
          {"flip_sin_to_cos", true},
          {"freq_shift", 0},
          {"in_channels", 4},
          {"layers_per_block", 2},
          {"mid_block_only_cross_attention", nullptr},
          {"mid_block_scale_factor", 1},
          {"mid_block_type", "UNetMidBlock2DCrossAttn"},
          {"norm_eps", 1e-05},
          {"norm_num_groups", 32},
          {"num_attention_heads", nullptr},
          {"num_class_embeds", nullptr},
          {"only_cross_attention", false},
          {"out_channels", 4},
          {"projection_class_embeddings_input_dim", 2816},
          {"resnet_out_scale_factor", 1.0},
          {"resnet_skip_time_act", false},
          {"resnet_time_scale_shift", "default"},
          {"sample_size", 128},
          {"time_cond_proj_dim", nullptr},
          {"time_embedding_act_fn", nullptr},
          {"time_embedding_dim", nullptr},
          {"time_embedding_type", "positional"},
          {"timestep_post_act", nullptr},
          {"transformer_layers_per_block", {1, 2, 10}},
          {"up_block_types", {"CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"}},
          {"upcast_attention", nullptr},
          {"use_linear_projection", true}};
}

troupe::spec::UNetSpec read(const nlohmann::json& config) {
  return troupe::spec::UNetSpec::read(troupe::spec::ConfigReader(config.dump(), "config.json"));
}

}  // namespace

TEST_CASE("one call of a U-Net equals diffusers in float32") {
  const at::NoGradGuard no_grad;
  const OneThread one_thread;
  const UNetBook book("unet");
  double worst = 0;
  for (const auto& item : book.content["cases"]) {
    const std::string name = item["name"];
    CAPTURE(name);
    const auto model = load_unet(item["model"]);
    const UNetInputs in(book, name);
    const auto condition = model.condition(item["timestep"], in.latents.size(0), in.added);
    const auto found = model.whole(in.latents, condition, model.keys_of(in.states));
    const auto& expected = book.tensors.at(name + ".output");
    REQUIRE(found.sizes() == expected.sizes());
    const double error = relative_error(found, expected);
    worst = std::max(worst, error);
    CHECK(error < 1e-5);
    const auto half = load_unet(item["model"], at::kBFloat16);
    const auto rough =
        half.whole(in.latents, half.condition(item["timestep"], in.latents.size(0), in.added),
                   half.keys_of(in.states));
    CHECK((rough.scalar_type() == at::kBFloat16));
    CHECK(relative_error(rough, expected) < 0.1);
  }
  CHECK(book.content["cases"].size() == 7);
  MESSAGE("largest difference " << worst << " of the range");
}

TEST_CASE("any number of patches of rows gives the whole, also where a level has fewer rows") {
  const at::NoGradGuard no_grad;
  const OneThread one_thread;
  const UNetBook book("unet");
  double worst = 0;
  int without_rows = 0;
  for (const auto& item : book.content["cases"]) {
    const std::string name = item["name"];
    const auto model = load_unet(item["model"]);
    const UNetInputs in(book, name);
    const std::int64_t height = in.latents.size(2);
    const auto condition = model.condition(item["timestep"], in.latents.size(0), in.added);
    const auto text = model.keys_of(in.states);
    const auto whole = model.whole(in.latents, condition, text);
    for (int patches : {2, 3, 4, 5, 8, 13}) {
      if (patches > height) continue;
      CAPTURE(name);
      CAPTURE(patches);
      const PatchCuts cuts(height, patches, model.levels());
      for (int p = 0; p < patches; ++p)
        without_rows += cuts.rows(model.levels() - 1, p).size() == 0;
      LocalExchange exchange(patches);
      PatchPort port(cuts, exchange);
      const auto found =
          at::cat(model(cut(in.latents, cuts, 0, patches), condition, text, port), 2);
      const double error = relative_error(found, whole);
      worst = std::max(worst, error);
      CHECK(error < 1e-5);
    }
  }
  CHECK(without_rows > 20);
  MESSAGE("largest difference " << worst << " of the range");
}

TEST_CASE("cuts share out every level, and one row beyond a patch is all that is read") {
  for (std::int64_t height = 1; height < 40; ++height) {
    for (int patches = 1; patches <= height; ++patches) {
      const PatchCuts cuts(height, patches, 4);
      for (int level = 0; level < 4; ++level) {
        std::int64_t next = 0;
        for (int p = 0; p < patches; ++p) {
          const RowRun own = cuts.rows(level, p);
          REQUIRE(own.begin == next);
          next = own.end;
          if (level == 3) continue;
          const RowRun deeper = cuts.rows(level + 1, p);
          if (deeper.size() > 0) {  // down: rows 2r - 1 to 2r + 1
            REQUIRE(2 * deeper.begin - 1 >= own.begin - 1);
            REQUIRE(2 * (deeper.end - 1) + 1 <= own.end);
          }
          if (own.size() > 0) {  // up: row y / 2 of y - 1 to y + 1
            REQUIRE(std::max<std::int64_t>(own.begin - 1, 0) / 2 >= deeper.begin - 1);
            REQUIRE(std::min(own.end, cuts.height(level) - 1) / 2 <= deeper.end);
          }
        }
        REQUIRE(next == cuts.height(level));
      }
    }
  }
  CHECK_THROWS_AS(PatchCuts(3, 4, 2), std::invalid_argument);
}

TEST_CASE("what does not fit a U-Net is refused") {
  const at::NoGradGuard no_grad;
  const OneThread one_thread;
  const auto model = load_unet("sdxl");
  const auto latents = at::zeros({1, 4, 4, 4});
  const auto text = model.keys_of(at::zeros({1, 7, 20}));
  CHECK(contains(error_of([&] { model.keys_of(at::zeros({1, 7, 21})); }), "[B, L, 20]"));
  CHECK(contains(error_of([&] { model.condition(1, 1); }), "pooled text"));
  const unet::AddedCondition added{at::zeros({1, 10}), at::zeros({1, 6})};
  const auto condition = model.condition(1, 1, added);
  CHECK(contains(error_of([&] { model.condition(1, 2, added); }), "pooled text [2, D]"));
  CHECK(contains(error_of([&] { model.whole(latents, condition, {}); }), "do not fit"));
  CHECK(contains(error_of([&] {
                   model.whole(at::zeros({1, 3, 4, 4}), condition, text);
                 }),
                 "do not fit"));
  CHECK_THROWS_AS(load_unet("sd15").whole(latents, condition, text), std::invalid_argument);
}

TEST_CASE("published U-Net configs are read, and others are refused by key") {
  const auto sdxl = read(sdxl_config());
  CHECK(elements_of(sdxl) == 2'567'463'684);
  CHECK(sdxl.levels[0].down_transformers == 0);
  CHECK(sdxl.levels[2].down_transformers == 10);
  CHECK(sdxl.time_ids(1280) == 6);
  const auto sd15 = read(
      {{"_class_name", "UNet2DConditionModel"},
       {"_diffusers_version", "0.6.0"},
       {"act_fn", "silu"},
       {"attention_head_dim", 8},
       {"block_out_channels", {320, 640, 1280, 1280}},
       {"center_input_sample", false},
       {"cross_attention_dim", 768},
       {"down_block_types",
        {"CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"}},
       {"downsample_padding", 1},
       {"flip_sin_to_cos", true},
       {"freq_shift", 0},
       {"in_channels", 4},
       {"layers_per_block", 2},
       {"mid_block_scale_factor", 1},
       {"norm_eps", 1e-05},
       {"norm_num_groups", 32},
       {"out_channels", 4},
       {"sample_size", 64},
       {"up_block_types",
        {"UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"}}});
  CHECK(elements_of(sd15) == 859'520'964);
  const std::map<std::string, nlohmann::json> bad = {{"act_fn", "gelu"},
                                                     {"addition_embed_type", "image"},
                                                     {"attention_head_dim", {5, 10, 21}},
                                                     {"block_out_channels", {320, 641, 1280}},
                                                     {"class_embed_type", "timestep"},
                                                     {"conv_in_kernel", 5},
                                                     {"down_block_types", {"A", "B", "C"}},
                                                     {"dual_cross_attention", true},
                                                     {"encoder_hid_dim", 4},
                                                     {"freq_shift", 2},
                                                     {"in_channels", 3},
                                                     {"layers_per_block", {2, 2}},
                                                     {"mid_block_type", "UNetMidBlock2D"},
                                                     {"norm_eps", 0},
                                                     {"num_attention_heads", 8},
                                                     {"only_cross_attention", true},
                                                     {"resnet_time_scale_shift", "scale_shift"},
                                                     {"time_cond_proj_dim", 256},
                                                     {"time_embedding_type", "fourier"},
                                                     {"transformer_layers_per_block", {1, 2}},
                                                     {"a_key_of_the_future", 1}};
  for (const auto& [key, value] : bad) {
    nlohmann::json config = sdxl_config();
    config[key] = value;
    const std::string error = error_of([&] { read(config); });
    CAPTURE(error);
    CHECK(contains(error, "\"" + key + "\""));
  }
}
