#include "actors/stage/text_encoder.h"

#include <ATen/ATen.h>

#include "actors/stage/stage.h"
#include "tests/support/doctest.h"

using namespace troupe;
using actors::EncodedPrompt;
using actors::PromptCache;
using actors::Stage;

namespace {

EncodedPrompt prompt_of(float value, std::int64_t tokens = 4) {
  return {.states = at::full({tokens, 8}, value), .pooled = {}, .length = tokens, .cut = "tail"};
}

PromptCache::Key key_of(const std::string& text, std::size_t encoder = 0) {
  return {.encoder = encoder, .tokens = 12, .text = text};
}

wire::LoadStage whole(const std::string& name, int blocks) {
  wire::LoadStage load;
  load.model = TROUPE_SOURCE_DIR "/tests/fixtures/" + name;
  load.last_block = blocks;
  load.embeds = load.projects = true;
  load.prompt_cache_bytes = 1 << 20;
  return load;
}

struct Encoded {
  models::EncoderOutput output;
  std::vector<std::string> cut;
};

Encoded encoded(Stage& stage, std::size_t encoder, const std::vector<std::string>& prompts,
                int length = 12) {
  Encoded made;
  made.output = stage.encode_text(encoder, prompts, length, false, made.cut, [] {});
  return made;
}

bool same_row(const at::Tensor& a, std::int64_t row_a, const at::Tensor& b, std::int64_t row_b) {
  if (!a.defined()) return !b.defined();
  return at::equal(a[row_a], b[row_b]);
}

}  // namespace

TEST_CASE("a prompt cache keeps what was used last, within its bytes, in memory of its own") {
  PromptCache one(1 << 20);
  one.keep(key_of("a cat"), prompt_of(1));
  const auto each = one.bytes();
  CHECK(each > 4 * 8 * 4);
  PromptCache cache(2 * each);
  auto cat = prompt_of(1);
  cache.keep(key_of("a cat"), cat);
  cat.states.fill_(7);
  cache.keep(key_of("a dog"), prompt_of(2));
  REQUIRE(cache.find(key_of("a cat")) != nullptr);  // used after the dog
  cache.keep(key_of("a bee"), prompt_of(3));
  CHECK(cache.find(key_of("a dog")) == nullptr);
  REQUIRE(cache.find(key_of("a cat")) != nullptr);
  CHECK(cache.find(key_of("a cat"))->states[0][0].item<float>() == 1);
  CHECK(cache.find(key_of("a cat"))->cut == "tail");
  CHECK(cache.find(key_of("a cat", 1)) == nullptr);
  CHECK(cache.bytes() == 2 * each);
  cache.keep(key_of("an elephant"), prompt_of(4, 1000));  // larger than all of it
  CHECK(cache.bytes() == 2 * each);
  cache.keep(key_of("a cat"), prompt_of(5));
  CHECK(cache.bytes() == 2 * each);
  CHECK(cache.find(key_of("a cat"))->states[0][0].item<float>() == 5);
  PromptCache none(0);
  none.keep(key_of("a cat"), prompt_of(1));
  CHECK(none.find(key_of("a cat")) == nullptr);
}

TEST_CASE("a text is encoded to the same bits whatever the others are, and once only") {
  struct Case {
    const char* model;
    int blocks;
    std::size_t encoders;
  };
  for (const auto& [name, blocks, encoders] :
       {Case{"tiny-pixart", 5, 1}, Case{"tiny-sd3", 4, 3}, Case{"tiny-hunyuan", 4, 2},
        Case{"tiny-flux", 4, 2}, Case{"tiny-wan", 4, 1}}) {
    CAPTURE(name);
    auto load = whole(name, blocks);
    load.last_block = static_cast<int>(spec::read_model_spec(load.model).transformer.num_layers);
    Stage stage(load, at::kCPU);
    auto plain = load;
    plain.prompt_cache_bytes = 0;
    Stage without(plain, at::kCPU);
    Stage resident(plain, at::kCPU);
    resident.keep_encoders(true);
    std::uint64_t encoder_bytes = 0;
    REQUIRE(stage.spec().text_encoders.size() == encoders);
    for (std::size_t i = 0; i < encoders; ++i) {
      CAPTURE(i);
      const auto before = stage.prompt_use();
      const auto alone = encoded(stage, i, {"a red circle above a blue square"});
      const auto both = encoded(stage, i, {"", "a red circle above a blue square"});
      const auto fresh = encoded(without, i, {"a red circle above a blue square", "a tree", ""});
      const auto use = stage.prompt_use();
      CHECK(use.encoded - before.encoded == 2);
      CHECK(use.from_cache - before.from_cache == 1);
      for (const auto& [output, row] : {std::pair{&alone.output, 0}, std::pair{&both.output, 1}}) {
        CHECK(same_row(output->states, row, fresh.output.states, 0));
        CHECK(same_row(output->pooled, row, fresh.output.pooled, 0));
        CHECK(output->lengths[row].item<std::int64_t>() ==
              fresh.output.lengths[0].item<std::int64_t>());
      }
      CHECK(same_row(both.output.states, 0, fresh.output.states, 2));
      CHECK(both.cut[1] == fresh.cut[0]);
      // What an encoder that stays makes of it, the first time and again.
      encoder_bytes += spec::encoder_bytes(stage.spec().text_encoders[i], 4);
      for (int time = 0; time < 2; ++time) {
        const auto again = encoded(resident, i, {"a tree", "a red circle above a blue square"});
        CHECK(same_row(again.output.states, 1, fresh.output.states, 0));
        CHECK(same_row(again.output.pooled, 1, fresh.output.pooled, 0));
        CHECK(same_row(again.output.states, 0, fresh.output.states, 1));
        CHECK(resident.encoder_bytes() == encoder_bytes);
      }
      // Cut to another length it is another text.
      encoded(stage, i, {""}, 9);
      const bool fixed = stage.spec().text_encoders[i].tokens > 0;
      CHECK(stage.prompt_use().encoded - use.encoded == (fixed ? 0 : 1));
    }
    CHECK(without.prompt_use().from_cache == 0);
    CHECK(without.encoder_bytes() == 0);
    resident.keep_encoders(false);
    CHECK(resident.encoder_bytes() == 0);
    encoded(resident, 0, {"a tree"});
    CHECK(resident.encoder_bytes() == 0);
  }
}

TEST_CASE("text encoders that stay in another type take what plans foresee") {
  auto load = whole("tiny-sd3", 4);
  load.last_block = static_cast<int>(spec::read_model_spec(load.model).transformer.num_layers);
  load.dtype = ComputeType::bfloat16;
  load.prompt_cache_bytes = 0;
  Stage once(load, at::kCPU);
  Stage resident(load, at::kCPU);
  resident.keep_encoders(true);
  std::uint64_t bytes = 0;
  for (std::size_t i = 0; i < once.spec().text_encoders.size(); ++i) {
    const auto fresh = encoded(once, i, {"a cat"});
    for (int time = 0; time < 2; ++time) {
      const auto again = encoded(resident, i, {"a cat"});
      CHECK(same_row(again.output.states, 0, fresh.output.states, 0));
      CHECK(same_row(again.output.pooled, 0, fresh.output.pooled, 0));
    }
    bytes += spec::encoder_bytes(once.spec().text_encoders[i], 2);
    CHECK(resident.encoder_bytes() == bytes);
  }
}
