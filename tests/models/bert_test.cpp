#include "models/text/bert_model.h"

#include <ATen/core/grad_mode.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "models/spec/model_spec.h"
#include "models/text/bert_tokenizer.h"
#include "models/text/t5_encoder.h"
#include "tests/spec/model_folder.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

const std::filesystem::path kFixtures = TROUPE_SOURCE_DIR "/tests/fixtures";
const std::filesystem::path kFolder = kFixtures / "tiny-hunyuan";

}  // namespace

TEST_CASE("BERT's ids and states equal those of transformers") {
  const at::NoGradGuard no_grad;
  const auto model = spec::read_model_spec(kFolder);
  const auto& encoder = model.text_encoders.at(0);
  const auto tokenizer = models::BertTokenizer::load(kFolder / "tokenizer");
  Scratch json_only;
  std::filesystem::copy(kFolder / "tokenizer", json_only.path / "tokenizer");
  std::filesystem::remove(json_only.path / "tokenizer/vocab.txt");
  const auto from_json = models::BertTokenizer::load(json_only.path / "tokenizer");
  const models::BertModel bert(std::get<spec::BertSpec>(encoder.config),
                               models::WeightStore(encoder.weights));
  const auto tensors = models::load_safetensors(kFixtures / "expected/bert.safetensors");
  const auto book = nlohmann::json::parse(std::ifstream(kFixtures / "expected/bert.json"));
  int states = 0;
  for (const auto& of : book.at("cases")) {
    const std::string prompt = of.at("prompt");
    CAPTURE(prompt);
    const auto ids = of.at("ids").get<std::vector<std::int64_t>>();
    CHECK(tokenizer.encode(prompt) == ids);
    CHECK(from_json.encode(prompt) == ids);
    const auto tokens = tokenizer.tokenize({prompt}, 12);
    CHECK(tokens.ids[0] == of.at("cut").get<std::vector<std::int64_t>>());
    CHECK(tokens.cut[0].empty() == (ids.size() <= 12));
    if (!of.at("states").get<bool>()) continue;
    const auto batch = models::text_batch(tokens);
    const at::Tensor want = tensors.at(of.at("name").get<std::string>() + ".states");
    const at::Tensor got = bert.encode(batch.ids, batch.mask);
    CHECK((got - want).abs().max().item<double>() <
          1e-5 * (want.max() - want.min()).item<double>());
    ++states;
  }
  CHECK(states >= 4);
  CHECK_THROWS_AS(tokenizer.tokenize({"a"}, 1), std::invalid_argument);
  CHECK_THROWS_AS(bert.encode(at::full({1, 3}, 100, at::kLong), at::ones({1, 3})),
                  std::invalid_argument);
}

TEST_CASE("a BERT vocabulary without its own tokens is refused") {
  Scratch folder;
  write_bytes(folder.path / "vocab.txt", "[PAD]\n[UNK]\n[CLS]\na\n");
  CHECK(contains(error_of([&] { models::BertTokenizer::load(folder.path); }), "[SEP]"));
  CHECK(contains(error_of([&] { models::BertTokenizer::load(folder.path / "none"); }),
                 "tokenizer.json"));
}
