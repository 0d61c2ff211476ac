#include "models/text/qwen_tokenizer.h"

#include <cctype>
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

struct Quotes {
  std::string_view open, close;
};
constexpr Quotes kQuotes[] = {{"'", "'"}, {"\"", "\""}, {"‘", "’"}, {"“", "”"}};

/// Returns, for each byte, whether it is an apostrophe within a word, which is no quote.
std::vector<bool> inner_apostrophes(std::string_view text) {
  const auto is_letter = [&](std::size_t i) {
    return i < text.size() && std::isalpha(static_cast<unsigned char>(text[i])) != 0;
  };
  std::vector<bool> inner(text.size());
  std::size_t word = 0;
  for (std::size_t i = 1; i < text.size(); ++i) {
    if (text[i] != '\'' || i <= word || !is_letter(i - 1) || !is_letter(i + 1)) continue;
    inner[i] = true;
    for (word = i + 1; is_letter(word);)
      ++word;
  }
  return inner;
}

/// Returns the length of the quotation that begins at `at`, with its quotes; 0 if there is none.
std::size_t quotation_at(std::string_view text, std::size_t at, const std::vector<bool>& inner) {
  const auto is = [&](std::size_t place, std::string_view quote) {
    return text.substr(place).starts_with(quote) && (inner.empty() || !inner[place]);
  };
  for (const auto& [open, close] : kQuotes) {
    if (!is(at, open)) continue;
    std::size_t end = at + open.size();
    while (end < text.size() && !is(end, open) && !is(end, close))
      ++end;
    return end < text.size() && is(end, close) ? end + close.size() - at : 0;
  }
  return 0;
}

/// Splits a text at its quotations, which are spelled: one letter a part.
std::vector<std::string_view> spelled_parts(std::string_view text) {
  std::vector<std::string_view> parts;
  const auto add = [&](std::string_view part) {
    if (part.empty()) return;
    if (quotation_at(part, 0, {}) == 0) return parts.push_back(part);
    for (std::size_t begin = 0, end = 0; begin < part.size(); begin = end) {
      for (end = begin + 1; end < part.size() && (part[end] & 0xC0) == 0x80;)
        ++end;
      parts.push_back(part.substr(begin, end - begin));
    }
  };
  const auto inner = inner_apostrophes(text);
  std::size_t plain = 0;
  for (std::size_t i = 0; i < text.size();) {
    const std::size_t length = quotation_at(text, i, inner);
    if (length > 0) {
      add(text.substr(plain, i - plain));
      add(text.substr(i, length));
      plain = i + length;
    }
    i += length > 0 ? length : 1;
  }
  add(text.substr(plain));
  return parts;
}

}  // namespace

struct QwenTokenizer::Impl {
  explicit Impl(QwenFolder from)
      : bpe(std::move(from.files.vocabulary), from.files.merges, qwen_form().end_of_word, {}),
        added(from.tokens.in_order(),
              {.size = bpe.count(),
               .id = [this](const std::string& token) { return bpe.id(token); },
               .normalize = tokenizers_nfc},
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

Tokenized QwenTokenizer::tokenize(const std::vector<std::string>& prompts, std::int64_t max_length,
                                  const std::string& kept_after) const {
  const RowRule rule{.end = encode(kept_after),
                     .pad = impl_->pad,
                     .encode = [this](std::string_view text) { return encode(text); },
                     .spell = [this](const auto& ids) { return decode(ids); }};
  return make_rows(rule, prompts, max_length);
}

Tokenized QwenTokenizer::tokenize_spelled(const std::string& before,
                                          const std::vector<std::string>& prompts,
                                          std::int64_t max_length) const {
  const auto first = encode(before);
  const auto encode_parts = [&](std::string_view text) {
    auto ids = first;
    const std::string valid = valid_utf8(text);
    for (const std::string_view part : spelled_parts(valid)) {
      const auto own = encode(part);
      ids.insert(ids.end(), own.begin(), own.end());
    }
    return ids;
  };
  const RowRule rule{
      .end = {}, .pad = impl_->pad, .encode = encode_parts, .spell = [this](const auto& ids) {
        return decode(ids);
      }};
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
