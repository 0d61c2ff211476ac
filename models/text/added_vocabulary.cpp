#include "models/text/added_vocabulary.h"

#include <algorithm>
#include <stdexcept>

#include "base/format.h"
#include "models/spec/lora_refusal.h"
#include "models/text/unicode.h"

namespace troupe::models {
namespace {

/// Bytes of a prompt whose words are written out, at most: words that have each other as parts
/// multiply, and each is looked for at each place.
constexpr std::size_t kMostWrittenOut = 64U << 10U;

bool ends_in_word(std::string_view text) {
  std::size_t at = text.size();
  while (at > 0 && (static_cast<unsigned char>(text[at - 1]) & 0xC0U) == 0x80U)
    --at;
  return at > 0 && is_word_character(code_point_at(text, at - 1).value);
}

bool begins_with_word(std::string_view text) {
  return !text.empty() && is_word_character(code_point_at(text, 0).value);
}

}  // namespace

AddedVocabulary::AddedVocabulary(const std::vector<AddedToken>& tokens, Model model,
                                 const std::filesystem::path& folder)
    : model_(std::move(model)), folder_(folder), end_(model_.size) {
  for (const AddedToken& token : tokens) {
    const std::int64_t own = model_.id(token.content);
    const std::int64_t id = own >= 0 ? own : end_;
    if (token.listed_id && *token.listed_id != id) {
      throw std::runtime_error(fmt::format(
          "[load_tokenizer] {}: added token \"{}\" is listed with id {}, but comes to {}{}",
          folder.string(), token.content, *token.listed_id, id,
          own >= 0 ? " in the vocabulary" : ", the next after those before it"));
    }
    end_ = std::max(end_, id + 1);
    ids_[token.content] = id;
    if (own < 0) contents_[id] = token.content;
    if (own < 0 && token.implied) lacking_.insert(token.content);
    Placed placed{token, id, token.normalized ? model_.normalize(token.content) : token.content};
    if (!placed.looked_for.empty())
      (token.normalized ? normalized_ : as_given_).push_back(std::move(placed));
  }
  for (auto* list : {&as_given_, &normalized_}) {
    std::ranges::stable_sort(*list, std::ranges::greater{},
                             [](const Placed& placed) { return placed.looked_for.size(); });
  }
  for (const auto& [content, id] : ids_) {
    std::string all = content;
    for (int i = 1; ids_.contains(fmt::format("{}_{}", content, i)); ++i)
      all += fmt::format(" {}_{}", content, i);
    if (all != content) vectors_[id] = {content, all};
  }
}

void AddedVocabulary::cut_out(std::string_view all, const std::vector<Placed>& tokens,
                              const std::function<void(std::string_view)>& on_text,
                              const std::function<void(std::int64_t)>& on_token) {
  std::size_t begin = 0;
  std::size_t space = 0;  // where the white space that ends at `at` begins
  for (std::size_t at = 0; at < all.size();) {
    const auto rest = all.substr(at);
    const auto found = std::ranges::find_if(
        tokens, [&](const Placed& token) { return rest.starts_with(token.looked_for); });
    const std::size_t length =
        found == tokens.end() ? code_point_at(all, at).bytes : found->looked_for.size();
    const bool is_token = found != tokens.end() &&
                          !(found->token.single_word && (ends_in_word(all.substr(0, at)) ||
                                                         begins_with_word(rest.substr(length))));
    if (!is_token) {
      const bool white = found == tokens.end() && is_white_space(code_point_at(all, at).value);
      at += length;
      if (!white) space = at;
      continue;
    }
    const std::size_t end = found->token.lstrip ? std::max(space, begin) : at;
    if (end > begin) on_text(all.substr(begin, end - begin));
    on_token(found->id);
    at += length;
    while (found->token.rstrip && at < all.size()) {
      const CodePoint point = code_point_at(all, at);
      if (!is_white_space(point.value)) break;
      at += point.bytes;
    }
    begin = space = at;
  }
  if (begin < all.size()) on_text(all.substr(begin));
}

void AddedVocabulary::split(std::string_view text,
                            const std::function<void(std::string_view)>& on_text,
                            const std::function<void(std::int64_t)>& on_token) const {
  cut_out(
      text, as_given_,
      [&](std::string_view some) {
        cut_out(model_.normalize(some), normalized_, on_text, on_token);
      },
      on_token);
}

std::int64_t AddedVocabulary::id(const std::string& content) const {
  const auto found = ids_.find(content);
  return found == ids_.end() ? model_.id(content) : found->second;
}

std::int64_t AddedVocabulary::need(const std::string& content) const {
  if (lacking_.contains(content) || id(content) < 0) {
    throw std::runtime_error(fmt::format("[load_tokenizer] {}: the vocabulary has no \"{}\"",
                                         folder_.string(), content));
  }
  return id(content);
}

std::string AddedVocabulary::content(std::int64_t id) const {
  const auto found = contents_.find(id);
  return found == contents_.end() ? "" : found->second;
}

std::string AddedVocabulary::beyond(std::int64_t rows) const {
  for (const auto* list : {&as_given_, &normalized_})
    for (const Placed& placed : *list)
      if (placed.id >= rows && !placed.token.implied) return placed.token.content;
  return "";
}

std::string AddedVocabulary::with_all_vectors(std::string text) const {
  if (vectors_.empty()) return text;
  std::set<std::int64_t> found;
  split(
      text, [](std::string_view) {}, [&](std::int64_t id) { found.insert(id); });
  for (const std::int64_t id : found) {
    const auto more = vectors_.find(id);
    if (more == vectors_.end()) continue;
    const auto& [token, all] = more->second;
    std::string written;
    std::size_t from = 0;
    for (auto at = text.find(token); at != std::string::npos; at = text.find(token, from)) {
      written.append(text, from, at - from).append(all);
      from = at + token.size();
      if (written.size() > kMostWrittenOut)
        throw std::runtime_error(
            fmt::format("[tokenizer] {}: with all vectors of its learned words a prompt has more "
                        "than {} bytes: "
                        "write {} less often",
                        folder_.string(), kMostWrittenOut, spec::in_quotes(token)));
    }
    text = written.append(text, from);
  }
  return text;
}

}  // namespace troupe::models
