#include <nlohmann/json.hpp>

#include "models/spec/scheduler_config.h"
#include "tests/spec/published_flux2.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::testing;

TEST_CASE("FLUX.2-klein's published folders open, with their pipeline's customs") {
  const auto folder = published_klein(kKlein4bConfig, kQwen34bConfig);
  const auto model = spec::read_model_spec(folder.path());
  CHECK(model.default_size() == 1024);
  CHECK(model.pixel_multiple() == 16);
  CHECK(model.text_tokens == 512);
  CHECK(model.defaults.generation == spec::CallDefaults{50, 4, 0.8});
  CHECK(model.from_text_alone);
  CHECK(!model.has_branches(4));
  CHECK(model.transformer.in_channels == 128);
  CHECK(model.vae.latent_channels == 128);
  CHECK(model.vae.coded_channels() == 32);
  CHECK(model.vae.scale_factor() == 16);
  REQUIRE(model.text_encoders.size() == 1);
  const auto shape = spec::output_shape(model.text_encoders[0], 512);
  CHECK(shape.tokens == 512);
  CHECK(shape.width == 7680);
  // The last of the layers whose states are taken is the 27th of 36; nothing behind it is read.
  CHECK(spec::weight_bytes(model).text_encoder == 2 * 3'114'088'192);
  CHECK(spec::decoder_bytes(model, 1) == 49'620'515);

  const auto base =
      spec::read_model_spec(published_klein(kKlein9bConfig, kQwen38bConfig, false).path());
  CHECK(base.has_branches(4));
  CHECK(!base.has_branches(1));
}

TEST_CASE("parts of FLUX.2-klein that do not belong together are refused by name") {
  const auto error = [](const PublishedTransformer& transformer, const char* encoder) {
    return error_of([&] { spec::read_model_spec(published_klein(transformer, encoder).path()); });
  };
  CHECK(contains(error(kKlein9bConfig, kQwen34bConfig), "joint_attention_dim = 12288"));
  std::string shallow = kQwen34bConfig;
  shallow.replace(shallow.find("\"num_hidden_layers\": 36"), 23, "\"num_hidden_layers\": 27");
  CHECK(contains(error(kKlein4bConfig, shallow.c_str()), "num_hidden_layers"));
}

TEST_CASE("FLUX.2-dev, and settings of FLUX.2-klein that are not supported, are refused by name") {
  const auto refusal = [](const char* key, const nlohmann::json& value) {
    auto config = nlohmann::json::parse(kKlein4bConfig.config);
    config[key] = value;
    return error_of(
        [&] { spec::Flux2Spec::read(spec::ConfigReader(config.dump(), "config.json")); });
  };
  CHECK(contains(refusal("guidance_embeds", true), "FLUX.2-klein"));
  CHECK(contains(refusal("patch_size", 2), "patch_size"));
  CHECK(contains(refusal("eps", 1e-5), "eps"));
  CHECK(contains(refusal("out_channels", 64), "out_channels"));
  CHECK(contains(refusal("axes_dims_rope", {32, 32, 64}), "axes_dims_rope"));
  CHECK(contains(refusal("mlp_ratio", 0), "mlp_ratio"));
  CHECK(contains(refusal("surprise", 1), "surprise"));
  const auto vae_refusal = [](const char* key, const nlohmann::json& value) {
    auto config = nlohmann::json::parse(kFlux2VaeConfig);
    config[key] = value;
    return error_of(
        [&] { spec::read_flux2_vae_spec(spec::ConfigReader(config.dump(), "config.json")); });
  };
  CHECK(contains(vae_refusal("patch_size", {1, 1}), "patch_size"));
  CHECK(contains(vae_refusal("decoder_block_out_channels", {64, 128, 256, 256}),
                 "decoder_block_out_channels"));
  CHECK(contains(vae_refusal("batch_norm_eps", 0), "batch_norm_eps"));
  const Scratch folder;
  write_bytes(folder.path / "model_index.json", R"({"_class_name": "Flux2Pipeline"})");
  const auto dev = error_of([&] { spec::read_model_spec(folder.path); });
  CHECK(contains(dev, "Flux2Pipeline"));
  CHECK(contains(dev, "Flux2Klein"));
}
