#include "models/encoders/clip_text_model.h"

#include <ATen/core/grad_mode.h>

#include <map>

#include "models/encoders/t5_encoder.h"
#include "models/spec/json_text.h"
#include "models/text/clip_tokenizer.h"
#include "tests/models/vae_support.h"
#include "tests/spec/model_folder.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::testing;
using models::ClipTextModel;
using models::WeightStore;

namespace {

using troupe::models::testing::kFixtures;
const std::filesystem::path kClip = kFixtures / "tiny-clip";

spec::ClipSpec spec_of(const std::string& name) {
  return spec::read_clip_spec(spec::ConfigReader::read(kClip / name / "config.json"),
                              name == "text_encoder_2");
}

WeightStore weights_of(const std::string& name) {
  return WeightStore(spec::WeightIndex::read_file(kClip / name / "model.safetensors"));
}

using models::testing::relative_error;

}  // namespace

TEST_CASE("CLIP's states equal those of transformers in float32, from prompt to pooled states") {
  const at::NoGradGuard no_grad;
  const auto file = kFixtures / "expected/clip_encoder.json";
  const auto cases = spec::parse_json(read_bytes(file), file)["cases"];
  const auto expected = models::load_safetensors(kFixtures / "expected/clip_encoder.safetensors");
  double worst = 0;
  for (const auto& item : cases) {
    const std::string name = item["name"];
    CAPTURE(name);
    const std::string folder = item["encoder"];
    const auto tokenizer = models::ClipTokenizer::load(
        kClip / (folder == "text_encoder" ? "tokenizer" : "tokenizer_2"));
    const auto ids =
        models::text_batch(
            tokenizer.tokenize(item["prompts"].get<std::vector<std::string>>(), item["length"]))
            .ids;
    REQUIRE(at::equal(ids, expected.at(name + ".input_ids")));
    const ClipTextModel model(spec_of(folder), weights_of(folder));
    const auto states = model.encode(ids);
    const auto further = model.encode(ids, 2);
    for (const auto& [key, found] :
         std::map<std::string, at::Tensor>{{"last", states.last},
                                           {"penultimate", states.hidden},
                                           {"skipped", further.hidden},
                                           {"pooled", states.pooled}}) {
      CAPTURE(key);
      const auto& wanted = expected.at(name + "." + key);
      REQUIRE(found.sizes() == wanted.sizes());
      const double error = relative_error(found, wanted);
      worst = std::max(worst, error);
      CHECK(error < 1e-5);
    }
    for (const auto dtype : {at::kBFloat16, at::kHalf}) {
      const auto half = ClipTextModel(spec_of(folder), weights_of(folder), dtype).encode(ids);
      CHECK((half.hidden.scalar_type() == dtype));
      CHECK(relative_error(half.hidden, expected.at(name + ".penultimate")) < 0.05);
    }
  }
  CHECK(cases.size() == 6);
  MESSAGE("largest difference " << worst << " of the range");
}

TEST_CASE("the end token is found by both rules") {
  const at::NoGradGuard no_grad;
  auto spec = spec_of("text_encoder");
  const auto ids = at::tensor({651, 5, 652, 7, 652}, at::kLong).unsqueeze(0);
  for (const auto& [eos, place] : {std::pair{2, 2}, {7, 3}, {600, 0}}) {
    spec.eos_token_id = eos;
    const auto states = ClipTextModel(spec, weights_of("text_encoder")).encode(ids);
    CHECK(at::equal(states.pooled[0], states.last[0][place]));
  }
}

TEST_CASE("progress of CLIP, and what it refuses") {
  const at::NoGradGuard no_grad;
  const ClipTextModel model(spec_of("text_encoder"), weights_of("text_encoder"));
  const auto ids = at::tensor({651, 5, 652}, at::kLong).unsqueeze(0);
  std::vector<int> seen;
  model.encode(ids, 1, [&](int done, int total) { seen.push_back(10 * done + total); });
  CHECK(seen == std::vector<int>{13, 23, 33});
  CHECK(contains(error_of([&] { model.encode(ids + 100); }), "is not below vocab_size = 653"));
  CHECK(contains(error_of([&] { model.encode(at::zeros({1, 78}, at::kLong)); }), "1 to 77 tokens"));
  CHECK(contains(error_of([&] { model.encode(ids, 4); }), "4 blocks before the end of 3"));
  CHECK(contains(
      error_of([&] { ClipTextModel(spec_of("text_encoder_2"), weights_of("text_encoder")); }),
      "embeddings.token_embedding.weight\" has shape"));
}

TEST_CASE("published CLIP configs are read, and others are refused by key") {
  const auto read = [](const nlohmann::json& changes, bool projection = true) {
    nlohmann::json config = {{"architectures", {"CLIPTextModelWithProjection"}},
                             {"attention_dropout", 0.0},
                             {"bos_token_id", 0},
                             {"dropout", 0.0},
                             {"eos_token_id", 2},
                             {"hidden_act", "gelu"},
                             {"hidden_size", 1280},
                             {"initializer_factor", 1.0},
                             {"initializer_range", 0.02},
                             {"intermediate_size", 5120},
                             {"layer_norm_eps", 1e-05},
                             {"max_position_embeddings", 77},
                             {"model_type", "clip_text_model"},
                             {"num_attention_heads", 20},
                             {"num_hidden_layers", 32},
                             {"pad_token_id", 1},
                             {"projection_dim", 1280},
                             {"torch_dtype", "float16"},
                             {"transformers_version", "4.32.0"},
                             {"vocab_size", 49408}};
    config.update(changes);
    return spec::read_clip_spec(spec::ConfigReader(config.dump(), "config.json"), projection);
  };
  const auto spec = read(nlohmann::json::object());
  CHECK(spec.pooled_size() == 1280);
  CHECK_FALSE(spec.quick_gelu);
  std::int64_t elements = 0;
  for (const auto& tensor : expected_tensors(spec)) {
    std::int64_t count = 1;
    for (const auto size : tensor.shape)
      count *= size;
    elements += count;
  }
  CHECK(elements == 694'659'840);
  CHECK(read({{"projection_dim", 768}}, false).pooled_size() == 1280);
  for (const auto& [key, value] : std::map<std::string, nlohmann::json>{{"hidden_act", "relu"},
                                                                        {"hidden_size", 1281},
                                                                        {"layer_norm_eps", 0},
                                                                        {"model_type", "bert"},
                                                                        {"extra", 1}}) {
    CHECK(contains(error_of([&] { read({{key, value}}); }), "\"" + key + "\""));
  }
}
