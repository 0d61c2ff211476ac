#include "models/text/textual_inversion.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "models/text/special_tokens.h"
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

const fs::path kFiles = kFixtures / "embeddings";

spec::ModelSpec model_of(const std::string& checkpoint) {
  return models::read_model_folder(kFixtures / checkpoint);
}

/// The bytes of a safetensors file of such tensors, all of whose values are `value`.
std::string file_of(const std::vector<std::pair<std::string, std::vector<std::int64_t>>>& tensors,
                    float value = 0.5F, const std::string& dtype = "F32") {
  json header = json::object();
  std::string data;
  for (const auto& [name, shape] : tensors) {
    const auto begin = data.size();
    std::int64_t count = 1;
    for (const auto size : shape)
      count *= size;
    for (std::int64_t i = 0; i < count; ++i)
      data.append(reinterpret_cast<const char*>(&value), sizeof value);
    header[name] = {{"dtype", dtype}, {"shape", shape}, {"data_offsets", {begin, data.size()}}};
  }
  return with_prefix(header.dump()) + data;
}

std::string refusal_of(const std::vector<models::TextualInversionFile>& files,
                       const spec::ModelSpec& model) {
  return error_of([&] { models::read_textual_inversions(files, model); });
}

}  // namespace

TEST_CASE("words of textual inversions come from the file, its name or the request") {
  const auto sd15 = model_of("tiny-sd15");
  const auto sdxl = model_of("tiny-sdxl");
  using Tokens = std::vector<std::string>;
  const auto tokens = [](const fs::path& file, const std::string& token, const auto& model,
                         std::size_t encoder) {
    return models::read_textual_inversion({file, token}, model).tokens(encoder);
  };
  CHECK(tokens(kFiles / "cat.safetensors", "", sd15, 0) == Tokens{"<cat>", "<cat>_1", "<cat>_2"});
  CHECK(tokens(kFiles / "cat.safetensors", "my dog", sd15, 0) ==
        Tokens{"my dog", "my dog_1", "my dog_2"});
  CHECK(tokens(kFiles / "shiny.safetensors", "", sd15, 0) == Tokens{"shiny"});
  CHECK(tokens(kFiles / "webui.safetensors", "", sd15, 0) == Tokens{"webui", "webui_1"});
  for (const std::size_t encoder : {0, 1})
    CHECK(tokens(kFiles / "style.safetensors", "", sdxl, encoder) == Tokens{"style", "style_1"});
  CHECK(tokens(kFiles / "cat.safetensors", "", sdxl, 1).empty());

  const auto read = models::read_textual_inversion({kFiles / "style.safetensors", ""}, sdxl);
  CHECK(read.of_encoder.at(0).values.size() == 2 * 24);
  CHECK(read.of_encoder.at(1).values.size() == 2 * 40);
  CHECK(read.fingerprint !=
        models::read_textual_inversion({kFiles / "cat.safetensors", ""}, sdxl).fingerprint);
}

TEST_CASE("words get ids behind the vocabulary, and are found as transformers finds them") {
  const auto tokenizer = std::get<models::ClipTokenizer>(
      models::load_tokenizer(model_of("tiny-sd15").text_encoders.at(0)));
  const auto size = tokenizer.vocab_size();
  const auto more = tokenizer.with_tokens({"<cat>", "<cat>_1"});
  CHECK(more.vocab_size() == size + 2);
  CHECK(tokenizer.vocab_size() == size);
  CHECK(more.added().with_all_vectors("a <cat>") == "a <cat> <cat>_1");
  // Words that are parts of each other's would multiply without end.
  std::vector<std::string> nested;
  for (const std::string word : {"ab", "b_", "__1"})
    for (int i = 0; i < 75; ++i)
      nested.push_back(i == 0 ? word : word + "_" + std::to_string(i));
  const auto multiplying = tokenizer.with_tokens(nested);
  CHECK(contains(
      error_of([&] { multiplying.added().with_all_vectors("ab b_ __1 ab ab ab ab ab ab ab ab"); }),
      "more than 65536 bytes"));
  const auto sd15 = model_of("tiny-sd15");
  const auto cat = models::read_textual_inversions({{kFiles / "cat.safetensors", "ж"}}, sd15);
  std::string some, many;
  for (int i = 0; i < 5300; ++i) {
    many += "ж ";
    if (i < 2500) some += "ж ";
  }
  CHECK(contains(error_of([&] {
                   models::check_learned_words({"", many}, cat, sd15);
                 }),
                 "more than 65536 bytes"));
  models::check_learned_words({some}, cat, sd15);
  models::check_learned_words({many}, {}, sd15);
  const auto ids = more.encode("A <CAT>");
  CHECK(std::ranges::count(ids, size) == 1);
  CHECK(more.encode("a red circle") == tokenizer.encode("a red circle"));
}

TEST_CASE("textual inversions that cannot be one of the model are refused with file and cause") {
  const auto sd15 = model_of("tiny-sd15");
  const auto sdxl = model_of("tiny-sdxl");
  const Scratch scratch;
  const auto refused = [&](const std::string& bytes, const spec::ModelSpec& model) {
    const auto file = scratch.file("word.safetensors", bytes);
    const auto why = refusal_of({{file, ""}}, model);
    CHECK(why.starts_with("[textual inversion] " + file.string() + ": "));
    CHECK(why.find('\n') == std::string::npos);
    return why;
  };
  for (const char* name : {"word.pt", "word.bin"})
    CHECK(contains(refusal_of({{scratch.file(name, "PK"), ""}}, sd15), "is no file of torch.save"));
  CHECK(contains(refusal_of({{scratch.file("word.txt", "PK"), ""}}, sd15),
                 "is no .safetensors, .pt or .bin file"));
  CHECK(contains(refusal_of({{scratch.path / "none.safetensors", ""}}, sd15), "none.safetensors"));
  CHECK(
      contains(refused("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", sd15),
               "is a Git LFS pointer"));
  CHECK(contains(refused(file_of({{"<a>", {24}}, {"<b>", {24}}}), sd15),
                 "has 2 tensors (\"<a>\", \"<b>\"), and a textual inversion has one tensor"));
  CHECK(contains(refused(file_of({}), sd15), "has 0 tensors"));
  CHECK(contains(refused(file_of({{"clip_l", {24}}}), sdxl), "has one tensor (\"clip_l\")"));
  CHECK(contains(refused(file_of({{"<a>", {2, 25}}}), sd15),
                 "tensor \"<a>\" has shape [2, 25], and text_encoder takes vectors of 24 values"));
  CHECK(contains(refused(file_of({{"<a>", {1, 1, 24}}}), sd15), "has shape [1, 1, 24]"));
  CHECK(contains(refused(file_of({{"<a>", {}}}), sd15), "has shape []"));
  CHECK(contains(refused(file_of({{"<a>", {0, 24}}}), sd15), "has 0 vectors"));
  CHECK(contains(refused(file_of({{"<a>", {76, 24}}}), sd15),
                 "has 76 vectors, and a prompt has room for 1 to 75"));
  CHECK(contains(refused(file_of({{"<a>", {24}}}, 1, "I32"), sd15), "a floating one is needed"));
  CHECK(contains(refused(file_of({{"<a>", {24}}}, std::numeric_limits<float>::quiet_NaN()), sd15),
                 "tensor \"<a>\" is not finite at element 0"));
  CHECK(contains(refused(file_of({{"clip_l", {2, 24}}, {"clip_g", {3, 40}}}), sdxl),
                 "have different numbers of vectors"));
  CHECK(contains(refused(file_of({{"clip_l", {24}}, {"clip_g", {40}}}), sd15),
                 "which this model does not have: it was made for SDXL"));
  CHECK(contains(refused(file_of({{"circle</w>", {24}}}), sd15),
                 "the word \"circle</w>\" is one of "));
  CHECK(contains(refused(file_of({{"", {24}}}), sd15), "its word has 0 bytes"));
  CHECK(contains(refused(file_of({{std::string(300, 'a'), {24}}}), sd15),
                 "its word has 300 bytes, 1 to 256 are taken"));
  CHECK(contains(refused(file_of({{"<a>", {24}}}), model_of("tiny-sd3")),
                 "StableDiffusion3Pipeline takes no textual inversions"));

  // One file's words are the next one's vocabulary.
  const auto cat = kFiles / "cat.safetensors";
  CHECK(contains(refusal_of({{cat, ""}, {cat, ""}}, sd15), "the word \"<cat>\" is one of "));
  CHECK(contains(refusal_of({{cat, ""}, {kFiles / "shiny.safetensors", "<cat>_2"}}, sd15),
                 "the word \"<cat>_2\" is one of "));
  CHECK(refusal_of({{cat, ""}, {cat, "<dog>"}}, sd15).empty());
  const std::vector<models::TextualInversionFile> many(65, {cat, ""});
  CHECK(contains(refusal_of(many, sd15), "embeddings are 65: at most 64 are taken"));
}
