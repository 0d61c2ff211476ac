#include "models/text/bert_tokenizer.h"

#include <algorithm>
#include <stdexcept>
#include <unordered_map>

#include "models/text/added_vocabulary.h"
#include "models/text/bert_vocabulary.h"
#include "models/text/pattern.h"
#include "models/text/unicode.h"

namespace troupe::models {
namespace {

/// Most letters of a word; a longer word is unknown as a whole.
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

struct BertTokenizer::Impl {
  explicit Impl(BertVocabulary from);

  std::string prepared(std::string_view text) const;
  void add_pieces(std::string_view word, std::vector<std::int64_t>& ids) const;
  std::vector<std::int64_t> encode(std::string_view text) const;
  std::string text_of(const std::vector<std::int64_t>& ids) const;
  std::int64_t own_id(const std::string& piece) const {
    const auto found = ids.find(piece);
    return found == ids.end() ? -1 : found->second;
  }

  std::vector<std::string> pieces;
  std::unordered_map<std::string, std::int64_t> ids;
  bool lower_case, strip_accents, chinese_apart;
  AddedVocabulary added;
  std::int64_t begin, end, pad, unknown;
};

BertTokenizer::Impl::Impl(BertVocabulary from)
    : pieces(std::move(from.pieces)),
      lower_case(from.lower_case),
      strip_accents(from.strip_accents),
      chinese_apart(from.chinese_apart) {
  for (std::size_t id = 0; id < pieces.size(); ++id)
    ids[pieces[id]] = static_cast<std::int64_t>(id);
  added = AddedVocabulary(from.tokens.in_order(),
                          {.size = static_cast<std::int64_t>(ids.size()),
                           .id = [this](const std::string& piece) { return own_id(piece); },
                           .normalize = [this](std::string_view text) { return prepared(text); }},
                          from.source.parent_path());
  begin = added.need(from.tokens.named("cls_token"));
  end = added.need(from.tokens.named("sep_token"));
  pad = added.need(from.tokens.named("pad_token"));
  unknown = added.need(from.tokens.named("unk_token"));
}

BertTokenizer::BertTokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

BertTokenizer BertTokenizer::load(const std::filesystem::path& folder) {
  return BertTokenizer(std::make_shared<Impl>(read_bert_vocabulary(folder)));
}

/// The text, cleaned, in lower case and without accents as far as the folder says so.
std::string BertTokenizer::Impl::prepared(std::string_view text) const {
  std::string normal = cleaned(text);
  if (chinese_apart) normal = with_chinese_apart(normal);
  if (strip_accents) normal = without_accents(normal);
  if (lower_case) normal = lower_case_by_letter(normal);
  return normal;
}

void BertTokenizer::Impl::add_pieces(std::string_view word, std::vector<std::int64_t>& into) const {
  std::vector<std::size_t> ends;  // of each character
  for (std::size_t at = 0; at < word.size();) {
    at += code_point_at(word, at).bytes;
    ends.push_back(at);
  }
  if (ends.size() > kLongestWord) {
    into.push_back(unknown);
    return;
  }
  std::vector<std::int64_t> own;
  std::size_t from = 0;
  while (from < word.size()) {
    auto last = ends.rbegin();
    std::int64_t found = -1;
    for (; last != ends.rend() && *last > from; ++last) {
      found = own_id((from > 0 ? "##" : "") + std::string(word.substr(from, *last - from)));
      if (found >= 0) break;
    }
    if (found < 0) {
      into.push_back(unknown);
      return;
    }
    own.push_back(found);
    from = *last;
  }
  into.insert(into.end(), own.begin(), own.end());
}

std::vector<std::int64_t> BertTokenizer::Impl::encode(std::string_view text) const {
  static const Pattern parts(
      "[\\x{21}-\\x{2F}\\x{3A}-\\x{40}\\x{5B}-\\x{60}\\x{7B}-\\x{7E}]|\\p{P}|"
      "[^ \\x{21}-\\x{2F}\\x{3A}-\\x{40}\\x{5B}-\\x{60}\\x{7B}-\\x{7E}\\p{P}"
      "\\p{Z}]+");
  std::vector<std::int64_t> made{begin};
  added.split(
      valid_utf8(text),
      [&](std::string_view some) {
        for (const auto word : parts.find_all(some))
          add_pieces(word, made);
      },
      [&](std::int64_t id) { made.push_back(id); });
  made.push_back(end);
  return made;
}

std::string BertTokenizer::Impl::text_of(const std::vector<std::int64_t>& of) const {
  std::string text;
  for (const auto id : of) {
    const std::string beyond = added.content(id);
    const std::string& piece = beyond.empty() ? pieces.at(static_cast<std::size_t>(id)) : beyond;
    if (piece.starts_with("##")) {
      text += piece.substr(2);
    } else {
      text += (text.empty() ? "" : " ") + piece;
    }
  }
  return text;
}

std::vector<std::int64_t> BertTokenizer::encode(std::string_view text) const {
  return impl_->encode(text);
}

Tokenized BertTokenizer::tokenize(const std::vector<std::string>& prompts,
                                  std::int64_t max_length) const {
  if (max_length < 2)
    throw std::invalid_argument("[bert_tokenizer] max_length = " + std::to_string(max_length) +
                                ", at least 2 is needed");
  const RowRule rule{.eos = impl_->end,
                     .pad = impl_->pad,
                     .least = 2,
                     .encode = [this](std::string_view text) { return encode(text); },
                     .spell = [this](const auto& ids) { return impl_->text_of(ids); }};
  return make_rows(rule, prompts, max_length);
}

std::int64_t BertTokenizer::vocab_size() const {
  return std::max(own_vocab_size(), impl_->added.end());
}

std::int64_t BertTokenizer::own_vocab_size() const {
  return std::ssize(impl_->pieces);
}

const AddedVocabulary& BertTokenizer::added() const {
  return impl_->added;
}

}  // namespace troupe::models
