// Tokenizer files, and prompts.
#include "models/text/clean_caption.h"
#include "models/text/piece_model.h"
#include "models/text/tokenizer.h"
#include "tests/fuzz/targets/all.h"
#include "tests/support/scratch.h"

namespace troupe::fuzz {
namespace {

const char* const kTexts[] = {"a red circle above a blue square", "", "  \t\n ",
                              "\xe2\x96\x81 caf\xc3\xa9 \xf0\x9f\x98\x80 \xff\xfe",
                              "aaaaaaaaaaaaaaaa"};

void use(const models::PieceModel& model) {
  for (const char* text : kTexts) {
    std::vector<std::int64_t> ids;
    refusable([&] { model.encode(text, ids); });
    for (const auto id : ids)
      require(id >= 0 && id < model.size(), "an id is one of the model's pieces");
  }
  if (model.size() > 0) model.piece(model.size() - 1);
}

/// A tokenizer small enough to be changed byte by byte.
const char* const kSmall =
    R"({"version":"1.0","truncation":null,"padding":null,"added_tokens":[{"id":0,"content":"<pad>",)"
    R"("single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true},{"id":1,)"
    R"("content":"</s>","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true}],)"
    R"("normalizer":null,"pre_tokenizer":{"type":"Metaspace","replacement":"\u2581","prepend_scheme":"always",)"
    R"("split":true},"post_processor":null,"decoder":null,"model":{"type":"Unigram","unk_id":2,)"
    R"("vocab":[["<pad>",0.0],["</s>",0.0],["<unk>",0.0],["\u2581",-2.0],["a",-3.0],["\u2581a",-2.5],["red",-4]]}})";

}  // namespace

void run_tokenizer_json(std::string_view bytes) {
  static const testing::Scratch scratch;
  const auto file = scratch.file("tokenizer.json", bytes);
  refusable([&] {
    const auto read = models::read_tokenizer_json(file);
    require(read.model != nullptr, "a model came with it");
    use(*read.model);
  });
}

std::vector<std::string> seeds_tokenizer_json() {
  return {kSmall};
}

void run_spiece(std::string_view bytes) {
  static const testing::Scratch scratch;
  const auto file = scratch.file("spiece.model", bytes);
  refusable([&] { use(*models::load_sentencepiece(file)); });
}

std::vector<std::string> seeds_spiece() {
  // Protocol buffers by hand: pieces {1: text, 2: score, 3: type}, trainer and normalizer specs.
  const auto field = [](int number, const std::string& value) {
    return std::string(1, static_cast<char>(number << 3 | 2)) + static_cast<char>(value.size()) +
           value;
  };
  const auto piece = [&](const std::string& text, int type) {
    const std::string score("\x15\x00\x00\x80\xc0", 5);
    return field(1, field(1, text) + score + "\x18" + static_cast<char>(type));
  };
  const std::string model = piece("<pad>", 3) + piece("</s>", 3) + piece("<unk>", 2) +
                            piece("\xe2\x96\x81", 1) + piece("a", 1) + piece("\xe2\x96\x81red", 1) +
                            field(2, "\x18\x01") + field(3, field(1, "identity"));
  return {model};
}

void run_charsmap(std::string_view bytes) {
  refusable([&] {
    const models::Charsmap map(bytes, "fuzz");
    for (const char* text : kTexts)
      map.normalize(text);
    map.normalize(bytes);
  });
}

std::vector<std::string> seeds_charsmap() {
  std::string blob("\x08\x00\x00\x00", 4);
  blob += std::string(8, '\1') + std::string("a\0b\0", 4);
  return {blob, std::string(4, '\0')};
}

void run_caption(std::string_view bytes) {
  static const models::CaptionCleaner cleaner;
  refusable([&] { cleaner.clean(bytes); });
}

std::vector<std::string> seeds_caption() {
  return {"a cat", "<p>a &amp;lt;b&gt; &#x41;&#65; cat</p> http://a.b/c?d=%20e",
          "@name #1234567 10x20 jc6640vc 12:34 1.2.3.4 a--b__c \xe4\xb8\xad photo.jpg",
          "<!-- x --><a href='x' b=\"y\">z</a><script>q</script><br/>",
          "\xc3\x83\xc2\xa9 \xe2\x80\x9c"};
}

void run_prompt(std::string_view bytes) {
  static const auto tokenizers = [] {
    std::vector<models::Tokenizer> all;
    for (const char* kind : {"spiece.model", "tokenizer.json"}) {
      spec::TokenizerSpec files;
      files.folder = std::filesystem::path(TROUPE_SOURCE_DIR) / "examples/demo/model/tokenizer";
      files.tokenizer_config = files.folder / "tokenizer_config.json";
      auto& file = kind[0] == 's' ? files.spiece_model : files.tokenizer_json;
      file = files.folder / kind;
      all.push_back(models::Tokenizer::load(files));
    }
    return all;
  }();
  for (const auto& tokenizer : tokenizers) {
    refusable([&] {
      const auto ids = tokenizer.encode(bytes);
      for (const auto id : ids)
        require(id >= 0 && id < tokenizer.vocab_size(), "an id is in the vocabulary");
      const auto cut = tokenizer.tokenize({std::string(bytes)}, 8);
      require(cut.ids.size() == 1 && cut.ids[0].size() == 8, "padded or cut to the length");
      require(cut.lengths[0] >= 1 && cut.lengths[0] <= 8, "at least the end token");
      tokenizer.decode(ids);
    });
  }
}

std::vector<std::string> seeds_prompt() {
  return {"a red circle", "\xef\xac\x81 \xe2\x84\xa2 \xcc\x81 \xff", "</s><pad><extra_id_0> x",
          "\xe2\x96\x81\xe2\x96\x81 a"};
}

}  // namespace troupe::fuzz
