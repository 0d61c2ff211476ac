#include "models/text/tokenizer.h"

#include <random>

#include "models/spec/json_text.h"
#include "models/text/unicode.h"
#include "tests/models/fixtures.h"
#include "tests/spec/model_folder.h"
#include "tests/spec/published_hunyuan.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::testing;
using models::Tokenizer;
using nlohmann::json;

namespace {

using troupe::models::testing::kRoot;

std::filesystem::path tokenizer_folder(const std::string& name) {
  return name == "demo" ? kRoot / "examples/demo/model/tokenizer"
                        : kRoot / "tests/fixtures" / name / "tokenizer";
}

enum class Files { json_only, spiece_only, both };

spec::TokenizerSpec files_of(const std::filesystem::path& folder, Files files) {
  spec::TokenizerSpec spec;
  if (files != Files::json_only) spec.spiece_model = folder / "spiece.model";
  if (files != Files::spiece_only) spec.tokenizer_json = folder / "tokenizer.json";
  spec.tokenizer_config = folder / "tokenizer_config.json";
  return spec;
}

const json& expected_tokens() {
  static const json expected = [] {
    const auto file = kRoot / "tests/fixtures/expected/tokens.json";
    return spec::parse_json(spec::read_text_file(file, 1U << 24U), file);
  }();
  return expected;
}

/// The tiny checkpoint's tokenizer.json with one change.
class EditedJson {
 public:
  template <typename Edit>
  explicit EditedJson(Edit&& edit) {
    const auto source = tokenizer_folder("tiny-pixart") / "tokenizer.json";
    json content = spec::parse_json(read_bytes(source), source);
    edit(content);
    spec.tokenizer_json = folder_.path / "tokenizer.json";
    write_bytes(*spec.tokenizer_json, content.dump());
  }
  std::string error() const {
    return error_of([&] { Tokenizer::load(spec); });
  }
  spec::TokenizerSpec spec;

 private:
  Scratch folder_;
};

}  // namespace

TEST_CASE("ids equal those of transformers, from tokenizer.json and from spiece.model") {
  int from_json = 0;
  int from_spiece = 0;
  for (const auto& item : expected_tokens()["cases"]) {
    const auto folder = tokenizer_folder(item["tokenizer"]);
    const std::string prompt = item["prompt"];
    INFO(item["name"].get<std::string>() << " " << prompt);
    using Ids = std::vector<std::int64_t>;
    const Ids json_ids = item["json"];
    CHECK(Tokenizer::load(files_of(folder, Files::json_only)).encode(prompt) == json_ids);
    CHECK(Tokenizer::load(files_of(folder, Files::both)).encode(prompt) == json_ids);
    const Ids spiece_ids =
        item.contains("transformers_spiece") ? item["transformers_spiece"] : item["spiece"];
    CHECK(Tokenizer::load(files_of(folder, Files::spiece_only)).encode(prompt) == spiece_ids);
    ++from_json;
    from_spiece += json_ids != spiece_ids;
  }
  CHECK(from_json >= 40);
  CHECK(from_spiece >= 1);
}

TEST_CASE("a prompt is cut as diffusers cuts it, and what was cut is said") {
  const auto tokenizer = Tokenizer::load(files_of(tokenizer_folder("demo"), Files::both));
  const std::string text = "a red circle above a blue square on a white background";
  const auto full = tokenizer.encode(text);
  const auto whole = tokenizer.tokenize({text, ""}, 120);
  CHECK(whole.ids[0].size() == 120);
  CHECK(whole.lengths[0] == static_cast<std::int64_t>(full.size()));
  CHECK(whole.ids[0][full.size()] == tokenizer.pad_id());
  CHECK(whole.cut[0].empty());
  CHECK(whole.lengths[1] == 1);
  CHECK(whole.ids[1][0] == tokenizer.eos_id());

  const auto exact = tokenizer.tokenize({text}, static_cast<std::int64_t>(full.size()));
  CHECK(exact.ids[0] == full);
  CHECK(exact.cut[0].empty());

  const auto cut = tokenizer.tokenize({text}, 6);
  CHECK(cut.lengths[0] == 6);
  CHECK(std::equal(full.begin(), full.begin() + 5, cut.ids[0].begin()));
  CHECK(cut.ids[0][5] == tokenizer.eos_id());
  CHECK(cut.cut[0] == "blue square on a white background");
  CHECK(contains(error_of([&] { tokenizer.tokenize({text}, 0); }), "max_length = 0"));
}

TEST_CASE("published T5 tokenizers have a hundred extra ids after the pieces") {
  spec::TokenizerSpec spec = files_of(tokenizer_folder("tiny-pixart"), Files::spiece_only);
  Scratch folder;
  spec.tokenizer_config = folder.path / "tokenizer_config.json";
  write_bytes(*spec.tokenizer_config,
              R"({"eos_token":"</s>","extra_ids":100,"model_max_length":512,"pad_token":"<pad>",
    "sp_model_kwargs":{},"tokenizer_class":"T5Tokenizer","unk_token":"<unk>","legacy":true})");
  const auto tokenizer = Tokenizer::load(spec);
  const auto ids = tokenizer.encode("<extra_id_0>a<extra_id_99>");
  REQUIRE(ids.size() == 4);
  CHECK(ids[0] == tokenizer.vocab_size() - 1);
  CHECK(ids[2] == tokenizer.vocab_size() - 100);
  write_bytes(*spec.tokenizer_config, kMt5Tokenizer);
  CHECK(Tokenizer::load(spec).encode("a</s>") ==
        std::vector<std::int64_t>{tokenizer.encode("a")[0], 1, 1});
  write_bytes(*spec.tokenizer_config, R"({"tokenizer_class":"LlamaTokenizer"})");
  CHECK(contains(error_of([&] { Tokenizer::load(spec); }), "\"LlamaTokenizer\" is not supported"));
  write_bytes(*spec.tokenizer_config, R"({"do_lower_case":true})");
  CHECK(contains(error_of([&] { Tokenizer::load(spec); }), "\"do_lower_case\" = true"));
}

TEST_CASE("settings of T5's tokenizer that would change ids are refused by key") {
  spec::TokenizerSpec spec = files_of(tokenizer_folder("tiny-pixart"), Files::both);
  Scratch folder;
  spec.tokenizer_config = folder.path / "tokenizer_config.json";
  const auto refusal = [&](const char* key, const json& value) {
    write_bytes(*spec.tokenizer_config, json{{key, value}}.dump());
    return error_of([&] { Tokenizer::load(spec); });
  };
  for (const auto& [key, value] : std::vector<std::pair<const char*, json>>{
           {"split_special_tokens", true},
           {"add_bos_token", true},
           {"add_eos_token", false},
           {"additional_special_tokens", "<cat>"},
           {"bos_token", 1},
           {"eos_token", {{"content", "</s>"}, {"rstrip", 1}}},
           {"padding_side", "left"}}) {
    CAPTURE(key);
    CHECK(contains(refusal(key, value), key));
  }
  for (const auto& [key, value] :
       std::vector<std::pair<const char*, json>>{{"split_special_tokens", false},
                                                 {"add_bos_token", nullptr},
                                                 {"add_eos_token", true},
                                                 {"additional_special_tokens", json::array()},
                                                 {"extra_special_tokens", {"<pad>", "</s>"}},
                                                 {"bos_token", nullptr}}) {
    CAPTURE(key);
    CHECK(refusal(key, value) == "");
  }
}

TEST_CASE("forms of tokenizer.json that T5 does not use are refused by name") {
  const auto with = [](const char* path, const json& value) {
    return EditedJson([&](json& content) { content[json::json_pointer(path)] = value; });
  };
  CHECK(with("/normalizer", nullptr).error() == "");
  CHECK(contains(with("/normalizer", {{"type", "Lowercase"}}).error(),
                 "normalizer \"Lowercase\" is not supported"));
  CHECK(contains(with("/pre_tokenizer", {{"type", "ByteLevel"}}).error(),
                 "pre_tokenizer \"ByteLevel\" is not supported"));
  CHECK(contains(with("/pre_tokenizer/pretokenizers/1/prepend_scheme", "first").error(),
                 "prepend_scheme"));
  CHECK(contains(with("/post_processor", {{"type", "RobertaProcessing"}}).error(),
                 "post_processor \"RobertaProcessing\""));
  CHECK(contains(with("/model/type", "BPE").error(), "model \"BPE\" is not supported"));
  CHECK(contains(with("/model/byte_fallback", true).error(), "byte_fallback"));
  CHECK(contains(with("/model/unk_id", 4000).error(), "unk_id 4000 is not one of"));
  CHECK(contains(with("/model/vocab/3", "x").error(), "vocab entry 3"));
  CHECK(contains(with("/added_tokens/0/single_word", 1).error(), "single_word"));
  CHECK(contains(with("/normalizer/precompiled_charsmap", "////////").error(), "charsmap"));
  CHECK(contains(with("/normalizer/precompiled_charsmap", "*").error(), "not base64"));

  auto old_form = with("/pre_tokenizer/pretokenizers/1",
                       {{"type", "Metaspace"}, {"replacement", "▁"}, {"add_prefix_space", true}});
  CHECK(old_form.error() == "");
  auto unsupported = with("/model/type", "BPE");
  unsupported.spec.spiece_model = tokenizer_folder("tiny-pixart") / "spiece.model";
  CHECK(Tokenizer::load(unsupported.spec).source() == *unsupported.spec.spiece_model);
}

TEST_CASE("damaged tokenizer files are refused without a crash") {
  Scratch folder;
  const auto source = tokenizer_folder("tiny-pixart");
  std::mt19937 random(7);
  for (const char* name : {"tokenizer.json", "spiece.model"}) {
    const std::string good = read_bytes(source / name);
    const bool is_json = std::string_view(name).ends_with("json");
    spec::TokenizerSpec spec;
    (is_json ? spec.tokenizer_json : spec.spiece_model) = folder.path / name;
    for (int round = 0; round < 150; ++round) {
      std::string bytes = good;
      if (round % 3 == 0) bytes.resize(random() % bytes.size());
      for (int edits = 0; edits < 3 && !bytes.empty(); ++edits) {
        bytes[random() % bytes.size()] = static_cast<char>(random());
      }
      write_bytes(folder.path / name, bytes);
      try {
        const auto tokenizer = Tokenizer::load(spec);
        for (auto id : tokenizer.encode("a red circle, café ﬁne")) {
          CHECK(id >= 0);
          CHECK(id < tokenizer.vocab_size());
        }
      } catch (const std::runtime_error& error) {
        CHECK(contains(error.what(), name));
      }
    }
  }
}

TEST_CASE("text that is not UTF-8 reads as replacement characters") {
  for (Files files : {Files::json_only, Files::spiece_only}) {
    const auto tokenizer = Tokenizer::load(files_of(tokenizer_folder("demo"), files));
    CHECK(tokenizer.encode("red \xff\xc0\x80 \xe2\x82") ==
          tokenizer.encode("red \uFFFD\uFFFD\uFFFD \uFFFD\uFFFD"));
  }
}

TEST_CASE("captions are lower-cased and stripped as Python does it") {
  CHECK(models::normal_caption("  A Red\u00a0CIRCLE \n\u3000") == "a red\u00a0circle");
  CHECK(models::normal_caption("ÀÉÎ ŸŽ ЖЯ ΑΒ Ⴀ Ａ 𐐀 ẞ") == "àéî ÿž жя αβ ⴀ ａ 𐐨 ß");
  CHECK(models::normal_caption("İ") == "i\u0307");
  CHECK(models::normal_caption("ΟΔΟΣ ΣΑΣ Σ") == "οδος σας σ");
  CHECK(models::normal_caption("İΣ ﬁΣ ΑΣﬁ") == "i\u0307ς ﬁς ασﬁ");
  CHECK(models::normal_caption(" \t\x1c ") == "");
}
