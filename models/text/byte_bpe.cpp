#include "models/text/byte_bpe.h"

#include <algorithm>
#include <array>
#include <functional>
#include <queue>
#include <stdexcept>
#include <tuple>

#include "models/spec/json_text.h"
#include "models/text/special_tokens.h"
#include "models/text/unicode.h"

namespace troupe::models {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr std::uint64_t kMaxVocabularyBytes = 64U << 20U;

[[noreturn]] void refuse_bpe(const fs::path& file, const std::string& why) {
  throw std::runtime_error("[load_tokenizer] " + file.string() + ": " + why);
}

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

void read_vocabulary(const fs::path& file, const Json& tokens, BpeFiles& into) {
  if (!tokens.is_object() || tokens.empty()) refuse_bpe(file, "has no vocabulary");
  std::vector<bool> taken;
  for (const auto& [token, id] : tokens.items()) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() > kMaxTokenId) {
      refuse_bpe(file,
                 "token \"" + token + "\" has no id from 0 to " + std::to_string(kMaxTokenId));
    }
    const auto value = id.get<std::size_t>();
    if (value >= taken.size()) taken.resize(value + 1);
    if (taken[value]) refuse_bpe(file, "id " + std::to_string(value) + " is given twice");
    taken[value] = true;
    into.vocabulary.emplace(token, static_cast<std::int64_t>(value));
  }
}

void add_merge(const fs::path& file, std::string_view line, BpeFiles& into) {
  const auto space = line.find(' ');
  if (space == std::string_view::npos || space == 0 || space + 1 == line.size() ||
      line.find(' ', space + 1) != std::string_view::npos) {
    refuse_bpe(file, "merge " + std::to_string(into.merges.size()) + " is not a pair of tokens");
  }
  into.merges.emplace_back(line.substr(0, space), line.substr(space + 1));
}

void read_merges(const fs::path& file, BpeFiles& into) {
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

/// A `tokenizer.json` in the one form that a class has.
class TokenizerFile {
 public:
  TokenizerFile(const fs::path& file, const BpeForm& form) : file_(file), form_(form) {
    root_ = spec::parse_json(spec::read_text_file(file, kMaxVocabularyBytes), file,
                             kMaxVocabularyValues);
    if (!root_.is_object()) refuse_bpe(file, "is not a JSON object");
  }

  void read(BpeFiles& into) const {
    check_steps("normalizer", "normalizers", form_.normalizers);
    check_steps("pre_tokenizer", "pretokenizers", {"Split", "ByteLevel"});
    const Json& model = member(root_, "model");
    only(model, "type", "BPE");
    only(model, "end_of_word_suffix", form_.end_of_word);
    for (const char* key : {"dropout", "byte_fallback", "ignore_merges", "fuse_unk"}) {
      if (const Json& value = member(model, key); !value.is_null() && value != false) {
        refuse_bpe(file_, std::string("model key \"") + key + "\" = " + value.dump() +
                              " is not supported");
      }
    }
    if (const Json& prefix = member(model, "continuing_subword_prefix");
        !prefix.is_null() && prefix != "") {
      refuse_bpe(file_, "model key \"continuing_subword_prefix\" = " + prefix.dump() +
                            " is not supported");
    }
    read_vocabulary(file_, member(model, "vocab"), into);
    const Json& merges = member(model, "merges");
    if (!merges.is_array()) refuse_bpe(file_, "model has no list of merges");
    for (const Json& merge : merges) {
      if (merge.is_string()) {
        add_merge(file_, merge.get_ref<const std::string&>(), into);
      } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() &&
                 merge[1].is_string()) {
        into.merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
      } else {
        refuse_bpe(file_,
                   "merge " + std::to_string(into.merges.size()) + " is not a pair of tokens");
      }
    }
    into.added_tokens = member(root_, "added_tokens");
    check_processor();
  }

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
      refuse_bpe(file_, "model key \"" + std::string(key) + "\" = " + found.dump() +
                            " is not supported (" + form_.name + " has \"" + value + "\")");
    }
  }
  void check_steps(const char* key, const char* list_key,
                   const std::vector<std::string>& types) const {
    const Json& whole = member(root_, key);
    const Json alone = Json::array({whole});
    const Json& steps = types.size() == 1 ? alone : member(whole, list_key);
    const auto refuse = [&](const std::string& what) {
      refuse_bpe(file_, std::string(key) + " " + what + " is not supported");
    };
    if (!steps.is_array() || steps.size() != types.size()) {
      refuse(whole.dump().substr(0, 200));
    }
    for (std::size_t i = 0; i < types.size(); ++i) {
      const Json& type = member(steps[i], "type");
      if (type != types[i]) refuse(type.dump());
      const Json& regex = member(member(steps[i], "pattern"), "Regex");
      if (types[i] == "Replace" && (regex != "\\s+" || member(steps[i], "content") != " ")) {
        refuse(steps[i].dump());
      }
      if (types[i] == "Split" &&
          (regex != form_.words || member(steps[i], "invert") != form_.split_inverted)) {
        refuse(steps[i].dump());
      }
      const bool again = member(steps[i], "use_regex") != false;
      if (types[i] == "ByteLevel" &&
          (member(steps[i], "add_prefix_space") != false || again != form_.splits_again)) {
        refuse(steps[i].dump());
      }
    }
  }

  /// Refuses what would put tokens around a text beside those that the class itself puts there.
  void check_processor() const {
    const Json& step = member(root_, "post_processor");
    const Json& type = member(step, "type");
    const bool adds = type == "TemplateProcessing" && !member(step, "special_tokens").empty();
    if (form_.adds_nothing && !step.is_null() &&
        (adds || (type != "ByteLevel" && type != "TemplateProcessing")))
      refuse_bpe(file_, "post_processor " + step.dump().substr(0, 200) + " is not supported");
  }

  fs::path file_;
  const BpeForm& form_;
  Json root_;
};

}  // namespace

BpeFiles read_bpe_files(const fs::path& folder, const BpeForm& form) {
  BpeFiles files;
  const auto there = [&](const char* name) { return spec::is_file(folder / name); };
  if (there("tokenizer.json")) {
    files.source = folder / "tokenizer.json";
    TokenizerFile(files.source, form).read(files);
  } else if (there("vocab.json") && there("merges.txt")) {
    files.source = folder / "vocab.json";
    read_vocabulary(files.source,
                    spec::parse_json(spec::read_text_file(files.source, kMaxVocabularyBytes),
                                     files.source, kMaxVocabularyValues),
                    files);
    read_merges(folder / "merges.txt", files);
  } else {
    refuse_bpe(folder, "has neither tokenizer.json nor vocab.json and merges.txt");
  }
  return files;
}

ByteBpe::ByteBpe(Vocabulary vocabulary, const Merges& merges, std::string_view end_of_word,
                 std::optional<std::int64_t> unk)
    : vocabulary_(std::move(vocabulary)), end_of_word_(end_of_word) {
  std::int64_t largest = -1;
  for (const auto& [token, id] : vocabulary_)
    largest = std::max(largest, id);
  tokens_.resize(static_cast<std::size_t>(largest + 1));
  for (const auto& [token, id] : vocabulary_)
    tokens_[static_cast<std::size_t>(id)] = token;
  const auto id_or_unk = [&](const std::string& token) {
    const std::int64_t found = id(token);
    if (found < 0 && !unk)
      throw std::invalid_argument("letter \"" + token + "\" is not in the vocabulary");
    return found < 0 ? *unk : found;
  };
  for (int byte = 0; byte < 256; ++byte) {
    byte_ids_[byte] = id_or_unk(letter(byte));
    last_byte_ids_[byte] = id_or_unk(letter(byte) + end_of_word_);
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
  const bool end = !end_of_word_.empty() && token.ends_with(end_of_word_);
  if (end) token.remove_suffix(end_of_word_.size());
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

}  // namespace troupe::models
