#include <c10/core/InferenceMode.h>

#include "models/encoders/t5_encoder.h"
#include "models/safetensors.h"
#include "models/spec/json_text.h"
#include "models/spec/model_spec.h"
#include "models/text/clean_caption.h"
#include "tests/models/vae_support.h"
#include "tests/spec/model_folder.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::models::testing;
using troupe::testing::read_bytes;

TEST_CASE("UMT5's states are those of transformers, from prompt to states") {
  const c10::InferenceMode no_grad;
  const auto file = kRoot / "tests/fixtures/expected/wan_text.json";
  const auto cases = spec::parse_json(read_bytes(file), file)["cases"];
  const auto expected =
      models::load_safetensors(kRoot / "tests/fixtures/expected/wan_text.safetensors");
  const auto model = spec::read_model_spec(kRoot / "tests/fixtures/tiny-wan");
  const auto& encoder = model.text_encoders.at(0);
  const auto& config = std::get<spec::T5Spec>(encoder.config);
  CHECK(config.bias_in_every_block);
  const auto tokenizer = models::Tokenizer::load(encoder.tokenizer);
  double worst = 0;
  for (const auto& item : cases) {
    const std::string name = item["name"];
    CAPTURE(name);
    std::vector<std::string> prompts;
    for (std::size_t i = 0; i < item["prompts"].size(); ++i) {
      prompts.push_back(models::clean_prompt(item["prompts"][i].get<std::string>()));
      CHECK(prompts.back() == item["clean"][i].get<std::string>());
    }
    const auto batch = models::text_batch(tokenizer.tokenize(prompts, item["length"]));
    CHECK(at::equal(batch.ids, expected.at(name + ".input_ids")));
    CHECK(at::equal(batch.mask, expected.at(name + ".mask")));
    const models::T5Encoder t5(config, models::WeightStore(encoder.weights));
    const auto states = t5.encode(batch.ids, batch.mask);
    const double error = relative_error(states, expected.at(name + ".states"));
    CHECK(error < 1e-5);
    worst = std::max(worst, error);
    // One table for all blocks is another encoder.
    auto shared = config;
    shared.bias_in_every_block = false;
    auto weights = encoder.weights;
    CHECK_THROWS_AS(models::T5Encoder(shared, models::WeightStore(weights)), std::runtime_error);
  }
  MESSAGE("within " << worst << " of range");
}

TEST_CASE("prompts are mended as Wan's pipeline mends them") {
  CHECK(models::clean_prompt("  two\n\t words ") == "two words");
  CHECK(models::clean_prompt("A &amp;amp; B") == "A & B");
  CHECK(models::clean_prompt("“Quoted”") == "\"Quoted\"");
  CHECK(models::clean_prompt(" \n ") == "");
}
