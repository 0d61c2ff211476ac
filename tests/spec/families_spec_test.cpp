#include <algorithm>
#include <functional>
#include <numeric>

#include "models/spec/scheduler_config.h"
#include "models/spec/transformer_facts.h"
#include "tests/spec/published_folder.h"
#include "tests/spec/published_hunyuan.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

struct Named {
  const char* name;
  const PublishedTransformer& published;
};

const std::vector<Named>& all_published() {
  static const std::vector<Named> all = {
      {"SD3 medium", kSd3MediumConfig},       {"SD3.5 medium", kSd35MediumConfig},
      {"SD3.5 large", kSd35LargeConfig},      {"FLUX.1 dev", kFluxDevConfig},
      {"FLUX.1 schnell", kFluxSchnellConfig}, {"Chroma", kChromaConfig},
      {"Ovis-Image", kOvisImageConfig},       {"LongCat-Image", kLongCatImageConfig},
      {"HunyuanDiT 1.2", kHunyuanV12Config},  {"HunyuanDiT 1.1", kHunyuanV11Config},
      {"PixArt-Σ", kPixArtSigmaConfig},       {"Wan 2.1 1.3B", kWan13bConfig},
      {"Wan 2.1 14B", kWan14bConfig},         {"Wan 2.1 I2V", kWanI2vConfig},
      {"Wan 2.1 FLF2V", kWanFlf2vConfig},     {"Wan 2.2 I2V-A14B", kWanI2vA14bConfig},
      {"Wan 2.2 TI2V-5B", kWan22Ti2vConfig},  {"Z-Image", kZImageConfig},
      {"Qwen-Image", kQwenImageConfig},       {"FLUX.2-klein 4B", kKlein4bConfig},
      {"FLUX.2-klein 9B", kKlein9bConfig},    {"Krea 2", kKrea2Config}};
  return all;
}

spec::TransformerSpec spec_of(const PublishedTransformer& published) {
  return spec::read_transformer_spec(spec::ConfigReader(published.config, "config.json"), "");
}

std::uint64_t count_of(const spec::ExpectedTensor& tensor) {
  return static_cast<std::uint64_t>(std::accumulate(tensor.shape.begin(), tensor.shape.end(),
                                                    std::int64_t{1}, std::multiplies<>()));
}

std::uint64_t elements_of(const std::vector<spec::ExpectedTensor>& tensors) {
  std::uint64_t elements = 0;
  for (const auto& tensor : tensors)
    elements += count_of(tensor);
  return elements;
}

std::uint64_t hash_of(std::vector<spec::ExpectedTensor> tensors) {
  std::ranges::sort(tensors, {}, &spec::ExpectedTensor::name);
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const auto& tensor : tensors) {
    for (const char c : tensor.name + " " + spec::shape_text(tensor.shape) + "\n")
      hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  }
  return hash;
}

}  // namespace

TEST_CASE("published configs call for the tensors that diffusers makes, by name and shape") {
  for (const auto& [name, published] : all_published()) {
    CAPTURE(name);
    const auto tensors = spec::expected_tensors(spec_of(published));
    CHECK(tensors.size() == published.tensors);
    CHECK(elements_of(tensors) == published.elements);
    CHECK(hash_of(tensors) == published.names_and_shapes);
  }
}

TEST_CASE("stages and shards of the weights have together what the whole has") {
  for (const auto& [name, published] : all_published()) {
    CAPTURE(name);
    const auto spec = spec_of(published);
    const std::int64_t layers = spec.num_layers;
    const spec::TransformerPart whole{0, layers, true, true, 0, 1};
    const std::uint64_t all = spec::kept_elements(spec, whole);
    CHECK(all <= published.elements);
    const std::uint64_t shared = spec::kept_elements(spec, {});
    for (const std::int64_t stages : {2, 5, 16}) {
      std::uint64_t together = shared;
      for (std::int64_t stage = 0; stage < stages; ++stage) {
        const spec::TransformerPart part{stage * layers / stages,
                                         (stage + 1) * layers / stages,
                                         stage == 0,
                                         stage + 1 == stages,
                                         0,
                                         1};
        together += spec::kept_elements(spec, part) - shared;
      }
      CHECK(together == all);
    }
    for (const std::int64_t shards : {2, 7}) {
      std::uint64_t most = 0;
      for (std::int64_t shard = 0; shard < shards; ++shard) {
        const spec::TransformerPart part{0, layers, true, true, shard, shards};
        most = std::max(most, spec::kept_elements(spec, part));
      }
      CHECK(most < all);
      CHECK(most * static_cast<std::uint64_t>(shards) >= all);
    }
    CHECK(spec.blocks.size() == static_cast<std::size_t>(layers));
    CHECK(spec.edge_width(0, layers, 0) == spec.inner_dim());
    CHECK(spec.edge_width(0, layers, layers) == spec.inner_dim());
  }
  const auto hunyuan = spec_of(kHunyuanV12Config);
  // 19 states for the second half, and the current one
  CHECK(hunyuan.edge_width(0, 40, 20) == 20 * 1408);
  CHECK(hunyuan.edge_width(0, 20, 20) == 20 * 1408);
  CHECK(hunyuan.edge_width(20, 40, 20) == 20 * 1408);
  // Of four stages the first has ten for the last, and the second nine for the third.
  CHECK(hunyuan.skip_width(0, 10, 30, 40) == 10 * 1408);
  CHECK(hunyuan.skip_width(10, 20, 20, 30) == 9 * 1408);
  CHECK(hunyuan.skip_width(0, 10, 10, 30) == 0);
  CHECK(hunyuan.skip_width(0, 20, 20, 40) == 19 * 1408);
  CHECK(hunyuan.edge_width(10, 20, 10) == 1408);
  CHECK(hunyuan.edge_width(10, 20, 20) == 10 * 1408);
  CHECK(hunyuan.edge_width(20, 30, 25) == (1 + 5) * 1408);
  CHECK(hunyuan.edge_width(20, 30, 30) == 1408);
  const auto sd35 = spec_of(kSd35MediumConfig);
  CHECK(sd35.attentions_before(13) == 26);
  CHECK(sd35.attentions_before(24) == 37);
}

TEST_CASE("published joint folders load from configs and headers alone") {
  const auto sd3 = published_sd3(kSd3MediumConfig);
  const auto medium = spec::read_model_spec(sd3.path());
  CHECK(medium.default_size() == 1024);
  CHECK(medium.pixel_multiple() == 16);
  CHECK(medium.text_tokens == 256);
  CHECK(medium.transformer.joint_tokens(256) == 333);
  CHECK(medium.has_branches(7));
  CHECK(medium.text_encoders.size() == 3);
  const auto bytes = spec::weight_bytes(medium);
  std::uint64_t sum = bytes.embed + bytes.shared + bytes.final;
  for (const auto block : bytes.blocks)
    sum += block;
  CHECK(sum == 2 * kSd3MediumConfig.elements);
  CHECK(bytes.text_encoder > 2ULL * (4'762'310'656 + 123'000'000 + 694'000'000));
  const auto flux = published_flux(kFluxDevConfig);
  const auto dev = spec::read_model_spec(flux.path());
  CHECK(dev.transformer.num_layers == 57);
  CHECK(dev.transformer.in_channels == 16);
  CHECK(dev.transformer.patch_size == 2);
  CHECK(dev.transformer.joint_tokens(512) == 512);
  CHECK(dev.default_size() == 1024);
  CHECK_FALSE(dev.has_branches(3.5));
  CHECK(dev.even_sigmas);
}

TEST_CASE("FLUX.1 Fill and Depth have channels beside the latents, and other pipelines none") {
  const auto model_of = [](const PublishedTransformer& transformer, const char* pipeline) {
    return spec::read_model_spec(published_flux(transformer, pipeline).path());
  };
  const auto fill = model_of(kFluxFillConfig, "FluxFillPipeline");
  CHECK(fill.transformer.in_channels == 16);
  CHECK(fill.transformer.beside_channels == 80);
  CHECK(fill.transformer.out_channels == 16);
  CHECK(fill.defaults.inpainting == spec::CallDefaults{50, 30, 1});
  CHECK(fill.inputs.beside_mask());
  CHECK(elements_of(spec::expected_tensors(fill.transformer)) == kFluxFillConfig.elements);
  const auto depth = model_of(kFluxDepthConfig, "FluxControlPipeline");
  CHECK(depth.transformer.beside_channels == 16);
  CHECK(depth.control_pictures() == 1);
  CHECK(elements_of(spec::expected_tensors(depth.transformer)) == kFluxDepthConfig.elements);
  const auto refused = [&](const PublishedTransformer& transformer, const char* pipeline) {
    return error_of([&] { model_of(transformer, pipeline); });
  };
  CHECK(contains(refused(kFluxFillConfig, "FluxPipeline"),
                 "FluxPipeline puts 0 channels beside the latents' 16, but in_channels of its "
                 "network is 96"));
  CHECK(contains(refused(kFluxDevConfig, "FluxFillPipeline"), "puts 80 channels"));
  CHECK(contains(refused(kFluxFillConfig, "FluxControlPipeline"), "puts 16 channels"));
}

TEST_CASE("HunyuanDiT's and PixArt-Sigma's folders load whole, as published") {
  for (const PublishedTransformer* published : {&kHunyuanV12Config, &kHunyuanV11Config}) {
    const auto folder = published_hunyuan(*published);
    const auto model = spec::read_model_spec(folder.path());
    CHECK(model.default_size() == 1024);
    CHECK(model.pixel_multiple() == 16);
    CHECK(model.text_tokens == 256);
    CHECK(model.rescales_guidance);
    REQUIRE(model.text_encoders.size() == 2);
    CHECK(model.text_encoders[0].tokens == 77);
    CHECK(std::get<spec::BertSpec>(model.text_encoders[0].config).vocab_size == 47020);
    CHECK(std::get<spec::T5Spec>(model.text_encoders[1].config).gated_gelu);
    CHECK(model.vae.scaling_factor == 0.13025);
    CHECK(spec::sampler_name(model.scheduler, "") == "ddpm");
    CHECK(elements_of(spec::expected_tensors(
              std::get<spec::BertSpec>(model.text_encoders[0].config))) == kHunyuanBertElements);
    CHECK(elements_of(spec::expected_tensors(
              std::get<spec::T5Spec>(model.text_encoders[1].config))) == kMt5XlElements);
    CHECK(spec::weight_bytes(model).text_encoder >= 2 * (kHunyuanBertElements + kMt5XlElements));
  }
  const auto folder = published_sigma();
  const auto sigma = spec::read_model_spec(folder.path());
  CHECK(sigma.default_size() == 1024);
  CHECK(sigma.text_tokens == 300);
  CHECK(sigma.pixart_customs);
  CHECK(sigma.vae.scaling_factor == 0.13025);
  CHECK(spec::sampler_name(sigma.scheduler, "") == "dpmsolver++");
  CHECK(spec::weight_bytes(sigma).text_encoder >= 2ULL * 4'762'310'656);
}

TEST_CASE("what the families cannot do is refused by key") {
  const auto refusal = [](const PublishedTransformer& of, const char* key,
                          const nlohmann::json& value) {
    auto config = nlohmann::json::parse(of.config);
    config[key] = value;
    return error_of(
        [&] { spec::read_transformer_spec(spec::ConfigReader(config.dump(), "config.json"), ""); });
  };
  CHECK(contains(refusal(kSd3MediumConfig, "qk_norm", "layer_norm"), "qk_norm"));
  CHECK(contains(refusal(kSd3MediumConfig, "dual_attention_layers", {24}), "dual_attention"));
  CHECK(contains(refusal(kSd3MediumConfig, "out_channels", 32), "out_channels"));
  CHECK(contains(refusal(kFluxDevConfig, "patch_size", 2), "patch_size"));
  CHECK(contains(refusal(kFluxDevConfig, "axes_dims_rope", {16, 56, 58}), "axes_dims_rope"));
  CHECK(contains(refusal(kFluxDevConfig, "surprise", 1), "surprise"));
  CHECK(contains(refusal(kHunyuanV12Config, "num_layers", 39), "num_layers"));
  CHECK(contains(refusal(kHunyuanV12Config, "norm_type", "rms_norm"), "norm_type"));
  CHECK(contains(refusal(kFluxDevConfig, "_class_name", "Cat"), "Cat"));
}

TEST_CASE("text tokens are computed once a step, each by one rank") {
  for (const std::int64_t tokens : {0, 1, 5, 333}) {
    for (const int ring : {1, 2, 3}) {
      for (const int ulysses : {1, 2, 5}) {
        for (const bool distrifusion : {false, true}) {
          for (const int micro : {-1, 0, 1, 2}) {
            std::int64_t next = 0;
            for (int rank = 0; rank < ring * ulysses; ++rank) {
              const auto share =
                  spec::text_share(tokens, micro, {rank, ring, ulysses}, distrifusion);
              if (share.size() == 0) continue;
              CHECK(share.begin == next);
              CHECK((!distrifusion || micro < 0 || rank < ulysses));
              next = share.end;
            }
            CHECK(next == (micro > 0 ? 0 : tokens));
          }
        }
      }
    }
  }
}
