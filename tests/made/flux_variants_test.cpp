#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "models/spec/model_spec.h"
#include "models/text/qwen_tokenizer.h"
#include "tests/process/support/family_checks.h"
#include "tests/support/made.h"
#include "tests/support/text.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

constexpr double kVariantBound = 1e-5;  // of the reference's range, or of the single actor's

/// A model of FLUX.1's blocks that is none of FLUX.1's.
struct Variant {
  std::string name;
  int cases;
  bool masks_padding = false;

  std::string of(const char* what) const { return name + "_" + what; }
};
const std::vector<Variant> kVariants = {{"chroma", 11, true}, {"ovis", 10}, {"longcat", 9}};

}  // namespace

TEST_CASE("Chroma's, Ovis-Image's and LongCat-Image's pictures are those of their pipelines") {
  if (lacks_made_fixtures()) return;
  for (const auto& variant : kVariants) {
    CAPTURE(variant.name);
    Reference reference(variant.name);
    Worst latents, levels;
    check_pictures(reference, kVariantBound, latents, levels, add_made_lora);
    CHECK(latents.seen == variant.cases);
    CHECK(levels.seen == 6);
    MESSAGE(latents.seen << " cases, latents within " << latents.value << " of range ("
                         << latents.where << "), pictures within " << levels.value << " levels");
  }
}

TEST_CASE("variants of FLUX.1 make one picture at any degrees, exact and by patches") {
  if (lacks_made_fixtures()) return;
  const std::vector<Parallelism> mixes = {{.cfg = 2},
                                          {.pp = 2},
                                          {.pp = 5},
                                          {.ulysses = 3},
                                          {.ring = 3},
                                          {.tp = 2},
                                          {.tp = 4},
                                          {.ulysses = 2, .ring = 2},
                                          {.dp = 2, .pp = 3},
                                          {.cfg = 2, .pp = 2, .ulysses = 2},
                                          {.dp = 2, .ulysses = 2, .ring = 2},
                                          {.cfg = 2, .ring = 3},
                                          {.pp = 2, .ring = 2, .tp = 2}};
  for (const auto& variant : kVariants) {
    CAPTURE(variant.name);
    Reference reference(variant.name);
    Worst worst;
    check_degrees(reference, variant.of("wide"), mixes, worst, "a tree by the river");
    MESSAGE(worst.seen << " runs within " << worst.value << " of range (" << worst.where << ")");
  }
}

TEST_CASE("variants of FLUX.1 by patches equal the oracle, texts of different length among them") {
  if (lacks_made_fixtures()) return;
  for (const auto& variant : kVariants) {
    CAPTURE(variant.name);
    Reference reference(variant.of("patches"));
    Worst worst;
    check_oracle(reference, worst);
    CHECK(worst.seen == 28);
    MESSAGE(worst.seen << " runs within " << worst.value << " of range (" << worst.where << ")");
  }
}

TEST_CASE("variants of FLUX.1 are streamed, rounded to 16 and to 8 bits, with a LoRA at degrees") {
  if (lacks_made_fixtures()) return;
  for (const auto& variant : kVariants) {
    CAPTURE(variant.name);
    Reference reference(variant.name);
    const std::string plain = variant.of("plain");
    Worst half;
    check_half(reference, plain, "bfloat16", 0.05, half);
    check_half(reference, plain, "float16", 0.01, half);
    MESSAGE("within " << half.value << " of range");
    const auto error_of = [&](const std::string& name, auto change) {
      const auto& of = reference.find(name);
      auto submission = reference.submission(of, {.pp = 2, .tp = 2});
      add_made_lora(of, submission);
      change(submission.request);
      return range_error(shared_cluster().run(submission).latents.value(),
                         reference.floats(of, "latents"));
    };
    CHECK(error_of(plain, [](auto& of) { of.offload = "blocks"; }) <= kVariantBound);
    CHECK(error_of(variant.of("lora"), [](auto&) {}) <= kVariantBound);
    // Only padding that nobody attends to.
    if (variant.masks_padding)
      CHECK(error_of(plain, [](auto& of) { of.max_sequence_length += 13; }) <= kVariantBound);
    auto eight = reference.submission(reference.find(plain));
    eight.request.weight_dtype = "int8";
    const auto single = shared_cluster().run(eight).latents.value();
    eight.parallelism = {.tp = 2};
    const Foreseen foreseen(eight);
    const auto several = shared_cluster().run(eight);
    CHECK(range_error(several.latents.value(), single) <= kVariantBound);
    check_sent(nlohmann::json::parse(several.report), foreseen);
  }
}

TEST_CASE("LongCat-Image's prompts have the ids that its pipeline gives them, quotes spelled") {
  if (lacks_made_fixtures()) return;
  const auto tokenizer = models::QwenTokenizer::load(kMade / "tiny-longcat" / "tokenizer");
  const auto model = spec::read_model_spec(kMade / "tiny-longcat");
  const auto& frame = model.text_encoders.at(0).frame;
  const auto book = nlohmann::json::parse(read_all(kMade / "expected/longcat_tokens.json"));
  for (const auto& item : book.at("cases")) {
    const auto prompt = item.at("prompt").get<std::string>();
    CAPTURE(prompt);
    auto expected = item.at("before").get<std::vector<std::int64_t>>();
    CHECK(tokenizer.encode(frame.before) == expected);
    for (const std::int64_t id : item.at("ids"))
      expected.push_back(id);
    const auto made = tokenizer.tokenize_spelled(frame.before, {prompt}, 600);
    CHECK(made.lengths.at(0) == std::ssize(expected));
    expected.resize(600, tokenizer.pad_id());
    CHECK(made.ids.at(0) == expected);
  }
  CHECK(book.at("cases").size() == 21);
}

TEST_CASE("plans know variants' weights, K,V and what each rank sends, to the byte") {
  if (lacks_made_fixtures()) return;
  for (const auto& variant : kVariants) {
    CAPTURE(variant.name);
    Reference reference(variant.name);
    check_foreseen(reference, variant.of("wide"));
  }
}
