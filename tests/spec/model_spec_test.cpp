#include "models/spec/model_spec.h"

#include <sys/stat.h>

#include "tests/spec/model_folder.h"
#include "tests/spec/published_configs.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::testing;
using nlohmann::json;

namespace {

/// A folder as published: configs, weights of full size as holes, an empty sentencepiece file.
class PublishedFolder {
 public:
  explicit PublishedFolder(const char* transformer_config) {
    write("model_index.json", kPixArtModelIndex);
    write("scheduler/scheduler_config.json", kPixArtScheduler);
    write("tokenizer/spiece.model", "x");
    write("transformer/config.json", transformer_config);
    write("text_encoder/config.json", kT5XxlConfig);
    write("vae/config.json", kSdVaeConfig);
    const auto config = [&](const char* name) {
      return spec::ConfigReader::read(path() / name / "config.json");
    };
    transformer = spec::expected_tensors(spec::PixArtSpec::read(config("transformer")));
    text_encoder = spec::expected_tensors(spec::read_t5_spec(config("text_encoder")));
    vae = spec::expected_tensors(spec::read_vae_spec(config("vae")));
    write_weights();
  }

  void write_weights() const {
    write_sparse_weights(path() / "transformer/diffusion_pytorch_model.safetensors", transformer,
                         spec::Dtype::float32);
    write_sparse_weights(path() / "text_encoder/model.safetensors", text_encoder,
                         spec::Dtype::bfloat16);
    write_sparse_weights(path() / "vae/diffusion_pytorch_model.safetensors", vae,
                         spec::Dtype::float32);
  }
  void write(const std::string& name, const std::string& text) const {
    write_bytes(path() / name, text);
  }
  /// Sets one key of a JSON file; an empty value removes it.
  void edit(const std::string& name, const std::string& key, const json& value) const {
    json content = json::parse(read_bytes(path() / name));
    if (value.is_discarded()) {
      content.erase(key);
    } else {
      content[key] = value;
    }
    write(name, content.dump());
  }
  std::string error() const {
    return error_of([&] { spec::read_model_spec(path()); });
  }
  const std::filesystem::path& path() const { return folder_.path; }

  std::vector<spec::ExpectedTensor> transformer, text_encoder, vae;

 private:
  Scratch folder_;
};

const json kErase(json::value_t::discarded);

}  // namespace

TEST_CASE("the first published PixArt-XL folder loads with its old config and extra buffer") {
  PublishedFolder folder(kPixArtXl512Config);
  folder.transformer.push_back({"caption_projection.y_embedding", {120, 4096}});
  folder.text_encoder.push_back({"encoder.embed_tokens.weight", {32128, 4096}});
  for (auto& tensor : folder.vae) {
    if (!tensor.other_names.empty()) tensor.name = tensor.other_names.front();
  }
  folder.vae.push_back({"encoder.conv_in.weight", {128, 3, 3, 3}});
  folder.write_weights();

  const auto model = spec::read_model_spec(folder.path());
  CHECK(model.pipeline_class == "PixArtAlphaPipeline");
  CHECK(model.transformer.num_layers == 28);
  CHECK(model.transformer.inner_dim() == 1152);
  const auto& family = std::get<spec::PixArtSpec>(model.transformer.family);
  CHECK(family.interpolation_scale == 1);
  CHECK_FALSE(family.use_additional_conditions);
  CHECK(family.learned_sigma());
  const auto& text = std::get<spec::T5Spec>(model.text_encoders.at(0).config);
  CHECK(text.num_layers == 24);
  CHECK(text.gated_gelu);
  CHECK(model.vae.scale_factor() == 8);
  CHECK(model.vae.scaling_factor == doctest::Approx(0.18215));
  CHECK(model.scheduler.class_name == "DPMSolverMultistepScheduler");
  CHECK(json::parse(model.scheduler.config)["lambda_min_clipped"] == "-Infinity");
  CHECK(model.pixel_multiple() == 16);
  CHECK(model.default_size() == 512);

  const auto bytes = spec::weight_bytes(model);
  REQUIRE(bytes.blocks.size() == 28);
  const std::uint64_t block = 4ULL * (16 * 1152 * 1152 + (8 + 5 + 6) * 1152);
  CHECK(bytes.blocks.front() == block);
  CHECK(bytes.shared == 4ULL * (1152 * 257 + 1152 * 1153 + 6 * 1152 * 1153));
  CHECK(bytes.embed == 4ULL * (1152 * 17 + 1152 * 4097 + 1152 * 1153));
  CHECK(bytes.final == 4ULL * (2 * 1152 + 32 * 1153));
  CHECK(bytes.text_encoder == 2ULL * 4'762'310'656);
  CHECK(bytes.text_encoder_peak == 2ULL * (4 * 4096 * 4096 + 3 * 4096 * 10240 + 2 * 4096 + 2048));
  CHECK(bytes.vae_decoder == 4ULL * 49'490'199);
  // Computed in float32, a block is twice what is stored; the embedding is looked up as it is.
  const std::uint64_t encoded = bytes.text_encoder_peak / 2;
  CHECK(spec::encoder_peak_bytes(model.text_encoders.front(), 4) ==
        std::max<std::uint64_t>(4 * encoded, 2ULL * 32128 * 4096));
  CHECK(spec::encoder_peak_bytes(model.text_encoders.front(), 2) ==
        std::max<std::uint64_t>(2 * encoded, 2ULL * 32128 * 4096));
  CHECK(spec::encoder_bytes(model.text_encoders.front(), 2) ==
        bytes.text_encoder - 2ULL * 32128 * 4096);
}

TEST_CASE("the published 1024 px config implies micro-conditions and a scale of 2") {
  PublishedFolder folder(kPixArtXl1024Config);
  folder.edit("vae/config.json", "scaling_factor", 0.13025);
  const auto model = spec::read_model_spec(folder.path());
  const auto& family = std::get<spec::PixArtSpec>(model.transformer.family);
  CHECK(family.use_additional_conditions);
  CHECK(family.interpolation_scale == 2);
  CHECK(family.condition_dim() == 384);
  CHECK(model.transformer_weights.contains("adaln_single.emb.aspect_ratio_embedder.linear_2.bias"));
  CHECK(model.default_size() == 1024);
  CHECK(model == spec::read_model_spec(folder.path()));
}

TEST_CASE("tensors are checked against the config from headers alone") {
  PublishedFolder folder(kPixArtXl512Config);
  const auto all = folder.transformer;
  const auto error_with = [&](auto change) {
    folder.transformer = all;
    change(folder.transformer);
    folder.write_weights();
    return folder.error();
  };
  CHECK(contains(
      error_with([](auto& list) { list.erase(list.begin() + 40); }),
      "tensor \"" + all[40].name + "\" " + spec::shape_text(all[40].shape) + " is missing"));
  CHECK(contains(error_with([](auto& list) { list.back().shape = {33}; }),
                 "tensor \"proj_out.bias\" has shape [33], the config calls for [32]"));
  CHECK(contains(error_with([](auto& list) {
                   list.push_back({"transformer_blocks.28.scale_shift_table", {6, 1152}});
                 }),
                 "\"transformer_blocks.28.scale_shift_table\" [6, 1152] is not called for"));
  folder.transformer = all;
  folder.vae.front().shape[0] = 5;
  folder.write_weights();
  CHECK(contains(folder.error(), "post_quant_conv.weight"));
}

TEST_CASE("unsupported and unfit settings are refused by key and value") {
  PublishedFolder folder(kPixArtXl512Config);
  struct Case {
    const char* file;
    const char* key;
    json value;
    const char* error;
  };
  const Case cases[] = {
      {"model_index.json", "_class_name", "KolorsPipeline", "\"KolorsPipeline\" is not supported"},
      {"model_index.json", "vae", kErase, "component \"vae\" is missing"},
      {"model_index.json", "vae", {"diffusers", "AutoencoderDC"}, "class \"AutoencoderDC\""},
      {"model_index.json", "vae", {nullptr, nullptr}, "must be a pair"},
      {"model_index.json", "safety_checker", {"a", "B"}, "key \"safety_checker\" = [\"a\",\"B\"]"},
      {"model_index.json", "adapter", true, "not supported: key \"adapter\" = true"},
      {"transformer/config.json", "_class_name", "DiTTransformer2DModel", "_class_name"},
      {"transformer/config.json", "activation_fn", "geglu", "\"activation_fn\" = \"geglu\""},
      {"transformer/config.json", "norm_type", "layer_norm", "\"norm_type\""},
      {"transformer/config.json", "attention_type", "gated", "\"attention_type\" = \"gated\""},
      {"transformer/config.json", "num_layers", 0, "\"num_layers\" = 0 must be an integer from 1"},
      {"transformer/config.json", "caption_channels", nullptr, "\"caption_channels\" = null"},
      {"transformer/config.json", "caption_channels", 512, "does not fit text_encoder d_model"},
      {"transformer/config.json", "out_channels", 9, "\"out_channels\" = 9"},
      {"transformer/config.json", "cross_attention_dim", 768, "\"cross_attention_dim\" = 768"},
      {"transformer/config.json", "lora", 1, "not supported: key \"lora\" = 1"},
      {"text_encoder/config.json", "model_type", "umt5", "\"model_type\" = \"umt5\""},
      {"text_encoder/config.json", "feed_forward_proj", "silu", "\"feed_forward_proj\" = \"silu\""},
      {"text_encoder/config.json", "is_decoder", true, "\"is_decoder\" = true"},
      {"vae/config.json", "latents_mean", json::array({0.5}), "\"latents_mean\" = [0.5]"},
      {"vae/config.json", "act_fn", "gelu", "\"act_fn\" = \"gelu\""},
      {"vae/config.json", "block_out_channels", {100, 512}, "multiples of norm_num_groups, 32"},
      {"vae/config.json", "up_block_types", {"AttnUpDecoderBlock2D"}, "one entry for each"},
      {"vae/config.json", "latent_channels", 16, "does not fit vae latent_channels = 16"},
  };
  for (const Case& item : cases) {
    const std::string before = read_bytes(folder.path() / item.file);
    folder.edit(item.file, item.key, item.value);
    const std::string error = folder.error();
    INFO(item.file << " " << item.key << ": " << error);
    CHECK(contains(error, item.error));
    CHECK_FALSE(contains(error, "\n"));
    folder.write(item.file, before);
  }
  CHECK(folder.error() == "");
}

TEST_CASE("missing parts are named") {
  CHECK(contains(error_of([] { spec::read_model_spec("/nowhere"); }), "/nowhere: no such folder"));
  // As a folder without the right to look into, which root always has.
  const Scratch scratch;
  std::filesystem::create_symlink("loop", scratch.path / "loop");
  CHECK(error_of([&] { spec::read_model_spec(scratch.path / "loop"); }) ==
        "[read_model] " + scratch / "loop" + ": cannot be read: Too many levels of symbolic links");
  PublishedFolder folder(kPixArtXl512Config);
  const auto error_without = [&](const char* name) {
    const auto aside = folder.path() / "aside";
    std::filesystem::rename(folder.path() / name, aside);
    const std::string error = folder.error();
    std::filesystem::rename(aside, folder.path() / name);
    return error;
  };
  CHECK(contains(error_without("model_index.json"), "has no model_index.json"));
  CHECK(contains(error_without("vae"), "component folder is missing"));
  CHECK(contains(error_without("vae/config.json"), "vae/config.json: no such file"));
  CHECK(contains(error_without("vae/diffusion_pytorch_model.safetensors"), "no weights"));
  CHECK(contains(error_without("tokenizer/spiece.model"), "neither spiece.model nor"));
  CHECK(contains(error_without("scheduler/scheduler_config.json"), "no such file"));
}

TEST_CASE("a link to what is not there is named, whatever file of a folder is looked for") {
  PublishedFolder folder(kPixArtXl512Config);
  for (const char* name :
       {"model_index.json", "vae", "vae/config.json", "vae/diffusion_pytorch_model.safetensors",
        "tokenizer/spiece.model", "scheduler/scheduler_config.json"}) {
    CAPTURE(name);
    const auto path = folder.path() / name;
    const auto aside = folder.path() / "aside";
    std::filesystem::rename(path, aside);
    std::filesystem::create_symlink("../blobs/1f", path);
    CHECK(folder.error() == "[read_model] " + path.string() +
                                ": is a link to ../blobs/1f, which is not there (`cp -rL` copies "
                                "what links lead to)");
    std::filesystem::remove(path);
    std::filesystem::rename(aside, path);
  }
  std::filesystem::create_symlink("gone.json", folder.path() / "tokenizer/tokenizer_config.json");
  CHECK(contains(folder.error(), "tokenizer_config.json: is a link to gone.json"));
}

TEST_CASE("what is neither a file nor a folder is named as what it is, and never opened") {
  PublishedFolder folder(kPixArtXl512Config);
  for (const char* name :
       {"model_index.json", "vae", "vae/config.json", "vae/diffusion_pytorch_model.safetensors",
        "tokenizer/spiece.model", "scheduler/scheduler_config.json"}) {
    CAPTURE(name);
    const auto path = folder.path() / name;
    const auto aside = folder.path() / "aside";
    std::filesystem::rename(path, aside);
    REQUIRE(mkfifo(path.c_str(), 0600) == 0);
    CHECK(folder.error() ==
          "[read_model] " + path.string() + ": is a named pipe, not a file or a folder");
    std::filesystem::remove(path);
    std::filesystem::rename(aside, path);
  }
  std::filesystem::remove(folder.path() / "vae/config.json");
  std::filesystem::create_directory(folder.path() / "vae/config.json");
  CHECK(contains(folder.error(), "vae/config.json: is a folder"));
}

TEST_CASE("the folders in fixtures and examples load") {
  for (const char* name :
       {"tests/fixtures/tiny-pixart", "tests/fixtures/tiny-pixart-1024", "examples/demo/model"}) {
    const auto folder = std::filesystem::path(TROUPE_SOURCE_DIR) / name;
    INFO(name);
    const auto model = spec::read_model_spec(folder);
    CHECK(model.text_encoders.at(0).tokenizer.tokenizer_json.has_value());
    CHECK(std::get<spec::PixArtSpec>(model.transformer.family).caption_channels ==
          std::get<spec::T5Spec>(model.text_encoders.at(0).config).d_model);
    const auto bytes = spec::weight_bytes(model);
    std::uint64_t sum = bytes.embed + bytes.shared + bytes.final;
    for (auto block : bytes.blocks)
      sum += block;
    CHECK(sum == model.transformer_weights.bytes());
    CHECK(bytes.text_encoder <= model.text_encoders.at(0).weights.bytes());
    CHECK(bytes.vae_decoder < model.vae_weights.bytes());
  }
}
