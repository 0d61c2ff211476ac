#include <nlohmann/json.hpp>

#include "models/spec/original_names.h"
#include "models/spec/prompt_embeds.h"
#include "tests/spec/published_krea2.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::testing;

TEST_CASE("Krea 2's published folders open, with their pipeline's customs") {
  const auto folder = published_krea2();
  const auto model = spec::read_model_spec(folder.path());
  CHECK(model.default_size() == 1024);
  CHECK(model.pixel_multiple() == 16);
  CHECK(model.text_tokens == 512);
  CHECK(model.defaults.generation == spec::CallDefaults{28, 4.5, 0.8});
  CHECK(model.from_text_alone);
  CHECK(model.has_branches(4.5));
  CHECK(!model.has_branches(0));
  CHECK(model.notes.empty());
  REQUIRE(model.text_encoders.size() == 1);
  CHECK(model.text_encoders[0].frame.dropped == 34);
  CHECK(model.text_encoders[0].frame.kept_after == 5);
  const auto shape = spec::output_shape(model.text_encoders[0], 512);
  CHECK(shape.tokens == 512);
  CHECK(shape.width == 12 * 2560);
  // The last of the layers whose states are taken is the 35th of 36; nothing behind it is read.
  CHECK(spec::weight_bytes(model).text_encoder == 2 * (388'956'160 + 35 * 100'930'816ULL));

  std::string distilled = kKrea2ModelIndex;
  distilled.replace(distilled.find("false"), 5, "true");
  const auto turbo = spec::read_model_spec(published_krea2(distilled).path());
  CHECK(turbo.fixed_shift == 1.15);
}

TEST_CASE("layers and settings of Krea 2 that do not go together are refused by name") {
  const auto with_layers = [](const char* layers) {
    auto index = nlohmann::json::parse(kKrea2ModelIndex);
    index["text_encoder_select_layers"] = nlohmann::json::parse(layers);
    return error_of([&] { spec::read_model_spec(published_krea2(index.dump()).path()); });
  };
  CHECK(contains(with_layers("[2, 5, 8, 11, 14, 17, 20, 23, 26, 29, 32, 36]"), "above 36"));
  CHECK(contains(with_layers("[5, 2]"), "text_encoder_select_layers"));
  CHECK(contains(with_layers("[]"), "text_encoder_select_layers"));
  CHECK(contains(with_layers("[2, 5]"), "num_text_layers = 12"));
  CHECK(with_layers("null").empty());
  auto index = nlohmann::json::parse(kKrea2ModelIndex);
  index["patch_size"] = 1;
  CHECK(contains(error_of([&] { spec::read_model_spec(published_krea2(index.dump()).path()); }),
                 "patch_size"));
  const auto refusal = [](const char* key, const nlohmann::json& value) {
    auto config = nlohmann::json::parse(kKrea2Config.config);
    config[key] = value;
    return error_of(
        [&] { spec::Krea2Spec::read(spec::ConfigReader(config.dump(), "config.json")); });
  };
  CHECK(contains(refusal("num_key_value_heads", 7), "num_key_value_heads"));
  CHECK(contains(refusal("text_num_attention_heads", 21), "text_num_attention_heads"));
  CHECK(contains(refusal("text_num_key_value_heads", 3), "text_num_key_value_heads"));
  CHECK(contains(refusal("axes_dims_rope", {32, 32, 32}), "axes_dims_rope"));
  CHECK(contains(refusal("in_channels", 62), "in_channels"));
  CHECK(contains(refusal("timestep_embed_dim", 3), "timestep_embed_dim"));
  CHECK(contains(refusal("norm_eps", 0), "norm_eps"));
  CHECK(contains(refusal("rope_theta", 1), "rope_theta"));
  CHECK(contains(refusal("surprise", 1), "surprise"));
}

TEST_CASE("settings of Qwen3-VL that are not supported are refused by name") {
  const auto refusal = [](const char* key, const nlohmann::json& value) {
    auto config = nlohmann::json::parse(kQwen3Vl4bConfig);
    config["text_config"][key] = value;
    return error_of(
        [&] { spec::read_qwen3_vl_spec(spec::ConfigReader(config.dump(), "config.json")); });
  };
  CHECK(refusal("head_dim", 128).empty());
  CHECK(contains(refusal("attention_bias", true), "attention_bias"));
  CHECK(contains(refusal("model_type", "qwen3_vl_moe_text"), "model_type"));
  CHECK(contains(refusal("rope_scaling", {{"rope_type", "yarn"}}), "rope_scaling"));
  auto without = nlohmann::json::parse(kQwen3Vl4bConfig);
  without.erase("text_config");
  CHECK(contains(error_of([&] {
                   spec::read_qwen3_vl_spec(spec::ConfigReader(without.dump(), "config.json"));
                 }),
                 "text_config"));
}

TEST_CASE("shards of Krea 2 have the keys and values that their queries attend to") {
  const spec::KeptWeights kept([] {
    spec::TensorTable table;
    table.at(spec::Held::block, 0);
    table.split_groups("k", 10, 4 * 2, 12, 3);  // 12 heads of queries, 4 of keys, of 2 channels
    return table.take();
  }());
  std::vector<std::uint64_t> elements;
  for (std::int64_t shard = 0; shard < 5; ++shard)
    elements.push_back(kept.elements({.last_block = 1, .shard = shard, .shards = 5}));
  // Queries 0 to 2, 3 to 5, 6 and 7, 8 and 9, 10 and 11.
  CHECK(elements == std::vector<std::uint64_t>{20, 20, 20, 40, 20});
  CHECK(kept.elements({.last_block = 1, .shard = 1, .shards = 2}) == 40);
}

TEST_CASE("LoRAs may name the products of Krea 2 as its authors do") {
  const auto tensors = spec::original_tensors(spec::Krea2Spec());
  const auto theirs = [&](const std::string& name) { return tensors.find(name)->second.name; };
  CHECK(theirs("transformer_blocks.3.attn.to_gate.weight") == "blocks.3.attn.gate.weight");
  CHECK(theirs("transformer_blocks.3.ff.gate.weight") == "blocks.3.mlp.gate.weight");
  CHECK(theirs("transformer_blocks.3.scale_shift_table") == "blocks.3.mod.lin");
  CHECK(theirs("text_fusion.refiner_blocks.1.attn.norm_q.weight") ==
        "txtfusion.refiner_blocks.1.attn.qknorm.qnorm.scale");
  CHECK(theirs("txt_in.norm.weight") == "txtmlp.0.scale");
  CHECK(theirs("final_layer.scale_shift_table") == "last.modulation.lin");
  CHECK(theirs("time_mod_proj.bias") == "tproj.1.bias");
}
