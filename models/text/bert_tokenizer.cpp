#include "models/text/bert_tokenizer.h"

#include <algorithm>
#include <stdexcept>

#include "models/text/bert_vocabulary.h"
#include "models/text/pattern.h"
#include "models/text/unicode.h"

namespace troupe::models {
namespace {

/// A longer word is unknown as a whole.
constexpr std::size_t kLongestWord = 100;

bool is_chinese(char32_t c) {
  return (0x4E00 <= c && c <= 0x9FFF) || (0x3400 <= c && c <= 0x4DBF) ||
         (0x20000 <= c && c <= 0x2A6DF) || (0x2A700 <= c && c <= 0x2B73F) ||
         (0x2B740 <= c && c <= 0x2B81F) || (0x2B920 <= c && c <= 0x2CEAF) ||
         (0xF900 <= c && c <= 0xFAFF) || (0x2F800 <= c && c <= 0x2FA1F);
}

/// Control characters go, white space becomes a space.
std::string cleaned(std::string_view text) {
  static const Pattern controls("[\\x{0}\\x{FFFD}]|(?![\\t\\n\\r])\\p{C}");
  static const Pattern spaces("[\\t\\n\\r\\p{Z}\\x{85}]", " ");
  return spaces.replace_all(controls.replace_all(std::string(text)));
}

std::string with_chinese_apart(const std::string& text) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    const bool apart = is_chinese(point.value);
    if (apart) out += ' ';
    append_utf8(out, point.value);
    if (apart) out += ' ';
    at += point.bytes;
  }
  return out;
}

std::string without_accents(const std::string& text) {
  static const Pattern accents("\\p{Mn}");
  return accents.replace_all(nfd(text));
}

}  // namespace

std::int64_t BertTokenizer::need(const std::string& piece,
                                 const std::filesystem::path& file) const {
  const auto found = ids_.find(piece);
  if (found == ids_.end())
    throw std::runtime_error("[bert_tokenizer] " + file.string() + ": the vocabulary has no " +
                             piece);
  return found->second;
}

BertTokenizer BertTokenizer::load(const std::filesystem::path& folder) {
  BertVocabulary from = read_bert_vocabulary(folder);
  BertTokenizer made;
  made.pieces_ = std::move(from.pieces);
  for (std::size_t id = 0; id < made.pieces_.size(); ++id)
    made.ids_[made.pieces_[id]] = static_cast<std::int64_t>(id);
  made.begin_ = made.need(from.begin, from.source);
  made.end_ = made.need(from.end, from.source);
  made.pad_ = made.need(from.pad, from.source);
  made.unknown_ = made.need(from.unknown, from.source);
  made.lower_case_ = from.lower_case;
  made.strip_accents_ = from.strip_accents;
  made.chinese_apart_ = from.chinese_apart;
  made.special_ = std::move(from.added);
  for (const auto& token : {from.begin, from.end, from.pad, from.unknown})
    made.special_.push_back(token);
  if (made.ids_.contains(from.mask)) made.special_.push_back(from.mask);
  std::ranges::stable_sort(made.special_, std::ranges::greater{}, &std::string::size);
  return made;
}

std::vector<std::string> BertTokenizer::words(std::string_view text) const {
  static const Pattern parts(
      "[\\x{21}-\\x{2F}\\x{3A}-\\x{40}\\x{5B}-\\x{60}\\x{7B}-\\x{7E}]|\\p{P}|"
      "[^ \\x{21}-\\x{2F}\\x{3A}-\\x{40}\\x{5B}-\\x{60}\\x{7B}-\\x{7E}\\p{P}"
      "\\p{Z}]+");
  std::string normal = cleaned(text);
  if (chinese_apart_) normal = with_chinese_apart(normal);
  if (strip_accents_) normal = without_accents(normal);
  if (lower_case_) normal = lower_case_by_letter(normal);
  std::vector<std::string> found;
  for (const auto word : parts.find_all(normal))
    found.emplace_back(word);
  return found;
}

void BertTokenizer::add_pieces(const std::string& word, std::vector<std::int64_t>& ids) const {
  std::vector<std::size_t> ends;  // of each character
  for (std::size_t at = 0; at < word.size();) {
    at += code_point_at(word, at).bytes;
    ends.push_back(at);
  }
  if (ends.size() > kLongestWord) {
    ids.push_back(unknown_);
    return;
  }
  std::vector<std::int64_t> own;
  std::size_t begin = 0;
  while (begin < word.size()) {
    auto end = ends.rbegin();
    auto found = ids_.end();
    for (; end != ends.rend() && *end > begin; ++end) {
      found = ids_.find((begin > 0 ? "##" : "") + word.substr(begin, *end - begin));
      if (found != ids_.end()) break;
    }
    if (found == ids_.end()) {
      ids.push_back(unknown_);
      return;
    }
    own.push_back(found->second);
    begin = *end;
  }
  ids.insert(ids.end(), own.begin(), own.end());
}

std::vector<std::int64_t> BertTokenizer::encode(std::string_view raw_text) const {
  std::vector<std::int64_t> ids{begin_};
  const std::string valid = valid_utf8(raw_text);
  const std::string_view text = valid;
  std::size_t begin = 0;
  const auto add_words = [&](std::size_t end) {
    for (const auto& word : words(text.substr(begin, end - begin)))
      add_pieces(word, ids);
  };
  for (std::size_t at = 0; at < text.size();) {
    const auto rest = text.substr(at);
    const auto found = std::ranges::find_if(
        special_, [&](const std::string& token) { return rest.starts_with(token); });
    if (found == special_.end()) {
      at += code_point_at(text, at).bytes;
      continue;
    }
    add_words(at);
    ids.push_back(ids_.at(*found));
    begin = at += found->size();
  }
  add_words(text.size());
  ids.push_back(end_);
  return ids;
}

std::string BertTokenizer::text_of(const std::vector<std::int64_t>& ids) const {
  std::string text;
  for (const auto id : ids) {
    const std::string& piece = pieces_.at(static_cast<std::size_t>(id));
    if (piece.starts_with("##")) {
      text += piece.substr(2);
    } else {
      text += (text.empty() ? "" : " ") + piece;
    }
  }
  return text;
}

Tokenized BertTokenizer::tokenize(const std::vector<std::string>& prompts,
                                  std::int64_t max_length) const {
  if (max_length < 2)
    throw std::invalid_argument("[bert_tokenizer] max_length = " + std::to_string(max_length) +
                                ", at least 2 is needed");
  const RowRule rule{.eos = end_,
                     .pad = pad_,
                     .least = 2,
                     .encode = [this](std::string_view text) { return encode(text); },
                     .spell = [this](const auto& ids) { return text_of(ids); }};
  return make_rows(rule, prompts, max_length);
}

}  // namespace troupe::models
