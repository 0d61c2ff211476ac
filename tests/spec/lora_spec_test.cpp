#include "models/spec/lora_spec.h"

#include <map>
#include <nlohmann/json.hpp>

#include "tests/spec/model_folder.h"
#include "tests/support/doctest.h"
#include "tests/support/scratch.h"
#include "tests/support/text.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

const std::string kFixtures = TROUPE_SOURCE_DIR "/tests/fixtures/";

const spec::ModelSpec& flux() {
  static const auto model = spec::read_model_spec(kFixtures + "tiny-flux");
  return model;
}

/// A file of float32 zeros.
class File {
 public:
  File& add(const std::string& name, const std::vector<std::int64_t>& shape,
            const std::string& dtype = "F32") {
    std::int64_t bytes = dtype == "F32" ? 4 : 8;
    for (const auto size : shape)
      bytes *= size;
    header_[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {size_, size_ + bytes}}};
    size_ += bytes;
    return *this;
  }
  File& metadata(const nlohmann::json& value) {
    header_["__metadata__"] = {{"lora_adapter_metadata", value.dump()}};
    return *this;
  }
  /// One pair of rank 4 on a 24 × 24 product.
  File& pair(const std::string& base, const std::string& down = ".lora_A.weight",
             const std::string& up = ".lora_B.weight") {
    return add(base + down, {4, 24}).add(base + up, {24, 4});
  }
  /// PEFT's settings beside the file.
  File& beside(const nlohmann::json& settings) {
    beside_ = settings;
    return *this;
  }
  spec::LoraSpec read() const {
    const Scratch folder;
    if (!beside_.is_null()) folder.file("adapter_config.json", beside_.dump());
    return spec::read_lora_spec(
        folder.file("x.safetensors", with_prefix(header_.dump()) + std::string(size_, '\0')),
        flux());
  }
  std::string error() const {
    return message_of([&] { read(); });
  }

 private:
  nlohmann::json header_ = nlohmann::json::object();
  nlohmann::json beside_;
  std::int64_t size_ = 0;
};

const std::string kQ = "transformer_blocks.0.attn.to_q";

std::string target(const spec::LoraSpec& lora) {
  return lora.layers.at(0).component + " " + lora.layers.at(0).parts.at(0).tensor;
}

}  // namespace

TEST_CASE("every naming finds the same layer") {
  const std::string wanted = "transformer " + kQ + ".weight";
  for (const char* prefix : {"transformer.", "unet.", "diffusion_model.", "base_model.model.",
                             "base_model.model.transformer.", "model.diffusion_model.", ""}) {
    CAPTURE(prefix);
    CHECK(
        target(
            File().pair(prefix + kQ, ".lora_A.default.weight", ".lora_B.default.weight").read()) ==
        wanted);
    CHECK(target(File().pair(prefix + kQ + ".base_layer").read()) == wanted);
    CHECK(target(File().pair(prefix + kQ).read()) == wanted);
    CHECK(target(File().pair(prefix + kQ, ".lora.down.weight", ".lora.up.weight").read()) ==
          wanted);
  }
  CHECK(target(File()
                   .pair("transformer.transformer_blocks.0.attn.processor.to_q",
                         "_lora.down.weight", "_lora.up.weight")
                   .read()) == wanted);
  CHECK(target(File()
                   .pair("transformer.transformer_blocks.0.attn.processor.to_out",
                         "_lora.down.weight", "_lora.up.weight")
                   .read()) == "transformer transformer_blocks.0.attn.to_out.0.weight");
  for (const char* prefix : {"lora_unet_", "lora_transformer_", "lycoris_"}) {
    CHECK(target(File()
                     .pair(std::string(prefix) + "transformer_blocks_0_attn_to_q",
                           ".lora_down.weight", ".lora_up.weight")
                     .read()) == wanted);
  }
}

TEST_CASE("the authors' fused products are split by rows") {
  const auto lora = File()
                        .add("lora_unet_single_blocks_1_linear1.lora_down.weight", {4, 24})
                        .add("lora_unet_single_blocks_1_linear1.lora_up.weight", {168, 4})
                        .add("lora_unet_single_blocks_1_linear1.alpha", {})
                        .read();
  const auto& parts = lora.layers.at(0).parts;
  REQUIRE(parts.size() == 4);
  const std::string prefix = "single_transformer_blocks.1.";
  CHECK(parts[0] == spec::LoraPart{prefix + "attn.to_q.weight", 0, 0, 24});
  CHECK(parts[2] == spec::LoraPart{prefix + "attn.to_v.weight", 48, 0, 24});
  CHECK(parts[3] == spec::LoraPart{prefix + "proj_mlp.weight", 72, 0, 96});
  CHECK(lora.layers[0].tensor(spec::LoraRole::alpha) == "lora_unet_single_blocks_1_linear1.alpha");
  const auto swapped = File()
                           .add("final_layer.adaLN_modulation.1.lora_A.weight", {4, 24})
                           .add("final_layer.adaLN_modulation.1.lora_B.weight", {48, 4})
                           .read();
  CHECK(swapped.layers[0].parts[0] == spec::LoraPart{"norm_out.linear.weight", 24, 0, 24});
  CHECK(swapped.layers[0].parts[1] == spec::LoraPart{"norm_out.linear.weight", 0, 24, 24});
}

TEST_CASE("text encoders are found by number and kind") {
  const auto read = [](const std::string& base) {
    return target(File()
                      .add(base + ".lora_down.weight", {4, 16})
                      .add(base + ".lora_up.weight", {16, 4})
                      .read());
  };
  // Stored with and without their model's name.
  const auto clip = read("lora_te1_text_model_encoder_layers_0_self_attn_q_proj");
  CHECK(clip.starts_with("text_encoder "));
  CHECK(clip.ends_with("encoder.layers.0.self_attn.q_proj.weight"));
  CHECK(read("lora_te1_encoder_layers_0_self_attn_q_proj") == clip);
  CHECK(has(read("lora_te_text_model_encoder_layers_0_self_attn_q_proj"), "text_encoder "));
  const auto t5 =
      File()
          .add("lora_te3_encoder_block_0_layer_0_SelfAttention_q.lora_down.weight", {4, 24})
          .add("lora_te3_encoder_block_0_layer_0_SelfAttention_q.lora_up.weight", {24, 4})
          .read();
  CHECK(target(t5) == "text_encoder_2 encoder.block.0.layer.0.SelfAttention.q.weight");
  CHECK(has(File().pair("text_encoder_3." + kQ).error(), "text encoder that this model does not"));
  for (const char* comfy :
       {"text_encoders.clip_l.transformer.text_model.", "text_encoders.clip_l.transformer."})
    CHECK(read(std::string(comfy) + "encoder.layers.0.self_attn.q_proj") == clip);
  CHECK(target(File()
                   .add("text_encoders.t5xxl.transformer.encoder.block.0.layer.0.SelfAttention.q"
                        ".lora_A.weight",
                        {4, 24})
                   .add("text_encoders.t5xxl.transformer.encoder.block.0.layer.0.SelfAttention.q"
                        ".lora_B.weight",
                        {24, 4})
                   .read()) == "text_encoder_2 encoder.block.0.layer.0.SelfAttention.q.weight");
  CHECK(has(File().pair("text_encoders.clip_g.transformer." + kQ).error(),
            "text encoder that this model does not"));
  CHECK(has(File().pair("lora_te9_x", ".lora_down.weight", ".lora_up.weight").error(),
            "text encoder that this model does not"));
}

TEST_CASE("metadata's alphas go by component and by pattern") {
  const nlohmann::json said = {{"transformer.lora_alpha", 8},
                               {"transformer.alpha_pattern", {{"attn.to_q", 3}}}};
  auto lora = File().pair("transformer." + kQ).metadata(said).read();
  CHECK(lora.layers[0].known_alpha == 3.0);
  lora = File().pair("transformer.transformer_blocks.0.attn.to_k").metadata(said).read();
  CHECK(lora.layers[0].known_alpha == 8.0);
  CHECK(!File().pair(kQ).read().layers[0].known_alpha);
  CHECK(has(File().pair(kQ).metadata({{"transformer.use_dora", true}}).error(),
            "has no lora_magnitude_vector beside it, but the file's metadata says use_dora"));
  CHECK(File()
            .pair(kQ)
            .add(kQ + ".lora_magnitude_vector", {24})
            .metadata({{"transformer.use_dora", true}})
            .read()
            .layers[0]
            .tensors.contains(spec::LoraRole::magnitude));
  CHECK(has(
      File()
          .pair(kQ)
          .metadata({{"transformer.lora_alpha", 1}, {"transformer.alpha_pattern", {{".*to_q", 3}}}})
          .error(),
      "pattern that is not supported: \".*to_q\""));
}

TEST_CASE("metadata's other settings are taken, or refused by name, as by PEFT's LoraConfig") {
  const auto read = [](nlohmann::json more) {
    more["transformer.lora_alpha"] = 6;
    return File().pair("transformer." + kQ).metadata(more);
  };
  const auto alpha = [&](const nlohmann::json& more) {
    return read(more).read().layers[0].known_alpha.value();
  };
  CHECK(alpha({{"transformer.use_rslora", true}}) == 12);  // 6 / √4 is 12 / 4
  CHECK(alpha({{"transformer.fan_in_fan_out", true}}) == 6);
  CHECK(alpha({{"transformer.r", 8}, {"transformer.rank_pattern", {{"attn.to_q", 4}}}}) == 6);
  CHECK(alpha({{"transformer.alpha_pattern", {{"^" + kQ, 5}}}}) == 5);
  CHECK(alpha({{"transformer.alpha_pattern", {{"^attn.to_q", 5}}}}) == 6);  // whole names only
  CHECK(has(read({{"transformer.r", 2}}).error(), "is of rank 4, but the file's metadata says 2"));
  CHECK(has(read({{"transformer.init_lora_weights", "pissa"}}).error(), "\"init_lora_weights\""));
  CHECK(alpha({{"transformer.lora_bias", true}}) == 6);
  CHECK(has(read({{"transformer.new_kind", true}}).error(), "new_kind"));
  CHECK(File()
            .pair("transformer." + kQ)
            .metadata({{"transformer.r", 4}})
            .read()
            .layers[0]
            .known_alpha == 8.0);  // LoraConfig's own
}

TEST_CASE("a file of PEFT's has the settings beside it; others have not") {
  const nlohmann::json said = {{"peft_type", "LORA"},
                               {"r", 4},
                               {"lora_alpha", 16},
                               {"alpha_pattern", {{"to_k", 2}}},
                               {"rank_pattern", nlohmann::json::object()},
                               {"target_modules", {"to_q"}},
                               {"use_dora", false},
                               {"modules_to_save", nullptr},
                               {"bias", "none"},
                               {"init_lora_weights", true},
                               {"lora_dropout", 0.1}};
  const std::string peft = "base_model.model.";
  const auto beside = [&](const nlohmann::json& more) {
    auto settings = said;
    settings.update(more);
    return File().pair(peft + kQ).beside(settings);
  };
  CHECK(beside(nlohmann::json::object()).read().layers[0].known_alpha == 16.0);
  CHECK(File()
            .pair(peft + "transformer_blocks.0.attn.to_k")
            .beside(said)
            .read()
            .layers[0]
            .known_alpha == 2.0);
  CHECK(!File().pair(peft + kQ).read().layers[0].known_alpha);
  CHECK(!File().pair("transformer." + kQ).beside(said).read().layers[0].known_alpha);
  for (const auto& [key, value] :
       std::map<std::string, nlohmann::json>{{"peft_type", "OFT"},
                                             {"bias", "lora_only"},
                                             {"layer_replication", {{0, 2}}},
                                             {"modules_to_save", {"proj_out"}},
                                             {"init_lora_weights", "olora"},
                                             {"use_bdlora", {{"nblocks", 2}}},
                                             {"unheard_of", 1}}) {
    CAPTURE(key);
    const auto error = beside({{key, value}}).error();
    CAPTURE(error);
    CHECK(has(error, "adapter_config.json: "));
    CHECK(has(error, key));
  }
  CHECK(has(beside({{"use_dora", true}}).error(), "adapter_config.json says use_dora"));
  CHECK(has(beside({{"r", 2}}).error(), "is of rank 4, but adapter_config.json says 2"));
}

TEST_CASE(
    "patterns are looked up, however many there are: the longest list costs no more a layer") {
  nlohmann::json patterns;
  for (int i = 0; i < 100'000; ++i)
    patterns["layer" + std::to_string(i)] = 5;
  patterns["to_q"] = 3;
  patterns["transformer_blocks.0.attn.to_q"] = 4;
  const auto lora =
      File()
          .pair("transformer." + kQ)
          .metadata({{"transformer.lora_alpha", 8}, {"transformer.alpha_pattern", patterns}})
          .read();
  CHECK(lora.layers[0].known_alpha == 3.0);  // the first by the alphabet
}

TEST_CASE("what has no place is refused with file and tensor, on one line") {
  const auto refused = [](const File& file, const std::string& tensor, const std::string& why) {
    const auto error = file.error();
    CAPTURE(error);
    CHECK(error.starts_with("[load_lora] "));
    CHECK(has(error, "x.safetensors: tensor \"" + tensor + "\" "));
    CHECK(has(error, why));
    CHECK(!has(error, "\n"));
  };
  const std::string base = "transformer." + kQ;
  refused(File().pair("transformer.transformer_blocks.9.attn.to_q"),
          "transformer.transformer_blocks.9.attn.to_q.lora_A.weight",
          "matches no layer of this model");
  refused(File().add(base + ".lora_A.weight", {4, 24}), base + ".lora_A.weight", "no up half");
  refused(File().add(base + ".lora_B.weight", {24, 4}), base + ".lora_B.weight", "no down half");
  refused(File().add(base + ".lora_A.weight", {4, 24}).add(base + ".lora_B.weight", {24, 5}),
          base + ".lora_B.weight", "is of rank 4");
  refused(File().add(base + ".lora_A.weight", {4, 23}).add(base + ".lora_B.weight", {24, 4}),
          base + ".lora_A.weight", "takes 24 inputs");
  refused(File().add(base + ".lora_A.weight", {4, 24}).add(base + ".lora_B.weight", {25, 4}),
          base + ".lora_B.weight", "wants 24 rows");
  refused(File().pair(base).add(base + ".dora_scale", {23}), base + ".dora_scale",
          "wants 24 lengths");
  refused(File().pair(base).add(base + ".dora_scale", {}), base + ".dora_scale",
          "wants 24 lengths");
  refused(File().pair(base).add(base + ".diff", {24, 24}), base + ".lora_A.weight",
          "one of several kinds");
  refused(File().add(base + ".diff", {24, 23}), base + ".diff", "[24, 24] is needed");
  refused(File().add(base + ".hada_w1_a", {24, 2}), base + ".hada_w1_a",
          "has no hada_w1_b beside it");
  refused(File()
              .add(base + ".hada_w1_a", {24, 2})
              .add(base + ".hada_w1_b", {2, 24})
              .add(base + ".hada_w2_a", {24, 2})
              .add(base + ".hada_w2_b", {3, 24}),
          base + ".hada_w2_a", "[24, 3] is needed");
  refused(File().add(base + ".lokr_w1", {5, 4}).add(base + ".lokr_w2", {6, 6}), base + ".lokr_w1",
          "does not divide");
  refused(File().add(base + ".lokr_w1", {4, 4}).add(base + ".lokr_w2", {6, 5}), base + ".lokr_w2",
          "[6, 6] is needed");
  refused(File().add("img_in.lora_A.weight", {4, 32}).add("img_in.lora_B.weight", {24, 4}),
          "img_in.lora_A.weight", "LoRA of a control model");
  refused(File().add(base + ".strange", {24}), base + ".strange", "of no kind that is known");
  refused(File().pair(base).add(base + ".alpha", {2}), base + ".alpha", "one number is needed");
  refused(File().add(base + ".lora_A.weight", {4, 24}, "I64").add(base + ".lora_B.weight", {24, 4}),
          base + ".lora_A.weight", "a floating one is needed");
  refused(File().pair(base).pair(base, ".lora.down.weight", ".lora.up.weight"),
          base + ".lora_A.weight", "says the same as");
  refused(File().pair("lora_prior_x"), "lora_prior_x.lora_A.weight", "is not known");
  CHECK(has(File().error(), "has no tensors"));
  CHECK(has(File().pair("layers.9.x").pair("layers.8.x").error(),
            "none of the file's 4 tensors is used"));
}

TEST_CASE("what of a file is not used is counted, and the first is named") {
  const std::string base = "transformer." + kQ;
  CHECK(File().pair(base).read().unused.empty());
  const auto some = File()
                        .pair(base)
                        .pair("transformer.transformer_blocks.9.attn.to_q")
                        .add("lora_te2_x.alpha", {})
                        .read();
  CHECK(some.layers.size() == 1);
  CHECK(has(some.unused, ": 3 of 5 tensors are not used: tensor \"lora_te2_x.alpha\" "));
  const auto twice = File()
                         .pair(base)
                         .add("double_blocks.0.img_attn.qkv.lora_A.weight", {4, 24})
                         .add("double_blocks.0.img_attn.qkv.lora_B.weight", {72, 4})
                         .read();
  CHECK(twice.layers.size() == 1);
  CHECK(has(twice.unused, "is for products that the file has under other names, too"));
  const auto prefixed = File().pair(base).pair(kQ).read();
  CHECK(prefixed.layers.size() == 1);
  CHECK(has(prefixed.unused, "is for a product that the file has under another name, too"));
  const auto bias = File().pair(base).add(base + ".diff_b", {24}).read();
  REQUIRE(bias.layers.size() == 2);
  CHECK(bias.layers[1].parts.at(0).tensor == kQ + ".bias");
  CHECK(bias.layers[1].rank == 0);
}
