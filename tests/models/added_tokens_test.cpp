#include "models/text/special_tokens.h"

#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include <nlohmann/json.hpp>
#include <set>

#include "models/encoders/clip_text_model.h"
#include "models/encoders/t5_encoder.h"
#include "models/safetensors.h"
#include "models/spec/json_text.h"
#include "models/text/tokenizers.h"
#include "tests/models/fixtures.h"
#include "tests/spec/model_folder.h"
#include "tests/support/doctest.h"

using namespace troupe;
using namespace troupe::testing;
using nlohmann::json;
using troupe::models::testing::kFixtures;

namespace {

namespace fs = std::filesystem;

using Ids = std::vector<std::int64_t>;

json read_json(const fs::path& file) {
  return spec::parse_json(read_bytes(file), file);
}

/// A copy of a tokenizer's folder with members of its JSON files replaced; null: the file goes.
class EditedFolder {
 public:
  EditedFolder(const fs::path& base, const json& files) {
    for (const auto& entry : fs::directory_iterator(base))
      fs::copy_file(entry.path(), path() / entry.path().filename());
    for (const auto& [name, members] : files.items()) {
      if (members.is_null()) {
        fs::remove(path() / name);
        continue;
      }
      auto content = fs::exists(path() / name) ? read_json(path() / name) : json::object();
      content.update(members);
      write_bytes(path() / name, content.dump());
    }
  }
  const fs::path& path() const { return folder_.path; }

 private:
  Scratch folder_;
};

/// The encoder of a folder beside `folder`, with a row for each of `rows` tokens.
spec::TextEncoderSpec encoder_of(const std::string& kind, const fs::path& folder,
                                 std::int64_t rows) {
  spec::TextEncoderSpec encoder;
  encoder.component = "text_encoder";
  encoder.tokenizer = spec::find_tokenizer(folder);
  if (kind == "t5") {
    encoder.config = spec::T5Spec{.vocab_size = rows};
  } else if (kind == "bert") {
    spec::BertSpec config;
    config.vocab_size = rows;
    encoder.config = config;
  } else {
    spec::ClipSpec config;
    config.vocab_size = rows;
    encoder.config = config;
  }
  return encoder;
}

Ids ids_of(const models::AnyTokenizer& tokenizer, const std::string& prompt) {
  return std::visit([&](const auto& one) { return one.encode(prompt); }, tokenizer);
}

const models::AddedVocabulary& added_of(const models::AnyTokenizer& tokenizer) {
  return std::visit([](const auto& one) -> const models::AddedVocabulary& { return one.added(); },
                    tokenizer);
}

std::string kind_of(const std::string& name) {
  const std::string kind = name.substr(0, name.find('/'));
  return kind == "clip_json" ? "clip" : kind;
}

}  // namespace

TEST_CASE(
    "tokens that a folder adds have the ids of transformers, and are written out as diffusers "
    "does") {
  const json book = read_json(kFixtures / "expected/added_tokens.json");
  std::set<std::string> kinds;
  int converted = 0;
  for (const auto& item : book["cases"]) {
    const std::string name = item["name"];
    CAPTURE(name);
    if (name == "learned") continue;
    const EditedFolder folder(kFixtures / item["base"].get<std::string>(), item["files"]);
    const auto tokenizer =
        models::load_tokenizer(encoder_of(kind_of(name), folder.path(), item["size"]));
    kinds.insert(kind_of(name));
    for (std::size_t i = 0; i < book["prompts"].size(); ++i) {
      const std::string prompt = book["prompts"][i];
      CAPTURE(prompt);
      CHECK(ids_of(tokenizer, prompt) == item["ids"][i].get<Ids>());
      const auto all = item["converted"].find(std::to_string(i));
      converted += all != item["converted"].end();
      CHECK(added_of(tokenizer).with_all_vectors(prompt) ==
            (all == item["converted"].end() ? prompt : all->get<std::string>()));
    }
  }
  CHECK(kinds == std::set<std::string>{"bert", "clip", "t5"});
  CHECK(converted > 20);
}

TEST_CASE("a folder with learned words gives the states that diffusers gives") {
  const at::NoGradGuard no_grad;
  const json book = read_json(kFixtures / "expected/added_tokens.json");
  const json& item = book["cases"].back();
  REQUIRE(item["name"] == "learned");
  const auto expected = models::load_safetensors(kFixtures / "expected/added_tokens.safetensors");
  const auto base = kFixtures / "tiny-sd15";
  Scratch scratch;
  const auto folder = scratch.path / "model";
  fs::copy(base, folder, fs::copy_options::recursive);
  auto tokens = read_json(base / "tokenizer/tokenizer.json");
  tokens.update(item["files"]["tokenizer.json"]);
  write_bytes(folder / "tokenizer/tokenizer.json", tokens.dump());
  auto config = read_json(base / "text_encoder/config.json");
  config["vocab_size"] = item["known"].get<int>() + 4;
  write_bytes(folder / "text_encoder/config.json", config.dump());
  auto weights = models::load_safetensors(base / "text_encoder/model.safetensors");
  for (auto& [name, tensor] : weights)
    if (name.ends_with("token_embedding.weight"))
      tensor = at::cat({tensor, expected.at("learned.rows")});
  models::save_safetensors(folder / "text_encoder/model.safetensors", weights);

  const auto model = models::read_model_folder(folder);
  const auto& encoder = model.text_encoders.at(0);
  REQUIRE(encoder.textual_inversion);
  CHECK(encoder.learned_words);
  const auto tokenizer = models::load_tokenizer(encoder);
  const auto text = added_of(tokenizer).with_all_vectors(item["prompt"]);
  const models::ClipTextModel clip(std::get<spec::ClipSpec>(encoder.config),
                                   models::WeightStore(encoder.weights));
  const auto row = std::get<models::ClipTokenizer>(tokenizer).tokenize({text}, 77);
  const auto made = clip.encode_each({models::text_batch(row).ids}).at(0).last;
  const at::Tensor& want = expected.at("learned.states");
  CHECK((made - want).abs().max().item<double>() < 1e-5 * (want.max() - want.min()).item<double>());
}

TEST_CASE(
    "tokens without a row in the text encoder, or with ids that are not theirs, are refused by "
    "name") {
  const auto base = kFixtures / "tiny-clip/tokenizer";
  const auto size = models::ClipTokenizer::load(base).vocab_size();
  const auto refusal = [&](const json& files, std::int64_t rows) {
    const EditedFolder folder(base, files);
    return error_of([&] { models::load_tokenizer(encoder_of("clip", folder.path(), rows)); });
  };
  const json one = {{"added_tokens.json", {{"<cat>", size}}}};
  CHECK(refusal(one, size + 1) == "");
  const auto too_many = refusal(one, size);
  CHECK(contains(too_many, "token \"<cat>\" has id " + std::to_string(size)));
  CHECK(contains(too_many, "text_encoder has rows for " + std::to_string(size) + " tokens"));
  CHECK(contains(too_many, "resize_token_embeddings"));
  CHECK(contains(refusal({{"added_tokens.json", {{"<cat>", size + 3}}}}, size + 9),
                 "added token \"<cat>\" is listed with id " + std::to_string(size + 3) +
                     ", but comes to " + std::to_string(size)));
  CHECK(contains(refusal({{"added_tokens.json", {{"<cat>", "x"}}}}, size + 9),
                 "added_tokens.json: token \"<cat>\" has no id from 0"));
  CHECK(contains(
      refusal({{"tokenizer_config.json", {{"added_tokens_decoder", {{"7x", {{"content", "a"}}}}}}}},
              size + 9),
      "bad entry \"7x\""));
}

TEST_CASE("a vocabulary with more ids than the text encoder has rows is refused") {
  for (const auto& [kind, base] : {std::pair<std::string, fs::path>{"clip", "tiny-clip/tokenizer"},
                                   {"clip", "tiny-clip/tokenizer_json"},
                                   {"t5", "tiny-pixart/tokenizer"},
                                   {"bert", "tiny-hunyuan/tokenizer"}}) {
    CAPTURE(base.string());
    const auto folder = kFixtures / base;
    const auto own = std::visit([](const auto& one) { return one.own_vocab_size(); },
                                models::load_tokenizer(encoder_of(kind, folder, 1 << 20)));
    CHECK(own > 50);
    CHECK(error_of([&] { models::load_tokenizer(encoder_of(kind, folder, own)); }) == "");
    const auto why = error_of([&] { models::load_tokenizer(encoder_of(kind, folder, own - 1)); });
    CHECK(contains(why, folder.string() + ": the vocabulary has ids up to " +
                            std::to_string(own - 1) + ", but text_encoder has rows for " +
                            std::to_string(own - 1) + " tokens"));
  }
}

TEST_CASE("a folder is read whole, its tokenizers as well") {
  Scratch scratch;
  const auto folder = scratch.path / "model";
  fs::copy(kFixtures / "tiny-sd15", folder, fs::copy_options::recursive);
  CHECK(error_of([&] { models::read_model_folder(folder); }) == "");
  const auto refusal_with = [&](const fs::path& file, const std::string& bytes) {
    const auto path = folder / file;
    const std::string before = read_bytes(path);
    fs::remove(path);
    write_bytes(path, bytes);
    const auto error = error_of([&] { models::read_model_folder(folder); });
    write_bytes(path, before);
    CHECK(contains(error, path.string() + ": "));
    return error;
  };
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:"
      "4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 12345\n";
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file()) files.push_back(fs::relative(entry.path(), folder));
  CHECK(files.size() > 8);
  for (const auto& file : files) {
    CAPTURE(file.string());
    CHECK(contains(refusal_with(file, pointer),
                   "is a Git LFS pointer, not the file itself: `git lfs pull`"));
  }
  CHECK(contains(refusal_with("tokenizer/tokenizer.json", "{}"), "normalizer null"));
}
