#include "models/text/qwen_tokenizer.h"

#include <stdexcept>
#include <utility>

#include "models/spec/config.h"
#include "models/spec/json_text.h"
#include "models/text/byte_bpe.h"
#include "models/text/pattern.h"
#include "models/text/special_tokens.h"
#include "models/text/unicode.h"

namespace troupe::models {
namespace {

namespace fs = std::filesystem;

const BpeForm& qwen_form() {
  static const BpeForm form{
      .name = "Qwen",
      .end_of_word = "",
      .normalizers = {"NFC"},
      .words =
          "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| "
          "?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+",
      .split_inverted = false,
      .splits_again = false,
      .adds_nothing = true};
  return form;
}

/// The form's pattern with the white space that it means, which is Unicode's. Where nothing is won
/// by trying less, matches are kept whole.
const Pattern& qwen_words() {
  static const Pattern made = [] {
    const std::string space = "[" + std::string(kWhiteSpace) + "]";
    const std::string other = "[^" + std::string(kWhiteSpace) + "\\p{L}\\p{N}]";
    const std::string word = "[^" + std::string(kWhiteSpace) + "]";
    return Pattern("(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}++|\\p{N}| ?" + other +
                   "++[\\r\\n]*+|" + space + "*[\\r\\n]++|" + space + "+(?!" + word + ")|" + space +
                   "++");
  }();
  return made;
}

/// Files and settings of a folder.
struct QwenFolder {
  BpeFiles files;
  FolderTokens tokens{{{"unk_token", "<|endoftext|>"},
                       {"eos_token", "<|endoftext|>"},
                       {"pad_token", "<|endoftext|>"}}};
};

QwenFolder read_qwen_folder(const fs::path& folder) {
  QwenFolder result;
  result.files = read_bpe_files(folder, qwen_form());
  if (spec::is_file(folder / "tokenizer_config.json")) {
    const auto config = spec::ConfigReader::read(folder / "tokenizer_config.json");
    config.choice_or("tokenizer_class", "Qwen2Tokenizer", {"Qwen2Tokenizer", "Qwen2TokenizerFast"});
    result.tokens.read_config(config);
    only_or_null(config, "add_prefix_space", false);
    only_or_null(config, "add_bos_token", false);
    only_or_null(config, "add_eos_token", false);
    accept_common_settings(config);
    // The template is held against what the pipeline does with it.
    config.harmless({"tokenizer_class", "errors", "chat_template"});
    config.finish();
  }
  result.tokens.read_folder(folder, result.files.source, result.files.added_tokens);
  return result;
}

}  // namespace

struct QwenTokenizer::Impl {
  explicit Impl(QwenFolder from)
      : bpe(std::move(from.files.vocabulary), from.files.merges, qwen_form().end_of_word, {}),
        added(from.tokens.in_order(),
              {.size = bpe.count(),
               .id = [this](const std::string& token) { return bpe.id(token); },
               .normalize = nfc},
              from.files.source.parent_path()),
        pad(added.need(from.tokens.named("pad_token"))) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  ByteBpe bpe;
  AddedVocabulary added;
  std::int64_t pad;
};

QwenTokenizer::QwenTokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

QwenTokenizer QwenTokenizer::load(const fs::path& folder) {
  auto read = read_qwen_folder(folder);
  const auto source = read.files.source;
  try {
    return QwenTokenizer(std::make_shared<Impl>(std::move(read)));
  } catch (const std::invalid_argument& error) {
    throw std::runtime_error("[load_tokenizer] " + source.string() + ": " + error.what());
  }
}

std::vector<std::int64_t> QwenTokenizer::encode(std::string_view text) const {
  std::vector<std::int64_t> ids;
  impl_->added.split(
      valid_utf8(text),
      [&](std::string_view some) {
        for (const std::string_view word : qwen_words().find_all(some))
          impl_->bpe.encode(word, ids);
      },
      [&](std::int64_t id) { ids.push_back(id); });
  return ids;
}

Tokenized QwenTokenizer::tokenize(const std::vector<std::string>& prompts,
                                  std::int64_t max_length) const {
  const RowRule rule{.eos = {},
                     .pad = impl_->pad,
                     .encode = [this](std::string_view text) { return encode(text); },
                     .spell = [this](const auto& ids) { return decode(ids); }};
  return make_rows(rule, prompts, max_length);
}

std::string QwenTokenizer::decode(const std::vector<std::int64_t>& ids) const {
  std::string bytes;
  for (const std::int64_t id : ids) {
    const std::string added = impl_->added.content(id);
    bytes += added.empty() ? impl_->bpe.text(id) : added;
  }
  return valid_utf8(bytes);
}

std::int64_t QwenTokenizer::own_vocab_size() const {
  return impl_->bpe.size();
}

const AddedVocabulary& QwenTokenizer::added() const {
  return impl_->added;
}

std::int64_t QwenTokenizer::pad_id() const {
  return impl_->pad;
}

}  // namespace troupe::models
