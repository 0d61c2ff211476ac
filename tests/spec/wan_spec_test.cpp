#include <algorithm>
#include <functional>
#include <numeric>

#include "tests/spec/published_wan.h"
#include "tests/support/doctest.h"
#include "tests/support/text.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

struct Counted {
  std::size_t tensors = 0;
  std::uint64_t elements = 0;
  std::uint64_t hash = 0xcbf29ce484222325ULL;
};

/// Counts and hashes tensors as tests/spec/published_transformers.h does.
Counted count(std::vector<spec::ExpectedTensor> tensors) {
  std::ranges::sort(tensors, {}, &spec::ExpectedTensor::name);
  Counted counted;
  for (const auto& tensor : tensors) {
    ++counted.tensors;
    counted.elements += static_cast<std::uint64_t>(std::accumulate(
        tensor.shape.begin(), tensor.shape.end(), std::int64_t{1}, std::multiplies<>()));
    for (const char c : tensor.name + " " + spec::shape_text(tensor.shape) + "\n")
      counted.hash = (counted.hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  }
  return counted;
}

}  // namespace

TEST_CASE("Wan's decoder and text encoder call for the tensors that diffusers makes") {
  const auto vae =
      count(spec::expected_tensors(spec::read_wan_vae_spec({kWanVaeConfig, "config.json"})));
  CHECK(vae.tensors == 108);
  CHECK(vae.elements == 73295603);
  CHECK(vae.hash == 0x68c637ea0ae3dee0);
  const auto of22 =
      count(spec::expected_tensors(spec::read_wan_vae_spec({kWan22VaeConfig, "config.json"})));
  CHECK(of22.tensors == 110);
  CHECK(of22.elements == 555051580);
  CHECK(of22.hash == 0xcfe8a9e66280d771);
  const auto encoder = count(spec::expected_tensors(
      spec::read_wan_vae_spec({kWanVaeConfig, "config.json"}), spec::VaeHalf::encoder));
  CHECK(encoder.tensors == 86);
  CHECK(encoder.elements == 53596928);
  CHECK(encoder.hash == 0x82b10cfcd6c4659c);
  const auto encoder22 = count(spec::expected_tensors(
      spec::read_wan_vae_spec({kWan22VaeConfig, "config.json"}), spec::VaeHalf::encoder));
  CHECK(encoder22.tensors == 86);
  CHECK(encoder22.elements == 149637088);
  CHECK(encoder22.hash == 0x9c9a128fca066c3c);
  const auto vision = count(
      spec::expected_tensors(spec::read_clip_vision_spec({kClipVisionHConfig, "config.json"})));
  CHECK(vision.tensors == 501);
  CHECK(vision.elements == 611086080);
  CHECK(vision.hash == 0xb8d55ea49e5622cc);
  const auto text =
      count(spec::expected_tensors(spec::read_t5_spec({kUmt5XxlConfig, "config.json"})));
  CHECK(text.tensors == 242);
  CHECK(text.elements == 5680910336);
  CHECK(text.hash == 0x96ea8fd9f35be3c3);
}

TEST_CASE("a published Wan folder loads from configs and headers alone") {
  const PublishedWanFolder folder(kWan13bConfig);
  const auto model = spec::read_model_spec(folder.path());
  CHECK(model.makes_videos());
  CHECK(model.default_size() == 480);
  CHECK(model.default_width() == 832);
  CHECK(model.transformer.sample_frames == 81);
  CHECK(model.latent_frames(81) == 21);
  CHECK(model.latent_frames(1) == 1);
  CHECK(model.pixel_multiple() == 16);
  CHECK(model.text_tokens == 512);
  CHECK(model.mends_prompts);
  CHECK(model.has_branches(5));
  const auto bytes = spec::weight_bytes(model);
  CHECK(bytes.vae_decoder == 2 * 73295603);
  CHECK(bytes.text_encoder == 2 * 5680910336);
  const auto& family = std::get<spec::WanSpec>(model.transformer.family);
  CHECK(family.frame_dim() == 44);
  CHECK(family.side_dim() == 42);
}

TEST_CASE("Wan 2.2's folder of one transformer loads, with the pipeline's size in larger pixels") {
  const auto folder = published_wan22();
  const auto model = spec::read_model_spec(folder.path());
  CHECK(model.default_size() == 480);
  CHECK(model.default_width() == 832);
  CHECK(model.pixel_multiple() == 32);
  CHECK(model.latent_frames(121) == 31);
  CHECK(model.video_vae->scale_factor() == 16);
  CHECK(model.vae.scale_factor() == 16);
  CHECK(spec::weight_bytes(model).vae_decoder == 2 * 555051580);
}

TEST_CASE("Wan 2.2's folder of two transformers loads, and says which steps are the second's") {
  const auto folder = published_wan_a14b();
  const auto model = spec::read_model_spec(folder.path());
  REQUIRE(model.second_transformer);
  CHECK(model.second_transformer->weights.tensors().size() ==
        model.transformer_weights.tensors().size());
  CHECK_FALSE(model.is_of_second(875));
  CHECK(model.is_of_second(874));
  CHECK(model.transformer.caption_width == 2 * 5120);
  CHECK(spec::components_of(model.transformer_weights, folder.path()) ==
        std::vector<std::string>{"transformer", "transformer_2"});

  const auto refusal = [&](const std::string& file, const auto& change) {
    const auto path = folder.path() / file;
    const std::string before = read_all(path);
    auto config = nlohmann::json::parse(before);
    change(config);
    write_bytes(path, config.dump());
    const auto what = error_of([&] { spec::read_model_spec(folder.path()); });
    write_bytes(path, before);
    return what;
  };
  CHECK(contains(refusal("transformer_2/config.json", [](auto& of) { of["eps"] = 1e-5; }),
                 "two transformers must have one shape"));
  CHECK(contains(refusal("model_index.json", [](auto& of) { of.erase("boundary_ratio"); }),
                 "needs boundary_ratio"));
  for (const double ratio : {0.0, 1.0, -1.0})
    CHECK(contains(refusal("model_index.json", [&](auto& of) { of["boundary_ratio"] = ratio; }),
                   "boundary_ratio"));
}

TEST_CASE("Wan's folders from a first frame load, and say which frames they take") {
  using spec::BesideLatents;
  const auto i2v = published_wan_i2v();
  const auto model = spec::read_model_spec(i2v.path());
  CHECK(model.inputs.images == spec::PictureRole::first_frame);
  CHECK(model.inputs.needs_images);
  CHECK_FALSE(model.inputs.last_image);
  CHECK(model.inputs.beside == BesideLatents::given_frames);
  CHECK(model.transformer.in_channels == 16);
  CHECK(model.transformer.beside_channels == 20);
  CHECK(model.transformer.seen_tokens == 257);
  CHECK(model.transformer.fixed_text_tokens == 512);
  const auto flf = spec::read_model_spec(published_wan_i2v(kWanFlf2vConfig).path());
  CHECK(flf.inputs.needs_last_image);
  CHECK(flf.transformer.seen_tokens == 514);
  const auto two = spec::read_model_spec(published_wan_i2v_a14b().path());
  CHECK(two.inputs.last_image);
  CHECK_FALSE(two.inputs.needs_last_image);
  CHECK_FALSE(two.vision);
  CHECK(two.is_of_second(899));
  const auto ti2v = spec::read_model_spec(published_wan22().path());
  CHECK(ti2v.inputs.images == spec::PictureRole::first_frame);
  CHECK_FALSE(ti2v.inputs.needs_images);
  CHECK(ti2v.inputs.beside == BesideLatents::none);

  const auto changed = [&](const std::string& file, const auto& change) {
    const auto path = i2v.path() / file;
    const std::string before = read_all(path);
    auto config = nlohmann::json::parse(before);
    change(config);
    write_bytes(path, config.dump());
    const auto what = error_of([&] { spec::read_model_spec(i2v.path()); });
    write_bytes(path, before);
    return what;
  };
  const std::string processor = "image_processor/preprocessor_config.json";
  CHECK(contains(changed(processor, [](auto& of) { of["resample"] = 2; }), "resample"));
  CHECK(contains(changed(processor, [](auto& of) { of["do_center_crop"] = false; }),
                 "do_center_crop"));
  CHECK(contains(changed(processor, [](auto& of) { of["crop_size"] = 200; }), "crop_size"));
  CHECK(contains(changed("image_encoder/config.json", [](auto& of) { of["hidden_size"] = 640; }),
                 "image_dim"));
  CHECK(contains(changed("transformer/config.json", [](auto& of) { of["in_channels"] = 32; }),
                 "in_channels"));
  CHECK(contains(changed("model_index.json",
                         [](auto& of) {
                           of["image_encoder"] = {nullptr, nullptr};
                         }),
                 "image_processor"));
}

TEST_CASE("what Wan's configs may not say is refused by key") {
  const auto refusal = [](const char* key, const nlohmann::json& value) {
    auto config = nlohmann::json::parse(kWan13bConfig.config);
    config[key] = value;
    return error_of(
        [&] { spec::read_transformer_spec(spec::ConfigReader(config.dump(), "config.json"), ""); });
  };
  CHECK(contains(refusal("image_dim", 1280), "added_kv_proj_dim"));
  CHECK(contains(refusal("added_kv_proj_dim", 1536), "added_kv_proj_dim"));
  CHECK(contains(refusal("pos_embed_seq_len", 514), "pos_embed_seq_len"));
  CHECK(contains(refusal("out_channels", 36), "out_channels"));
  CHECK(contains(refusal("patch_size", {2, 2, 2}), "patch_size"));
  CHECK(contains(refusal("patch_size", {1, 2, 1}), "patch_size"));
  CHECK(contains(refusal("qk_norm", "rms_norm"), "qk_norm"));
  CHECK(contains(refusal("surprise", 1), "surprise"));

  const PublishedWanFolder folder(kWan13bConfig);
  const auto with_index = [&](const char* key, const nlohmann::json& value) {
    auto index = nlohmann::json::parse(kWanModelIndex);
    index[key] = value;
    write_bytes(folder.path() / "model_index.json", index.dump());
    return error_of([&] { spec::read_model_spec(folder.path()); });
  };
  CHECK(contains(with_index("boundary_ratio", 0.875), "but there is no transformer_2"));
  CHECK(contains(with_index("transformer_2", {"diffusers", "WanTransformer3DModel"}),
                 "transformer_2: component folder is missing"));
  CHECK(with_index("expand_timesteps", true).empty());
  CHECK(contains(with_index("text_encoder", {"transformers", "T5EncoderModel"}), "T5EncoderModel"));
}
