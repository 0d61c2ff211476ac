#include "models/text/clip_tokenizer.h"

#include <algorithm>
#include <array>
#include <optional>
#include <queue>
#include <stdexcept>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "models/spec/config.h"
#include "models/spec/json_text.h"
#include "models/text/pattern.h"
#include "models/text/special_tokens.h"
#include "models/text/unicode.h"

namespace troupe::models {

/// Byte-pair encoding over the bytes of words, as GPT-2 and CLIP use it: a byte is spelled by a
/// letter of its own, the last letter of a word bears "</w>", and the pair whose merge was learned
/// first is merged first. Immutable, usable from several threads.
class ByteBpe {
 public:
  using Vocabulary = std::unordered_map<std::string, std::int64_t>;
  using Merges = std::vector<std::pair<std::string, std::string>>;

  /// `unk` is the id of letters that the vocabulary lacks. Throws std::invalid_argument naming the
  /// merge whose parts or whole the vocabulary lacks.
  ByteBpe(Vocabulary vocabulary, const Merges& merges, std::int64_t unk);

  /// Appends the ids of one word, in n log n of its bytes.
  void encode(std::string_view word, std::vector<std::int64_t>& ids) const;

  /// -1 if there is no such token.
  std::int64_t id(const std::string& token) const;
  /// The bytes that a token spells, a space for the end of a word; empty if there is no such id.
  std::string text(std::int64_t id) const;
  /// One more than the largest id.
  std::int64_t size() const { return static_cast<std::int64_t>(tokens_.size()); }

 private:
  struct Merge {
    std::int64_t rank;
    std::int64_t whole;
  };
  struct PairHash {
    std::size_t operator()(const std::pair<std::int64_t, std::int64_t>& pair) const {
      return std::hash<std::int64_t>()(pair.first * 0x9E3779B97F4A7C15LL + pair.second);
    }
  };

  Vocabulary vocabulary_;
  std::vector<std::string> tokens_;
  std::unordered_map<std::pair<std::int64_t, std::int64_t>, Merge, PairHash> merges_;
  std::int64_t byte_ids_[256];
  std::int64_t last_byte_ids_[256];
};

namespace {

/// The end of a word in tokens' spelling.
constexpr std::string_view kEndOfWord = "</w>";

/// Contents of a CLIP tokenizer's folder.
struct ClipVocabulary {
  ByteBpe::Vocabulary vocabulary;
  ByteBpe::Merges merges;
  FolderTokens tokens{{{"bos_token", "<|startoftext|>"},
                       {"eos_token", "<|endoftext|>"},
                       {"unk_token", "<|endoftext|>"},
                       {"pad_token", "<|endoftext|>"}}};
  /// Number of tokens that the model was trained for; 0 if the folder names none.
  std::int64_t model_max_length = 0;
  /// The file that the vocabulary came from.
  std::filesystem::path source;
};

/// Returns the characters that stand for bytes: printable bytes stand for themselves, the others
/// for the code points from 256 on, in order.
const std::array<char32_t, 256>& letters() {
  static const auto made = [] {
    std::array<char32_t, 256> table{};
    char32_t next = 256;
    for (char32_t byte = 0; byte < 256; ++byte) {
      const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
      table[byte] = printable ? byte : next++;
    }
    return table;
  }();
  return made;
}

std::string letter(int byte) {
  std::string text;
  append_utf8(text, letters()[static_cast<std::size_t>(byte)]);
  return text;
}

constexpr std::size_t kNone = static_cast<std::size_t>(-1);

struct Symbol {
  std::int64_t id;
  std::size_t before, after;
  bool merged = false;
};

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::uint64_t kMaxVocabularyBytes = 64U << 20U;
constexpr std::int64_t kMaxId = 1 << 24;
constexpr std::string_view kWords =
    "<\\|startoftext\\|>|<\\|endoftext\\|>|'s|'t|'re|'ve|'m|'ll|'d|[\\p{L}]+|[\\p{N}]|"
    "[^\\s\\p{L}\\p{N}]+";

[[noreturn]] void refuse_clip(const fs::path& file, const std::string& why) {
  throw std::runtime_error("[load_tokenizer] " + file.string() + ": " + why);
}

void read_vocabulary(const fs::path& file, const Json& tokens, ClipVocabulary& into) {
  if (!tokens.is_object() || tokens.empty()) refuse_clip(file, "has no vocabulary");
  std::vector<bool> taken;
  for (const auto& [token, id] : tokens.items()) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() > kMaxId) {
      refuse_clip(file, "token \"" + token + "\" has no id from 0 to " + std::to_string(kMaxId));
    }
    const auto value = id.get<std::size_t>();
    if (value >= taken.size()) taken.resize(value + 1);
    if (taken[value]) refuse_clip(file, "id " + std::to_string(value) + " is given twice");
    taken[value] = true;
    into.vocabulary.emplace(token, static_cast<std::int64_t>(value));
  }
}

void add_merge(const fs::path& file, std::string_view line, ClipVocabulary& into) {
  const auto space = line.find(' ');
  if (space == std::string_view::npos || space == 0 || space + 1 == line.size() ||
      line.find(' ', space + 1) != std::string_view::npos) {
    refuse_clip(file, "merge " + std::to_string(into.merges.size()) + " is not a pair of tokens");
  }
  into.merges.emplace_back(line.substr(0, space), line.substr(space + 1));
}

void read_merges(const fs::path& file, ClipVocabulary& into) {
  const std::string text = spec::read_text_file(file, kMaxVocabularyBytes);
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = std::min(text.find('\n', at), text.size());
    std::string_view line = std::string_view(text).substr(at, end - at);
    if (line.ends_with('\r')) line.remove_suffix(1);
    const bool head = at == 0 && line.starts_with("#version");
    if (!head && !line.empty()) add_merge(file, line, into);
    at = end + 1;
  }
}

/// A `tokenizer.json` in the one form that CLIP's has.
class TokenizerFile {
 public:
  explicit TokenizerFile(const fs::path& file) : file_(file) {
    root_ = spec::parse_json(spec::read_text_file(file, kMaxVocabularyBytes), file,
                             kMaxVocabularyValues);
    if (!root_.is_object()) refuse_clip(file, "is not a JSON object");
  }

  void read(ClipVocabulary& into) const {
    check_steps("normalizer", "normalizers", {"NFC", "Replace", "Lowercase"});
    check_steps("pre_tokenizer", "pretokenizers", {"Split", "ByteLevel"});
    const Json& model = member(root_, "model");
    only(model, "type", "BPE");
    only(model, "end_of_word_suffix", std::string(kEndOfWord));
    for (const char* key : {"dropout", "byte_fallback", "ignore_merges", "fuse_unk"}) {
      if (const Json& value = member(model, key); !value.is_null() && value != false) {
        refuse_clip(file_, std::string("model key \"") + key + "\" = " + value.dump() +
                               " is not supported");
      }
    }
    if (const Json& prefix = member(model, "continuing_subword_prefix");
        !prefix.is_null() && prefix != "") {
      refuse_clip(file_, "model key \"continuing_subword_prefix\" = " + prefix.dump() +
                             " is not supported");
    }
    read_vocabulary(file_, member(model, "vocab"), into);
    const Json& merges = member(model, "merges");
    if (!merges.is_array()) refuse_clip(file_, "model has no list of merges");
    for (const Json& merge : merges) {
      if (merge.is_string()) {
        add_merge(file_, merge.get_ref<const std::string&>(), into);
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
                 merge[1].is_string()) {
        into.merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
      } else {
        refuse_clip(file_,
                    "merge " + std::to_string(into.merges.size()) + " is not a pair of tokens");
      }
    }
  }

  const Json& added_tokens() const { return member(root_, "added_tokens"); }

 private:
  static const Json& member(const Json& object, const char* key) {
    static const Json kNull;
    if (!object.is_object()) return kNull;
    const auto it = object.find(key);
    return it == object.end() ? kNull : *it;
  }
  void only(const Json& object, const char* key, const std::string& value) const {
    const Json& found = member(object, key);
    if (found != value) {
      refuse_clip(file_, "model key \"" + std::string(key) + "\" = " + found.dump() +
                             " is not supported (CLIP has \"" + value + "\")");
    }
  }
  void check_steps(const char* key, const char* list_key,
                   const std::vector<std::string>& types) const {
    const Json& steps = member(member(root_, key), list_key);
    const auto refuse = [&](const std::string& what) {
      refuse_clip(file_, std::string(key) + " " + what + " is not supported");
    };
    if (!steps.is_array() || steps.size() != types.size()) {
      refuse(member(root_, key).dump().substr(0, 200));
    }
    for (std::size_t i = 0; i < types.size(); ++i) {
      const Json& type = member(steps[i], "type");
      if (type != types[i]) refuse(type.dump());
      const Json& regex = member(member(steps[i], "pattern"), "Regex");
      if (types[i] == "Replace" && (regex != "\\s+" || member(steps[i], "content") != " ")) {
        refuse(steps[i].dump());
      }
      if (types[i] == "Split" && (regex != kWords || member(steps[i], "invert") != true)) {
        refuse(steps[i].dump());
      }
      if (types[i] == "ByteLevel" && member(steps[i], "add_prefix_space") != false) {
        refuse(steps[i].dump());
      }
    }
  }

  fs::path file_;
  Json root_;
};

void accept_harmless(const spec::ConfigReader& config) {
  config.only("do_lower_case", true);
  config.only("add_prefix_space", false);
  accept_common_settings(config);
  config.harmless({"tokenizer_class", "errors"});
  config.finish();
}

/// Reads `tokenizer.json` where it is there, else `vocab.json` and `merges.txt`; settings from
/// `tokenizer_config.json`, `special_tokens_map.json` and `added_tokens.json`, where there are any.
/// Throws std::runtime_error naming file, key and value for a file that is missing or damaged and
/// for a form that CLIP does not use.
ClipVocabulary read_clip_vocabulary(const fs::path& folder) {
  ClipVocabulary result;
  const auto there = [&](const char* name) { return spec::is_file(folder / name); };
  std::optional<TokenizerFile> json;
  if (there("tokenizer.json")) {
    result.source = folder / "tokenizer.json";
    json.emplace(result.source);
    json->read(result);
  } else if (there("vocab.json") && there("merges.txt")) {
    result.source = folder / "vocab.json";
    read_vocabulary(result.source,
                    spec::parse_json(spec::read_text_file(result.source, kMaxVocabularyBytes),
                                     result.source, kMaxVocabularyValues),
                    result);
    read_merges(folder / "merges.txt", result);
  } else {
    refuse_clip(folder, "has neither tokenizer.json nor vocab.json and merges.txt");
  }
  if (there("tokenizer_config.json")) {
    const auto config = spec::ConfigReader::read(folder / "tokenizer_config.json");
    config.choice_or("tokenizer_class", "CLIPTokenizer", {"CLIPTokenizer", "CLIPTokenizerFast"});
    result.tokens.read_config(config);
    if (config.has_value("model_max_length")) {
      // For no limit, transformers writes 1e30.
      const double length = config.number("model_max_length");
      if (length >= 1 && length <= kMaxId)
        result.model_max_length = static_cast<std::int64_t>(length);
    }
    accept_harmless(config);
  }
  result.tokens.read_folder(folder, result.source, json ? json->added_tokens() : Json());
  if (const auto unk = result.tokens.named("unk_token"); !result.vocabulary.contains(unk))
    refuse_clip(result.source, "has no token \"" + unk + "\"");
  return result;
}

/// Unicode's White_Space, inside brackets.
constexpr std::string_view kWhiteSpace =
    "\\x{09}-\\x{0d}\\x{20}\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}"
    "\\x{205f}\\x{3000}";

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
  return lower_case_by_letter(single_spaces(nfc(text)));
}

}  // namespace

ByteBpe::ByteBpe(Vocabulary vocabulary, const Merges& merges, std::int64_t unk)
    : vocabulary_(std::move(vocabulary)) {
  std::int64_t largest = -1;
  for (const auto& [token, id] : vocabulary_)
    largest = std::max(largest, id);
  tokens_.resize(static_cast<std::size_t>(largest + 1));
  for (const auto& [token, id] : vocabulary_)
    tokens_[static_cast<std::size_t>(id)] = token;
  const auto id_or_unk = [&](const std::string& token) {
    const std::int64_t found = id(token);
    return found < 0 ? unk : found;
  };
  for (int byte = 0; byte < 256; ++byte) {
    byte_ids_[byte] = id_or_unk(letter(byte));
    last_byte_ids_[byte] = id_or_unk(letter(byte) + std::string(kEndOfWord));
  }
  std::int64_t rank = 0;
  for (const auto& [first, second] : merges) {
    const std::int64_t a = id(first);
    const std::int64_t b = id(second);
    const std::int64_t whole = id(first + second);
    if (a < 0 || b < 0 || whole < 0) {
      throw std::invalid_argument("merge " + std::to_string(rank) + ", \"" + first + " " + second +
                                  "\", is not in the vocabulary");
    }
    merges_.insert_or_assign({a, b}, Merge{rank++, whole});
  }
}

void ByteBpe::encode(std::string_view word, std::vector<std::int64_t>& ids) const {
  if (word.empty()) return;
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  for (std::size_t i = 0; i < word.size(); ++i) {
    const auto byte = static_cast<unsigned char>(word[i]);
    const bool last = i + 1 == word.size();
    symbols.push_back({last ? last_byte_ids_[byte] : byte_ids_[byte], i == 0 ? kNone : i - 1,
                       last ? kNone : i + 1});
  }
  // Rank, position and whole: equal ranks merge from the left.
  using Candidate = std::tuple<std::int64_t, std::size_t, std::int64_t>;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto find = [&](std::size_t at) {
    const std::size_t next = symbols[at].after;
    const auto found =
        next == kNone ? merges_.end() : merges_.find({symbols[at].id, symbols[next].id});
    return found == merges_.end() ? nullptr : &found->second;
  };
  const auto propose = [&](std::size_t at) {
    if (const Merge* merge = find(at)) queue.emplace(merge->rank, at, merge->whole);
  };
  for (std::size_t i = 0; i < symbols.size(); ++i)
    propose(i);
  while (!queue.empty()) {
    const auto [rank, at, whole] = queue.top();
    queue.pop();
    if (symbols[at].merged) continue;
    const Merge* merge = find(at);
    if (merge == nullptr || merge->rank != rank) continue;
    Symbol& gone = symbols[symbols[at].after];
    gone.merged = true;
    symbols[at].id = whole;
    symbols[at].after = gone.after;
    if (gone.after != kNone) symbols[gone.after].before = at;
    if (symbols[at].before != kNone) propose(symbols[at].before);
    propose(at);
  }
  for (std::size_t at = 0; at != kNone; at = symbols[at].after)
    ids.push_back(symbols[at].id);
}

std::int64_t ByteBpe::id(const std::string& token) const {
  const auto found = vocabulary_.find(token);
  return found == vocabulary_.end() ? -1 : found->second;
}

std::string ByteBpe::text(std::int64_t id) const {
  if (id < 0 || id >= size()) return {};
  static const auto bytes = [] {
    std::unordered_map<char32_t, char> made;
    for (int byte = 0; byte < 256; ++byte)
      made[letters()[static_cast<std::size_t>(byte)]] = static_cast<char>(byte);
    return made;
  }();
  std::string_view token = tokens_[static_cast<std::size_t>(id)];
  const bool end = token.ends_with(kEndOfWord);
  if (end) token.remove_suffix(kEndOfWord.size());
  std::string out;
  for (std::size_t at = 0; at < token.size();) {
    const CodePoint point = code_point_at(token, at);
    const auto found = bytes.find(point.value);
    if (found != bytes.end()) {
      out += found->second;
    } else {
      append_utf8(out, point.value);
    }
    at += point.bytes;
  }
  if (end) out += ' ';
  return out;
}

struct ClipTokenizer::Impl {
  explicit Impl(const ClipVocabulary& from)
      : bpe(std::make_shared<const ByteBpe>(from.vocabulary, from.merges,
                                            from.vocabulary.at(from.tokens.named("unk_token")))),
        size(std::ssize(from.vocabulary)),
        tokens(from.tokens.in_order()),
        source(from.source),
        model_max_length(from.model_max_length),
        added(added_of(tokens)),
        bos(added.need(from.tokens.named("bos_token"))),
        eos(added.need(from.tokens.named("eos_token"))),
        pad(added.need(from.tokens.named("pad_token"))) {}

  AddedVocabulary added_of(const std::vector<AddedToken>& of) const {
    return {of,
            {.size = size,
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
  std::int64_t size;  // of the vocabulary
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
    throw std::runtime_error("[load_tokenizer] " + vocabulary.source.string() + ": " +
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
  const RowRule rule{.eos = impl_->eos,
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
