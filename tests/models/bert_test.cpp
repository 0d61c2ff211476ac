#include "models/encoders/bert_model.h"

#include <ATen/core/grad_mode.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>

#include "models/encoders/t5_encoder.h"
#include "models/spec/model_spec.h"
#include "models/text/bert_tokenizer.h"
#include "tests/models/fixtures.h"
#include "tests/spec/model_folder.h"
#include "tests/spec/published_hunyuan.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::testing;

namespace {

using troupe::models::testing::kFixtures;
const std::filesystem::path kHunyuan = kFixtures / "tiny-hunyuan";

}  // namespace

TEST_CASE("BERT's ids and states equal those of transformers") {
  const at::NoGradGuard no_grad;
  const auto model = spec::read_model_spec(kHunyuan);
  const auto& encoder = model.text_encoders.at(0);
  const auto tokenizer = models::BertTokenizer::load(kHunyuan / "tokenizer");
  Scratch lines_only;
  std::filesystem::copy(kHunyuan / "tokenizer", lines_only.path / "tokenizer");
  std::filesystem::remove(lines_only.path / "tokenizer/tokenizer.json");
  const auto from_lines = models::BertTokenizer::load(lines_only.path / "tokenizer");
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
    CHECK(from_lines.encode(prompt) == ids);
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

namespace {

/// The tiny checkpoint's tokenizer with one value of one file changed; its refusal, if any.
std::string refusal(const char* file, const char* pointer, const nlohmann::json& value) {
  Scratch folder;
  std::filesystem::copy(kHunyuan / "tokenizer", folder.path / "tokenizer");
  const auto path = folder.path / "tokenizer" / file;
  auto json = std::filesystem::exists(path) ? nlohmann::json::parse(read_bytes(path))
                                            : nlohmann::json::object();
  json[nlohmann::json::json_pointer(pointer)] = value;
  write_bytes(path, json.dump());
  return error_of([&] { models::BertTokenizer::load(folder.path / "tokenizer"); });
}

}  // namespace

TEST_CASE("settings of BERT's tokenizer that are not supported are refused by key") {
  using nlohmann::json;
  const auto config = [](const char* key, const json& value) {
    return refusal("tokenizer_config.json", (std::string("/") + key).c_str(), value);
  };
  for (const auto& [key, value] : std::vector<std::pair<const char*, json>>{
           {"padding_side", "left"},
           {"truncation_side", "left"},
           {"never_split", {"a"}},
           {"frobnicate", 1},
           {"do_basic_tokenize", false},
           {"wordpieces_prefix", "@@"},
           {"split_special_tokens", true},
           {"tokenizer_class", "DistilBertTokenizer"},
           {"cls_token", 3},
           {"sep_token", {{"content", "[SEP]"}, {"lstrip", "yes"}}},
           {"added_tokens_decoder", {{"-3", {{"content", "[SEP]"}}}}}}) {
    const std::string error = config(key, value);
    CAPTURE(key);
    CHECK(contains(error, "tokenizer_config.json"));
    CHECK(contains(error, key));
  }
  CHECK(contains(config("added_tokens_decoder", {{"7", {{"content", "[SEP]"}}}}),
                 "\"[SEP]\" is listed with id 7, but comes to 3 in the vocabulary"));
  CHECK(contains(config("unk_token", "[PAD]"), "unk_token"));
  for (const auto& [key, value] : std::vector<std::pair<const char*, json>>{
           {"never_split", nullptr},
           {"do_basic_tokenize", true},
           {"padding_side", "right"},
           {"cls_token", {{"content", "[CLS]"}, {"lstrip", false}}},
           {"additional_special_tokens", {"[MASK]"}},
           {"added_tokens_decoder", {{"3", {{"content", "[SEP]"}, {"special", true}}}}}}) {
    CAPTURE(key);
    CHECK(config(key, value) == "");
  }
  const auto file = [](const char* pointer, const json& value) {
    return refusal("tokenizer.json", pointer, value);
  };
  CHECK(contains(file("/model/continuing_subword_prefix", "@@"), "continuing_subword_prefix"));
  CHECK(contains(file("/model/max_input_chars_per_word", 50), "max_input_chars_per_word"));
  CHECK(contains(file("/model/surprise", 1), "surprise"));
  CHECK(contains(file("/model/type", "BPE"), "WordPiece"));
  CHECK(contains(file("/normalizer/lowercase", false), "lowercase"));
  CHECK(contains(file("/normalizer/strip_accents", false), "strip_accents"));
  CHECK(contains(file("/normalizer", {{"type", "Lowercase"}}), "BertNormalizer"));
  CHECK(contains(file("/pre_tokenizer/type", "Whitespace"), "BertPreTokenizer"));
  CHECK(contains(file("/post_processor/single/0/SpecialToken/id", "[SEP]"), "post_processor"));
  CHECK(contains(file("/added_tokens/0/rstrip", 1), "rstrip"));
  CHECK(contains(file("/surprise", 1), "surprise"));
  CHECK(contains(refusal("special_tokens_map.json", "/surprise", 1), "surprise"));
  CHECK(contains(refusal("special_tokens_map.json", "/sep_token", "."), "post_processor"));
}

TEST_CASE("special tokens in a prompt are theirs, by the names that the folder gives them") {
  Scratch folder;
  write_bytes(folder.path / "vocab.txt", "<p>\n<u>\n<b>\n<e>\na\n##a\n[\n]\nsep\n<x>\n");
  write_bytes(folder.path / "tokenizer_config.json",
              R"({"pad_token": "<p>", "unk_token": "<u>", "cls_token": "<b>", "sep_token": "<e>",
                  "additional_special_tokens": ["<x>"]})");
  const auto tokenizer = models::BertTokenizer::load(folder.path);
  using Ids = std::vector<std::int64_t>;
  CHECK(tokenizer.encode("aa<x>a <e>[SEP]b<X>") == Ids{2, 4, 5, 9, 4, 3, 6, 8, 7, 1, 1, 1, 1, 3});
  CHECK(tokenizer.tokenize({"a"}, 5).ids[0] == Ids{2, 4, 3, 0, 0});
}

TEST_CASE("HunyuanDiT's published tokenizer settings load") {
  Scratch folder;
  std::string lines;
  for (int id = 0; id < 47020; ++id) {
    const std::map<int, std::string> named{{0, "[PAD]"},   {100, "[UNK]"},  {101, "[CLS]"},
                                           {102, "[SEP]"}, {103, "[MASK]"}, {200, "a"}};
    const auto found = named.find(id);
    lines += (found == named.end() ? "[unused" + std::to_string(id) + "]" : found->second) + "\n";
  }
  write_bytes(folder.path / "vocab.txt", lines);
  write_bytes(folder.path / "tokenizer_config.json", kHunyuanBertTokenizer);
  const auto tokenizer = models::BertTokenizer::load(folder.path);
  CHECK(tokenizer.vocab_size() == 47020);
  CHECK(tokenizer.encode("À [MASK]é") == std::vector<std::int64_t>{101, 200, 103, 100, 102});
}

TEST_CASE("damaged files of BERT's tokenizer are refused without a crash") {
  std::mt19937 random(11);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    Scratch folder;
    const auto copy = folder.path / "tokenizer";
    std::filesystem::copy(kHunyuan / "tokenizer", copy);
    const std::string good = read_bytes(copy / name);
    for (int round = 0; round < 100; ++round) {
      std::string bytes = good;
      if (round % 3 == 0) bytes.resize(random() % bytes.size());
      for (int edits = 0; edits < 3 && !bytes.empty(); ++edits)
        bytes[random() % bytes.size()] = static_cast<char>(random());
      write_bytes(copy / name, bytes);
      try {
        const auto tokenizer = models::BertTokenizer::load(copy);
        for (const auto id : tokenizer.encode("a red [SEP] circle, 猫 café"))
          CHECK(id < tokenizer.vocab_size());
      } catch (const std::runtime_error& error) {
        CHECK(std::string(error.what()).starts_with("["));
      }
    }
  }
}
