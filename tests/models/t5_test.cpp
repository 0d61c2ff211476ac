#include <ATen/core/grad_mode.h>

#include "models/encoders/t5_encoder.h"
#include "models/spec/json_text.h"
#include "models/text/unicode.h"
#include "tests/models/vae_support.h"
#include "tests/spec/model_folder.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::testing;
using models::T5Encoder;
using models::WeightStore;

namespace {

using troupe::models::testing::kFixtures;
using troupe::models::testing::relative_error;

T5Encoder encoder_of(const spec::ModelSpec& model, at::ScalarType dtype = at::kFloat) {
  const auto& encoder = model.text_encoders.at(0);
  return {std::get<spec::T5Spec>(encoder.config), WeightStore(encoder.weights), dtype};
}

/// A random encoder of one block with the given feed-forward.
struct SmallEncoder {
  explicit SmallEncoder(bool gated) {
    spec.vocab_size = 10;
    spec.d_model = 8;
    spec.d_kv = 4;
    spec.d_ff = 16;
    spec.num_layers = 2;
    spec.num_heads = 2;
    spec.gated_gelu = gated;
    at::manual_seed(3);
    for (const auto& tensor : spec::expected_tensors(spec)) {
      tensors[tensor.name] = at::randn(tensor.shape) * 0.3;
    }
  }
  WeightStore store() const {
    const auto file = folder.path / "model.safetensors";
    models::save_safetensors(file, tensors);
    return WeightStore(spec::WeightIndex::read_file(file));
  }
  at::Tensor run() const {
    return T5Encoder(spec, store()).encode(at::tensor({1, 5, 9}, at::kLong).unsqueeze(0), {});
  }

  spec::T5Spec spec;
  std::map<std::string, at::Tensor> tensors;
  Scratch folder;
};

}  // namespace

TEST_CASE("T5 states equal those of transformers in float32, from prompt to states") {
  const at::NoGradGuard no_grad;
  const auto file = kFixtures / "expected/text_encoder.json";
  const auto cases = spec::parse_json(read_bytes(file), file)["cases"];
  const auto expected = models::load_safetensors(kFixtures / "expected/text_encoder.safetensors");
  int compared = 0;
  std::int64_t longest = 0;
  for (const auto& item : cases) {
    const std::string name = item["name"];
    INFO(name);
    const auto model = spec::read_model_spec(kFixtures / item["checkpoint"].get<std::string>());
    std::vector<std::string> prompts;
    for (const std::string prompt : item["prompts"]) {
      prompts.push_back(models::normal_caption(prompt));
    }
    const auto tokenizer = models::Tokenizer::load(model.text_encoders.at(0).tokenizer);
    const auto batch = models::text_batch(tokenizer.tokenize(prompts, item["length"]));
    CHECK(at::equal(batch.ids, expected.at(name + ".input_ids")));
    CHECK(at::equal(batch.mask, expected.at(name + ".mask")));
    longest = std::max(longest, batch.mask.sum(1).max().item<std::int64_t>());
    const auto states = encoder_of(model).encode(batch.ids, batch.mask);
    const double error = relative_error(states, expected.at(name + ".states"));
    MESSAGE(name << ": relative error " << error);
    CHECK(error < 1e-5);
    ++compared;

    const auto brain = encoder_of(model, at::kBFloat16).encode(batch.ids, batch.mask);
    CHECK((brain.scalar_type() == at::kBFloat16));
    CHECK(relative_error(brain, expected.at(name + ".states")) < 0.05);
  }
  CHECK(compared >= 8);
  CHECK(longest > 128);  // tokens of one prompt, more than T5's distances tell apart
}

TEST_CASE("padding changes nothing in the states of the prompt") {
  const at::NoGradGuard no_grad;
  const auto model = spec::read_model_spec(kFixtures / "tiny-pixart");
  const auto tokenizer = models::Tokenizer::load(model.text_encoders.at(0).tokenizer);
  const auto encoder = encoder_of(model);
  const auto tokens = tokenizer.tokenize({"a red circle", "a blue square above it"}, 40);
  const auto batch = models::text_batch(tokens);
  const auto padded = encoder.encode(batch.ids, batch.mask);
  for (std::int64_t row = 0; row < 2; ++row) {
    const auto length = tokens.lengths[row];
    const auto alone = encoder.encode(batch.ids.narrow(0, row, 1).narrow(1, 0, length), {});
    CHECK(at::allclose(padded[row].narrow(0, 0, length), alone[0], 1e-5, 1e-5));
  }
}

TEST_CASE("distances fall into the buckets of the paper") {
  const auto buckets = models::relative_position_bucket(
      at::tensor({0, -1, 1, -7, 7, -8, 8, 15, 16, 127, 128, 5000, -5000}, at::kLong), 32, 128);
  CHECK(
      at::equal(buckets, at::tensor({0, 1, 17, 7, 23, 8, 24, 25, 26, 31, 31, 31, 15}, at::kLong)));
}

TEST_CASE("both feed-forwards are computed as defined") {
  const at::NoGradGuard no_grad;
  for (const bool gated : {false, true}) {
    SmallEncoder small(gated);
    const std::string dense = "encoder.block.1.layer.1.DenseReluDense.";
    const at::Tensor before = small.run();
    small.tensors[dense + (gated ? "wi_1.weight" : "wi.weight")].zero_();
    const at::Tensor without = small.run();
    CHECK_FALSE(at::allclose(before, without));
    small.tensors[dense + "wo.weight"].zero_();
    CHECK(at::allclose(without, small.run()));
  }
}

TEST_CASE("progress counts every block, and a bad id or weight is named") {
  const at::NoGradGuard no_grad;
  SmallEncoder small(true);
  std::vector<std::pair<int, int>> seen;
  const at::Tensor ids = at::tensor({1, 2}, at::kLong).unsqueeze(0);
  T5Encoder(small.spec, small.store()).encode(ids, {}, [&](int done, int total) {
    seen.emplace_back(done, total);
  });
  CHECK((seen == std::vector<std::pair<int, int>>{{1, 2}, {2, 2}}));
  CHECK(contains(error_of([&] { T5Encoder(small.spec, small.store()).encode(ids + 8, {}); }),
                 "token id 10 is not below vocab_size = 10"));
  small.tensors["encoder.block.1.layer.0.SelfAttention.k.weight"][3][2] = INFINITY;
  CHECK(contains(error_of([&] { T5Encoder(small.spec, small.store()).encode(ids, {}); }),
                 "tensor \"encoder.block.1.layer.0.SelfAttention.k.weight\" [3, 2] is inf"));
  small.tensors.erase("encoder.final_layer_norm.weight");
  CHECK(contains(error_of([&] { T5Encoder(small.spec, small.store()); }),
                 "\"encoder.final_layer_norm.weight\" [8] is missing"));
}
