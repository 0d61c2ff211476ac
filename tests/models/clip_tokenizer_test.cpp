#include "models/text/clip_tokenizer.h"

#include <nlohmann/json.hpp>
#include <random>

#include "models/spec/json_text.h"
#include "models/text/unicode.h"
#include "tests/models/fixtures.h"
#include "tests/spec/model_folder.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::testing;
using models::ClipTokenizer;
using nlohmann::json;

namespace {

using Ids = std::vector<std::int64_t>;

using troupe::models::testing::kFixtures;
const std::filesystem::path kClipTokenizers = kFixtures / "tiny-clip";

/// A tokenizer's folder of the tiny checkpoint, to be changed.
class CopiedFolder {
 public:
  explicit CopiedFolder(const std::string& name) {
    std::filesystem::copy(kClipTokenizers / name, folder_.path,
                          std::filesystem::copy_options::recursive);
  }
  std::filesystem::path path() const { return folder_.path; }
  template <typename Edit>
  void edit(const char* file, Edit&& change) {
    json content = spec::parse_json(read_bytes(path() / file), file);
    change(content);
    write_bytes(path() / file, content.dump());
  }
  std::string error() const {
    return error_of([&] { ClipTokenizer::load(path()); });
  }

 private:
  Scratch folder_;
};

}  // namespace

TEST_CASE("CLIP's ids equal those of transformers, from every form of files") {
  const auto first = ClipTokenizer::load(kClipTokenizers / "tokenizer");
  const auto second = ClipTokenizer::load(kClipTokenizers / "tokenizer_2");
  const auto from_json = ClipTokenizer::load(kClipTokenizers / "tokenizer_json");
  CHECK(first.pad_id() == first.eos_id());
  CHECK(second.pad_id() == 0);
  CHECK(second.model_max_length() == 77);
  const auto file = kFixtures / "expected/clip_tokens.json";
  const json book = spec::parse_json(read_bytes(file), file);
  int differ = 0;
  int cut = 0;
  for (const auto& item : book["cases"]) {
    const std::string prompt = item["prompt"];
    CAPTURE(item["name"].get<std::string>());
    CAPTURE(prompt);
    CHECK(first.encode(prompt) == item["tokenizer"].get<Ids>());
    const char* of_second = item.contains("tokenizer_2") ? "tokenizer_2" : "tokenizer";
    CHECK(second.encode(prompt) == item[of_second].get<Ids>());
    const char* saved = item.contains("tokenizer_json") ? "tokenizer_json" : of_second;
    CHECK(from_json.encode(prompt) == item[saved].get<Ids>());
    differ += item["tokenizer"] != item[of_second];
    if (!item.contains("cut")) continue;
    const auto short_first = first.tokenize({prompt}, 12);
    CHECK(short_first.ids[0] == item["cut"]["tokenizer"].get<Ids>());
    CHECK(second.tokenize({prompt}, 12).ids[0] == item["cut"]["tokenizer_2"].get<Ids>());
    CHECK(short_first.cut[0].empty() == (first.encode(prompt).size() <= 12));
    cut += !short_first.cut[0].empty();
  }
  CHECK(book["cases"].size() > 250);
  CHECK(differ > 10);
  CHECK(cut > 10);
}

TEST_CASE("what CLIP's limit cuts off is said in words") {
  const auto tokenizer = ClipTokenizer::load(kClipTokenizers / "tokenizer");
  const auto result = tokenizer.tokenize({"A red CIRCLE above a blue square", "a dog"}, 5);
  CHECK(result.cut[0] == "above a blue square");
  CHECK(result.lengths == std::vector<std::int64_t>{5, 4});
  CHECK(result.ids[0].back() == tokenizer.eos_id());
  CHECK(result.ids[1].back() == tokenizer.pad_id());
  CHECK(result.cut[1].empty());
  CHECK(tokenizer.decode(tokenizer.encode("Café  日本!")) ==
        "<|startoftext|>café 日本 ! <|endoftext|>");
  CHECK(contains(error_of([&] { tokenizer.tokenize({"a"}, 1); }), "max_length = 1"));
}

TEST_CASE("normal form C is Unicode's") {
  CHECK(models::nfc("e\u0301 a\u0323\u0302 a\u0302\u0323") == "\u00e9 \u1ead \u1ead");
  CHECK(models::nfc("\u1100\u1161\u11a8 \u212b \u2126") == "\uac01 \u00c5 \u03a9");
  CHECK(models::nfc("\u0301\u0327 q\u0307\u0323") == "\u0327\u0301 q\u0323\u0307");
  CHECK(models::nfc("\u0958 \U0001d15e") == "\u0915\u093c \U0001d157\U0001d165");
  CHECK(models::nfc("\U00011099\U000110ba") == "\U0001109a");
  CHECK(models::nfc("plain") == "plain");
}

TEST_CASE("tokenizers' normal forms are Unicode 9.0's") {
  using models::tokenizers_nfc;
  CHECK(tokenizers_nfc("e\u0301 a\u0323\u0302 \u212b \u0301\u0327") ==
        models::nfc("e\u0301 a\u0323\u0302 \u212b \u0301\u0327"));
  // U+1E136 came with version 12, as a mark above, behind which U+0F71 would be put before it.
  CHECK(models::nfc("\U0001e136\u0f71") == "\u0f71\U0001e136");
  CHECK(tokenizers_nfc("\U0001e136\u0f71") == "\U0001e136\u0f71");
  CHECK(tokenizers_nfc("e\U0001e136\u0301") == "e\U0001e136\u0301");
  // U+11938 came with version 13, in two parts.
  CHECK(models::tokenizers_nfd("\U00011938") == "\U00011938");
  CHECK(tokenizers_nfc("\U00011935\U00011930") == "\U00011935\U00011930");
  CHECK(tokenizers_nfc("") == "");
}

TEST_CASE("files that are not CLIP's are refused by name") {
  CHECK(contains(error_of([&] { ClipTokenizer::load(kClipTokenizers / "text_encoder"); }),
                 "has neither tokenizer.json nor vocab.json and merges.txt"));
  const auto json_error = [](const char* path, const json& value) {
    CopiedFolder folder("tokenizer_json");
    folder.edit("tokenizer.json",
                [&](json& content) { content[json::json_pointer(path)] = value; });
    return folder.error();
  };
  CHECK(json_error("/version", "1.0") == "");
  CHECK(contains(json_error("/model/type", "Unigram"), "\"type\" = \"Unigram\" is not supported"));
  CHECK(contains(json_error("/model/byte_fallback", true), "byte_fallback"));
  CHECK(contains(json_error("/model/end_of_word_suffix", nullptr), "end_of_word_suffix"));
  CHECK(contains(json_error("/normalizer/normalizers/2/type", "Strip"), "normalizer \"Strip\""));
  CHECK(contains(json_error("/normalizer", nullptr), "normalizer null"));
  CHECK(contains(json_error("/pre_tokenizer/pretokenizers/0/pattern/Regex", "x"), "pre_tokenizer"));
  CHECK(contains(json_error("/model/merges/0", "abc"), "merge 0 is not a pair"));
  CHECK(contains(json_error("/model/merges/0", json::array({"q", "zz"})), "merge 0, \"q zz\""));
  CHECK(contains(json_error("/model/vocab/a", -1), "token \"a\" has no id"));
  CHECK(contains(json_error("/model/vocab/a", 7), "id 7 is given twice"));

  const auto config_error = [](const char* key, const json& value) {
    CopiedFolder folder("tokenizer");
    std::filesystem::remove(folder.path() / "special_tokens_map.json");
    folder.edit("tokenizer_config.json", [&](json& content) { content[key] = value; });
    return folder.error();
  };
  CHECK(contains(config_error("tokenizer_class", "T5Tokenizer"), "\"T5Tokenizer\""));
  CHECK(contains(config_error("do_lower_case", false), "\"do_lower_case\" = false"));
  CHECK(contains(config_error("unk_token", "[UNK]"), "has no token \"[UNK]\""));
  CHECK(contains(config_error("extra_rule", 1), "extra_rule"));
  CHECK(contains(config_error("pad_token", 3), "pad_token is not a token"));
  CHECK(contains(config_error("additional_special_tokens", {""}), "is not a token"));
  CHECK(contains(config_error("split_special_tokens", true), "split_special_tokens"));
  CHECK(config_error("additional_special_tokens", json::array()) == "");
}

TEST_CASE("random bytes are tokens or errors, never crashes") {
  std::mt19937 random(5);
  const auto tokenizer = ClipTokenizer::load(kClipTokenizers / "tokenizer_2");
  for (int round = 0; round < 400; ++round) {
    std::string text(random() % 60, '\0');
    for (char& c : text)
      c = static_cast<char>(random());
    const auto ids = tokenizer.encode(text);
    REQUIRE(ids.size() >= 2);
    for (const auto id : ids) {
      REQUIRE(id >= 0);
      REQUIRE(id < tokenizer.vocab_size());
    }
    tokenizer.decode(ids);
  }
  // A word of a million letters takes no quadratic time.
  CHECK(tokenizer.encode(std::string(1'000'000, 'a')).size() > 1000);

  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "vocab.json", "merges.txt"}) {
    const bool is_json = std::string_view(name) == "tokenizer.json";
    CopiedFolder folder(is_json ? "tokenizer_json" : "tokenizer_2");
    const std::string good = read_bytes(folder.path() / name);
    for (int round = 0; round < 100; ++round) {
      std::string bytes = good;
      if (round % 3 == 0) bytes.resize(random() % bytes.size());
      for (int edits = 0; edits < 3 && !bytes.empty(); ++edits)
        bytes[random() % bytes.size()] = static_cast<char>(random());
      write_bytes(folder.path() / name, bytes);
      try {
        const auto ids = ClipTokenizer::load(folder.path()).encode("a red circle, café ﬁne!");
        CHECK(ids.size() >= 2);
      } catch (const std::runtime_error& error) {
        CHECK(std::string(error.what()).starts_with("["));
      }
    }
  }
}
