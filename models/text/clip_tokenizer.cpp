#include "models/text/clip_tokenizer.h"

#include <algorithm>
#include <functional>
#include <stdexcept>

#include "models/text/clip_vocabulary.h"
#include "models/text/pattern.h"
#include "models/text/unicode.h"

namespace troupe::models {
namespace {

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

/// What the byte-level step splits once more: it differs for the spelling of begin and end tokens.
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

/// A special token, found in the text.
struct ClipMarker {
  std::string content;
  std::int64_t id = 0;
  bool lstrip = false;
  bool rstrip = false;
};

namespace {

/// Calls `text` for what lies between markers and `marker` for each of them, from left to right;
/// of several that match at a place, the first of the list.
void cut_out(std::string_view all, const std::vector<ClipMarker>& markers,
             const std::function<void(std::string_view)>& text,
             const std::function<void(std::int64_t)>& marker) {
  std::size_t begin = 0;
  std::size_t space = 0;  // where the white space that ends at `at` begins
  for (std::size_t at = 0; at < all.size();) {
    const auto rest = all.substr(at);
    const auto found = std::ranges::find_if(
        markers, [&](const ClipMarker& m) { return rest.starts_with(m.content); });
    if (found == markers.end()) {
      const CodePoint point = code_point_at(all, at);
      at += point.bytes;
      if (!is_white_space(point.value)) space = at;
      continue;
    }
    const std::size_t end = found->lstrip ? std::max(space, begin) : at;
    if (end > begin) text(all.substr(begin, end - begin));
    marker(found->id);
    at += found->content.size();
    while (found->rstrip && at < all.size()) {
      const CodePoint point = code_point_at(all, at);
      if (!is_white_space(point.value)) break;
      at += point.bytes;
    }
    begin = space = at;
  }
  if (begin < all.size()) text(all.substr(begin));
}

}  // namespace

struct ClipTokenizer::Impl {
  explicit Impl(ClipVocabulary from)
      : bpe(from.vocabulary, from.merges, from.vocabulary.at(from.unk)),
        source(from.source),
        model_max_length(from.model_max_length) {
    for (const ClipAddedToken& token : from.added_tokens) {
      const ClipMarker marker{token.content, bpe.id(token.content), token.lstrip, token.rstrip};
      if (!token.normalized) {
        as_given.push_back(marker);
        continue;
      }
      in_prepared.push_back(marker);
      in_prepared.back().content = prepared(token.content);
      if (in_prepared.back().content.empty()) in_prepared.pop_back();
    }
    for (auto* markers : {&as_given, &in_prepared}) {
      std::ranges::stable_sort(*markers, std::ranges::greater{},
                               [](const ClipMarker& marker) { return marker.content.size(); });
    }
    bos = bpe.id(from.bos);
    eos = bpe.id(from.eos);
    pad = bpe.id(from.pad);
  }

  void encode(std::string_view text, std::vector<std::int64_t>& ids) const {
    const auto marker = [&](std::int64_t id) { ids.push_back(id); };
    const auto words = [&](std::string_view some) {
      for (const std::string_view word : clip_words().find_all(some)) {
        for (const std::string_view part : byte_level_words().find_all(word))
          bpe.encode(part, ids);
      }
    };
    cut_out(
        text, as_given,
        [&](std::string_view some) { cut_out(prepared(some), in_prepared, words, marker); },
        marker);
  }

  ByteBpe bpe;
  std::filesystem::path source;
  std::int64_t model_max_length;
  /// Longest first.
  std::vector<ClipMarker> as_given, in_prepared;
  std::int64_t bos = -1, eos = -1, pad = -1;
};

ClipTokenizer::ClipTokenizer(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

ClipTokenizer ClipTokenizer::load(const std::filesystem::path& folder) {
  ClipVocabulary vocabulary = read_clip_vocabulary(folder);
  const auto source = vocabulary.source;
  try {
    return ClipTokenizer(std::make_shared<Impl>(std::move(vocabulary)));
  } catch (const std::invalid_argument& error) {
    throw std::runtime_error("[load_tokenizer] " + source.string() + ": " + error.what());
  }
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
    bytes += impl_->bpe.text(id);
  }
  const std::string text = valid_utf8(bytes);
  return std::string(strip(text));
}

std::int64_t ClipTokenizer::vocab_size() const {
  return impl_->bpe.size();
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
