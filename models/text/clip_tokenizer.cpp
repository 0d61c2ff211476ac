#include "models/text/clip_tokenizer.h"

#include <algorithm>
#include <optional>
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

/// Contents of a CLIP tokenizer's folder.
struct ClipVocabulary {
  BpeFiles files;
  FolderTokens tokens{{{"bos_token", "<|startoftext|>"},
                       {"eos_token", "<|endoftext|>"},
                       {"unk_token", "<|endoftext|>"},
                       {"pad_token", "<|endoftext|>"}}};
  /// Number of tokens that the model was trained for; 0 if the folder names none.
  std::int64_t model_max_length = 0;
};

const BpeForm& clip_form() {
  static const BpeForm form{
      .name = "CLIP",
      .end_of_word = "</w>",
      .normalizers = {"NFC", "Replace", "Lowercase"},
      .words =
          "<\\|startoftext\\|>|<\\|endoftext\\|>|'s|'t|'re|'ve|'m|'ll|'d|[\\p{L}]+|[\\p{N}]|"
          "[^\\s\\p{L}\\p{N}]+"};
  return form;
}

void accept_harmless(const spec::ConfigReader& config) {
  config.only("do_lower_case", true);
  config.only("add_prefix_space", false);
  accept_common_settings(config);
  config.harmless({"tokenizer_class", "errors"});
  config.finish();
}

/// Reads a folder's vocabulary, and settings from `tokenizer_config.json`,
/// `special_tokens_map.json` and `added_tokens.json`, where there are any. Throws as
/// read_bpe_files.
ClipVocabulary read_clip_vocabulary(const fs::path& folder) {
  ClipVocabulary result;
  result.files = read_bpe_files(folder, clip_form());
  if (spec::is_file(folder / "tokenizer_config.json")) {
    const auto config = spec::ConfigReader::read(folder / "tokenizer_config.json");
    config.choice_or("tokenizer_class", "CLIPTokenizer", {"CLIPTokenizer", "CLIPTokenizerFast"});
    result.tokens.read_config(config);
    if (config.has_value("model_max_length")) {
      // For no limit, transformers writes 1e30.
      const double length = config.number("model_max_length");
      if (length >= 1 && length <= kMaxTokenId)
        result.model_max_length = static_cast<std::int64_t>(length);
    }
    accept_harmless(config);
  }
  const auto& files = result.files;
  result.tokens.read_folder(folder, files.source, files.added_tokens);
  if (const auto unk = result.tokens.named("unk_token"); !files.vocabulary.contains(unk)) {
    throw std::runtime_error("[load_tokenizer] " + files.source.string() + ": has no token \"" +
                             unk + "\"");
  }
  return result;
}

std::string other_than_space() {
  return "[^" + std::string(kWhiteSpace) + "\\p{L}\\p{N}]++";
}

const Pattern& clip_words() {
  static const Pattern made(
      "<\\|startoftext\\|>|<\\|endoftext\\|>|'s|'t|'re|'ve|'m|'ll|'d|"
      "\\p{L}++|\\p{N}|" +
      other_than_space());
  return made;
}

/// Pattern by which the byte-level step splits words once more: it differs for the spelling of
/// begin and end tokens.
const Pattern& byte_level_words() {
  static const Pattern made("'s|'t|'re|'ve|'m|'ll|'d|\\p{L}++|\\p{N}++|" + other_than_space());
  return made;
}

std::string single_spaces(std::string_view text) {
  std::string out;
  bool in_space = false;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    const bool space = is_white_space(point.value);
    if (!space) {
      append_utf8(out, point.value);
    } else if (!in_space) {
      out += ' ';
    }
    in_space = space;
    at += point.bytes;
  }
  return out;
}

std::string prepared(std::string_view text) {
  return lower_case_by_letter(single_spaces(tokenizers_nfc(text)));
}

}  // namespace

struct ClipTokenizer::Impl {
  explicit Impl(const ClipVocabulary& from)
      : bpe(std::make_shared<const ByteBpe>(
            from.files.vocabulary, from.files.merges, clip_form().end_of_word,
            from.files.vocabulary.at(from.tokens.named("unk_token")))),
        tokens(from.tokens.in_order()),
        source(from.files.source),
        model_max_length(from.model_max_length),
        added(added_of(tokens)),
        bos(added.need(from.tokens.named("bos_token"))),
        eos(added.need(from.tokens.named("eos_token"))),
        pad(added.need(from.tokens.named("pad_token"))) {}

  AddedVocabulary added_of(const std::vector<AddedToken>& of) const {
    return {of,
            {.size = bpe->count(),
             .id = [bpe = bpe](const std::string& token) { return bpe->id(token); },
             .normalize = prepared},
            source.parent_path()};
  }

  void encode(std::string_view text, std::vector<std::int64_t>& ids) const {
    const auto words = [&](std::string_view some) {
      for (const std::string_view word : clip_words().find_all(some)) {
        for (const std::string_view part : byte_level_words().find_all(word))
          bpe->encode(part, ids);
      }
    };
    added.split(text, words, [&](std::int64_t id) { ids.push_back(id); });
  }

  std::shared_ptr<const ByteBpe> bpe;
  std::vector<AddedToken> tokens;
  std::filesystem::path source;
  std::int64_t model_max_length;
  AddedVocabulary added;
  std::int64_t bos, eos, pad;
};

ClipTokenizer::ClipTokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

ClipTokenizer ClipTokenizer::load(const std::filesystem::path& folder) {
  const ClipVocabulary vocabulary = read_clip_vocabulary(folder);
  try {
    return ClipTokenizer(std::make_shared<Impl>(vocabulary));
  } catch (const std::invalid_argument& error) {
    throw std::runtime_error("[load_tokenizer] " + vocabulary.files.source.string() + ": " +
                             error.what());
  }
}

ClipTokenizer ClipTokenizer::with_tokens(const std::vector<std::string>& words) const {
  auto more = std::make_shared<Impl>(*impl_);
  for (const auto& word : words)
    more->tokens.push_back({.content = word, .normalized = true});
  more->added = more->added_of(more->tokens);
  return ClipTokenizer(std::move(more));
}

std::vector<std::int64_t> ClipTokenizer::encode(std::string_view text) const {
  std::vector<std::int64_t> ids = {impl_->bos};
  impl_->encode(valid_utf8(text), ids);
  ids.push_back(impl_->eos);
  return ids;
}

Tokenized ClipTokenizer::tokenize(const std::vector<std::string>& prompts,
                                  std::int64_t max_length) const {
  const RowRule rule{.end = {impl_->eos},
                     .pad = impl_->pad,
                     .least = 2,
                     .encode = [this](std::string_view text) { return encode(text); },
                     .spell = [this](const auto& ids) { return decode(ids); }};
  return make_rows(rule, prompts, max_length);
}

std::string ClipTokenizer::decode(const std::vector<std::int64_t>& ids) const {
  std::string bytes;
  for (const std::int64_t id : ids) {
    if (id < 0 || id >= vocab_size()) {
      throw std::invalid_argument("[decode] id " + std::to_string(id) + " is not one of " +
                                  std::to_string(vocab_size()) + " tokens");
    }
    const std::string added = impl_->added.content(id);
    bytes += added.empty() ? impl_->bpe->text(id) : added + " ";
  }
  const std::string text = valid_utf8(bytes);
  return std::string(strip(text));
}

std::int64_t ClipTokenizer::vocab_size() const {
  return std::max(own_vocab_size(), impl_->added.end());
}

std::int64_t ClipTokenizer::own_vocab_size() const {
  return impl_->bpe->size();
}

const AddedVocabulary& ClipTokenizer::added() const {
  return impl_->added;
}

std::int64_t ClipTokenizer::bos_id() const {
  return impl_->bos;
}

std::int64_t ClipTokenizer::eos_id() const {
  return impl_->eos;
}

std::int64_t ClipTokenizer::pad_id() const {
  return impl_->pad;
}

std::int64_t ClipTokenizer::model_max_length() const {
  return impl_->model_max_length;
}

const std::filesystem::path& ClipTokenizer::source() const {
  return impl_->source;
}

}  // namespace troupe::models
