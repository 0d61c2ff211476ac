#include "models/spec/hub.h"

#include <cmath>
#include <cstdlib>
#include <set>

#include "models/spec/model_spec.h"
#include "models/spec/original_names.h"
#include "tests/spec/published_flux2.h"
#include "tests/spec/published_folder.h"
#include "tests/spec/published_hunyuan.h"
#include "tests/spec/published_krea2.h"
#include "tests/spec/published_qwen_image.h"
#include "tests/spec/published_unets.h"
#include "tests/spec/published_wan.h"
#include "tests/support/doctest.h"
#include "tests/support/hub_cache.h"
#include "tests/support/text.h"

using namespace troupe;
using namespace troupe::spec;
using troupe::testing::message_of;
namespace fs = std::filesystem;

namespace {

double billions(const WeightIndex& weights) {
  double count = 0;
  for (const TensorEntry& tensor : weights.tensors())
    count += static_cast<double>(tensor.elements());
  return count / 1e9;
}

void check_sizes(const std::string& name, const ModelSpec& model) {
  const auto known = std::ranges::find(known_models(), name, &KnownModel::name);
  REQUIRE(known != known_models().end());
  double network = billions(model.transformer_weights);
  if (model.second_transformer) network += billions(model.second_transformer->weights);
  double encoders = 0;
  for (const auto& encoder : model.text_encoders)
    encoders += billions(encoder.weights);
  if (model.vision) encoders += billions(model.vision->weights);
  INFO(name << ": " << network << " + " << encoders);
  CHECK(std::abs(known->network - network) <= 0.05);
  CHECK(std::abs(known->encoders - encoders) <= 0.05);
}

}  // namespace

TEST_CASE("a text from anywhere is a name of the hub only where it can be one") {
  for (const std::string& text :
       {std::string(100'000, 'a'), "a/" + std::string(100'000, 'b'), std::string("an-org/a@--all"),
        std::string("an-org/a@main;ls"), std::string("an-org/a@$HOME"), std::string("an-org/-a"),
        std::string("an-org/a/b"), std::string("out/a.png"), std::string("an-org/a.safetensors")})
    CHECK_FALSE(hub_name(text));
  CHECK(hub_name("an-org/a@v1.0+b")->revision == "v1.0+b");
}

TEST_CASE("what is a name of the hub, and what a path") {
  CHECK(hub_name("an-org/a_model-1.5") == HubName{"an-org/a_model-1.5", "main"});
  CHECK(hub_name("an-org/a-model@refs/pr/1") == HubName{"an-org/a-model", "refs/pr/1"});
  CHECK(hub_name("sdxl") == HubName{"stabilityai/stable-diffusion-xl-base-1.0", "main"});
  CHECK(hub_name("sdxl@v1")->revision == "v1");
  for (const char* path : {"", "a-model", "/an-org/a-model", "./an-org/a-model", "../a-model",
                           "a/b/c", "an-org/", "/a-model", ".hidden/a", "an org/a", "an-org/a@",
                           "an-org/a@..", "an-org/a@../b", "an-org/a@/b", "sdxl@a/../b"})
    CHECK_FALSE_MESSAGE(hub_name(path), path);
  CHECK(hub_text({"an-org/a-model", "main"}) == "an-org/a-model");
  CHECK(hub_text({"an-org/a-model", "v1"}) == "an-org/a-model@v1");
}

TEST_CASE("the cache is where huggingface_hub has it") {
  testing::CacheVariables environment;
  environment.set("HOME", "/home/me");
  CHECK(hub_cache() == "/home/me/.cache/huggingface/hub");
  environment.set("XDG_CACHE_HOME", "/caches");
  CHECK(hub_cache() == "/caches/huggingface/hub");
  environment.set("HF_HOME", "~/hf");
  CHECK(hub_cache() == "/home/me/hf/hub");
  environment.set("HUGGINGFACE_HUB_CACHE", "/old");
  CHECK(hub_cache() == "/old");
  environment.set("HF_HUB_CACHE", "${HF_HOME}-$NOT_SET_ANYWHERE");
  CHECK(hub_cache() == "/home/me/hf-$NOT_SET_ANYWHERE");

  CHECK_FALSE(hub_is_offline());
  environment.set("TRANSFORMERS_OFFLINE", "yes");
  CHECK(hub_is_offline());
  environment.set("HF_HUB_OFFLINE", "0");
  CHECK_FALSE(hub_is_offline());
}

TEST_CASE("a model in the cache, by its branch, by its commit, by a request to merge") {
  const testing::HubCache cache;
  CHECK(model_folder("an-org/a-model") == cache.snapshot());
  CHECK(model_folder(std::string("an-org/a-model@") + testing::HubCache::kCommit) ==
        cache.snapshot());
  CHECK(model_folder("an-org/a-model@refs/pr/1") == cache.snapshot());
  CHECK(model_folder("/an/absolute/path") == "/an/absolute/path");
  CHECK(cached_models() == std::vector<HubName>{{"an-org/a-model", "main"}});
  CHECK(model_label(cache.snapshot()) == "an-org/a-model");
  CHECK(model_label(cache.snapshot().string() + "/") == "an-org/a-model");
  CHECK(model_label("z-image-turbo") == "Tongyi-MAI/Z-Image-Turbo");
  CHECK(model_label("an-org/a-model@v1.0") == "an-org/a-model@v1.0");
  CHECK(model_label("/models/pixart/") == "pixart");

  const auto other = message_of([] { model_folder("an-org/other@v2"); });
  CHECK(other.find("an-org/other@v2: is no folder here, and not in the Hugging Face cache " +
                   cache.scratch.path.string()) != std::string::npos);
  CHECK(other.find("`hf download an-org/other --revision v2 --include model_index.json --include "
                   "\"scheduler/*.json\"") != std::string::npos);
  CHECK(cached_model_folder_or_text("an-org/other") == "an-org/other");
  fs::remove(cache.snapshot() / "model_index.json");
  CHECK_FALSE(cached_model({"an-org/a-model"}));
  CHECK(cached_models().empty());
}

TEST_CASE("a snapshot's links lead to its repository's folder, and nowhere else") {
  const testing::HubCache cache;
  cache.scratch.file("elsewhere", "{}");
  fs::create_symlink("../../../../elsewhere", cache.snapshot() / "vae/model.safetensors");
  CHECK(message_of([] { model_folder("an-org/a-model"); })
            .find("vae/model.safetensors: is a link out of the model's folder in the Hugging Face "
                  "cache") != std::string::npos);
  CHECK(cached_model_folder_or_text("an-org/a-model") == "an-org/a-model");
}

TEST_CASE("a commit that is none leads nowhere") {
  const testing::HubCache cache;
  for (const char* commit : {"../../../x", "..", "", "/etc", "a/b"}) {
    cache.scratch.file("models--an-org--a-model/refs/main", commit);
    CHECK_FALSE(cached_model({"an-org/a-model"}));
  }
}

namespace {

/// The tensors of a published transformer or U-Net as its authors keep them.
WeightIndex of_authors(const TransformerSpec& spec) {
  std::vector<TensorEntry> entries;
  const auto names = original_tensors(spec);
  std::set<std::string> seen;
  for (const ExpectedTensor& tensor : expected_tensors(spec)) {
    const auto found = names.find(tensor.name);
    const std::string name =
        "model.diffusion_model." + (found == names.end() ? tensor.name : found->second.name);
    if (seen.insert(name).second)
      entries.push_back({.name = name, .shape = tensor.shape, .file = {}});
  }
  return WeightIndex().with_tensors(entries);
}

}  // namespace

TEST_CASE("a file's tensors say which published model it goes with") {
  using namespace troupe::testing;
  const auto base = [](const auto& folder) {
    return base_of(of_authors(read_model_spec(folder.path()).transformer));
  };
  CHECK(base(published_flux(kFluxDevConfig)) == "flux.1-dev");
  CHECK(base(published_flux(kFluxSchnellConfig)) == "flux.1-schnell");
  const auto fill = published_flux(kFluxFillConfig, "FluxFillPipeline");
  CHECK(base(fill) == "flux.1-fill-dev");
  CHECK(base_of(read_model_spec(fill.path()).transformer_weights) == "flux.1-fill-dev");
  const auto depth = published_flux(kFluxDepthConfig, "FluxControlPipeline");
  CHECK(base(depth) == "flux.1-depth-dev");
  CHECK(base(published_qwen_image()) == "qwen-image");
  CHECK(base(published_krea2()) == "krea-2-raw");
  CHECK(base(PublishedUNetFolder(false)) == "sd1.5");
  CHECK(base(PublishedUNetFolder(true)) == "sdxl");
  CHECK(base(published_sd3(kSd3MediumConfig)) == "sd3-medium");
  CHECK(base(published_sd3(kSd35MediumConfig)) == "sd3.5-medium");
  CHECK(base(published_sd3(kSd35LargeConfig)) == "sd3.5-large");
  CHECK(base(PublishedWanFolder(kWan13bConfig)) == "wan2.1-t2v-1.3b");
  CHECK(base(PublishedWanFolder(kWan14bConfig)) == "wan2.1-t2v-14b");
  const auto wan = PublishedWanFolder(kWan14bConfig);
  std::vector<ExpectedTensor> tensors;
  const auto authors = of_authors(read_model_spec(wan.path()).transformer);
  for (const auto& entry : authors.tensors())
    tensors.push_back({entry.name, entry.shape});
  for (const auto& [name, known] : {std::pair{"wan14b.safetensors", "wan2.1-t2v-14b"},
                                    {"wan2.2_t2v_high_noise_14B_fp8.safetensors", ""},
                                    {"Wan2.2-T2V-A14B-LowNoise-Q4.safetensors", ""}}) {
    write_sparse_weights(wan.path() / name, tensors, Dtype::bfloat16);
    CHECK(base_of(WeightIndex::read_file(wan.path() / name)) == known);
  }
  CHECK(base(published_zimage()) == "z-image-turbo");
  CHECK(base(published_chroma()) == "chroma1-hd");
  CHECK(base(published_klein(kKlein4bConfig, kQwen34bConfig)) == "flux.2-klein-4b");
  CHECK(base(published_klein(kKlein9bConfig, kQwen38bConfig)) == "flux.2-klein-9b");
  const auto by_diffusers = [](const auto& folder) {
    return base_of(read_model_spec(folder.path()).transformer_weights);
  };
  CHECK(by_diffusers(published_klein(kKlein4bConfig, kQwen34bConfig)) == "flux.2-klein-4b");
  CHECK(by_diffusers(published_chroma()) == "chroma1-hd");
  CHECK(by_diffusers(published_ovis()) == "ovis-image");
  CHECK(by_diffusers(published_longcat()) == "longcat-image");
  CHECK(by_diffusers(published_qwen_image()) == "qwen-image");
  CHECK(by_diffusers(published_krea2()) == "krea-2-raw");
  CHECK(by_diffusers(published_flux(kFluxSchnellConfig)) == "flux.1-schnell");
  CHECK(by_diffusers(published_sd3(kSd3MediumConfig)) == "sd3-medium");
  CHECK(by_diffusers(published_sd3(kSd35MediumConfig)) == "sd3.5-medium");
  CHECK(by_diffusers(published_sd3(kSd35LargeConfig)) == "sd3.5-large");
  CHECK(by_diffusers(PublishedUNetFolder(false)) == "sd1.5");
  CHECK(by_diffusers(PublishedUNetFolder(true)) == "sdxl");
  CHECK(by_diffusers(PublishedWanFolder(kWan13bConfig)) == "wan2.1-t2v-1.3b");
  CHECK(by_diffusers(PublishedWanFolder(kWan14bConfig)) == "wan2.1-t2v-14b");
  CHECK(base(published_hunyuan(kHunyuanV12Config)) == "");
  const auto flux = published_flux(kFluxDevConfig);
  tensors.clear();
  const auto flux_authors = of_authors(read_model_spec(flux.path()).transformer);
  for (const auto& entry : flux_authors.tensors())
    tensors.push_back({entry.name, entry.shape});
  for (const auto& [name, known] : {std::pair{"flux1-dev.safetensors", "flux.1-dev"},
                                    {"flux1-dev-kontext_fp8.safetensors", "flux.1-kontext-dev"}}) {
    write_sparse_weights(flux.path() / name, tensors, Dtype::bfloat16);
    CHECK(base_of(WeightIndex::read_file(flux.path() / name)) == known);
  }
  tensors.clear();
  const auto of_depth = read_model_spec(depth.path()).transformer_weights;
  for (const auto& entry : of_depth.tensors())
    tensors.push_back({entry.name, entry.shape});
  const auto canny = depth.path() / "flux1-canny-dev.safetensors";
  write_sparse_weights(canny, tensors, Dtype::bfloat16);
  CHECK(base_of(WeightIndex::read_file(canny)) == "flux.1-canny-dev");
  CHECK(base_of(read_model_spec(flux.path()).transformer_weights) == "flux.1-dev");
  const auto qwen = published_qwen_image();
  tensors.clear();
  for (const auto& tensor : expected_tensors(read_model_spec(qwen.path()).transformer))
    tensors.push_back({tensor.name, tensor.shape});
  for (const auto& [name, known] :
       {std::pair{"qwen_image_bf16.safetensors", "qwen-image"},
        {"qwen_image_edit_fp8.safetensors", "qwen-image-edit"},
        {"Qwen-Image-Edit-2509-Q4.safetensors", "qwen-image-edit-2509"},
        {"qwen_image_edit_2511_bf16.safetensors", "qwen-image-edit-2511"}}) {
    write_sparse_weights(qwen.path() / name, tensors, Dtype::bfloat16);
    CHECK(base_of(WeightIndex::read_file(qwen.path() / name)) == known);
  }
}

TEST_CASE("each short name stands for its repository, and for no other's") {
  std::set<std::string_view> names, repositories;
  for (const KnownModel& model : known_models()) {
    CAPTURE(model.name);
    CHECK(names.insert(model.name).second);
    CHECK(repositories.insert(model.repository).second);
    const auto name = hub_name(std::string(model.name));
    REQUIRE(name);
    CHECK(name->repository == model.repository);
    CHECK(name->revision == "main");
    CHECK(hub_name(std::string(model.repository)) == name);
    CHECK(!model.licence.empty());
  }
}

TEST_CASE("without a home in the environment caches are those of the system's user") {
  const testing::CacheVariables none_set;
  CHECK(user_caches().is_absolute());
  CHECK(user_caches().filename() == ".cache");
}

TEST_CASE("sizes of the models with short names are those of the published shapes") {
  using namespace troupe::testing;
  const auto read = [](const auto& folder) { return read_model_spec(folder.path()); };
  check_sizes("chroma1-hd", read(published_chroma()));
  check_sizes("flux.1-dev", read(published_flux(kFluxDevConfig)));
  check_sizes("flux.1-schnell", read(published_flux(kFluxSchnellConfig)));
  check_sizes("flux.1-fill-dev", read(published_flux(kFluxFillConfig, "FluxFillPipeline")));
  for (const char* name : {"flux.1-depth-dev", "flux.1-canny-dev"})
    check_sizes(name, read(published_flux(kFluxDepthConfig, "FluxControlPipeline")));
  check_sizes("flux.2-klein-4b", read(published_klein(kKlein4bConfig, kQwen34bConfig)));
  check_sizes("flux.2-klein-9b", read(published_klein(kKlein9bConfig, kQwen38bConfig)));
  check_sizes("flux.2-klein-base-4b", read(published_klein(kKlein4bConfig, kQwen34bConfig, false)));
  check_sizes("flux.2-klein-base-9b", read(published_klein(kKlein9bConfig, kQwen38bConfig, false)));
  check_sizes("hunyuandit-v1.2", read(published_hunyuan(kHunyuanV12Config)));
  check_sizes("longcat-image", read(published_longcat()));
  check_sizes("ovis-image", read(published_ovis()));
  check_sizes("pixart-sigma", read(published_sigma()));
  check_sizes("krea-2-raw", read(published_krea2()));
  check_sizes("krea-2-turbo", read(published_krea2()));
  check_sizes("qwen-image", read(published_qwen_image()));
  check_sizes("qwen-image-edit", read(published_qwen_edit("QwenImageEditPipeline")));
  check_sizes("qwen-image-edit-2511", read(published_qwen_edit("QwenImageEditPlusPipeline")));
  check_sizes("sd1.5", read(PublishedUNetFolder(false)));
  check_sizes("sd3-medium", read(published_sd3(kSd3MediumConfig)));
  check_sizes("sd3.5-medium", read(published_sd3(kSd35MediumConfig)));
  check_sizes("sd3.5-large", read(published_sd3(kSd35LargeConfig)));
  check_sizes("sdxl", read(PublishedUNetFolder(true)));
  check_sizes("wan2.1-t2v-1.3b", read(PublishedWanFolder(kWan13bConfig)));
  check_sizes("wan2.1-flf2v-14b", read(published_wan_i2v(kWanFlf2vConfig)));
  check_sizes("wan2.1-i2v-14b-480p", read(published_wan_i2v()));
  check_sizes("wan2.1-i2v-14b-720p", read(published_wan_i2v()));
  check_sizes("wan2.2-i2v-a14b", read(published_wan_i2v_a14b()));
  check_sizes("wan2.2-t2v-a14b", read(published_wan_a14b()));
  check_sizes("wan2.1-t2v-14b", read(PublishedWanFolder(kWan14bConfig)));
  check_sizes("wan2.2-ti2v-5b", read(published_wan22()));
  check_sizes("z-image-turbo", read(published_zimage()));
}
