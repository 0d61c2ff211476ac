#include "web/webui_prompt.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/numbers.h"
#include "web/api_error.h"

namespace troupe::web {
namespace {

constexpr double kBracket = 1.1;  // what a pair of round brackets multiplies a weight by

/// A piece of a prompt: words, or a bracket.
struct Piece {
  enum class Kind : std::uint8_t { words, round, end_round, square, end_square };
  Kind kind = Kind::words;
  std::string text = {};   // as it stands in the prompt; of words what they are
  std::size_t length = 0;  // in the prompt
  double weight = kBracket;
  bool closes = false;  // a bracket that has a partner
};

std::string beginning(const std::string& text) {
  constexpr std::size_t kMost = 40;
  return json_text(text.size() > kMost ? text.substr(0, kMost) + "…" : text);
}

ApiError refused(const std::string& field, const std::string& what, const std::string& does,
                 const std::string& remedy) {
  return bad_field(field, "has " + what + ", which in the web UI " + does +
                              ": that is not done here; " + remedy);
}

/// ":1.4)", where a ":" stands at `at`.
std::optional<Piece> weight_at(const std::string& text, std::size_t at) {
  constexpr const char* kSpace = " \t\r\n";
  const std::size_t first = text.find_first_not_of(kSpace, at + 1);
  if (first == text.npos) return std::nullopt;
  const std::size_t end = text.find_first_not_of("+-.0123456789", first);
  const std::size_t close = end == text.npos ? end : text.find_first_not_of(kSpace, end);
  if (end == first || close == text.npos || text[close] != ')') return std::nullopt;
  const std::string number = text.substr(first, end - first);
  const auto weight = parse_number<double>(number.substr(number.starts_with('+')));
  return Piece{.kind = Piece::Kind::end_round,
               .text = text.substr(at, close + 1 - at),
               .length = close + 1 - at,
               .weight = weight.value_or(std::nan(""))};
}

Piece piece_at(const std::string& text, std::size_t at) {
  constexpr std::string_view kSpecial = "\\()[]:";
  using Kind = Piece::Kind;
  switch (text[at]) {
    case '\\': {
      // Before anything but these a backslash goes away.
      const bool escapes =
          at + 1 < text.size() && std::string_view("\\()[]").find(text[at + 1]) != text.npos;
      return {.text = text.substr(at + 1, escapes ? 1 : 0), .length = escapes ? 2u : 1u};
    }
    case '(':
      return {.kind = Kind::round, .text = "(", .length = 1};
    case ')':
      return {.kind = Kind::end_round, .text = ")", .length = 1};
    case '[':
      return {.kind = Kind::square, .text = "[", .length = 1};
    case ']':
      return {.kind = Kind::end_square, .text = "]", .length = 1, .weight = 1 / kBracket};
    case ':':
      if (auto weight = weight_at(text, at)) return std::move(*weight);
      return {.text = ":", .length = 1};
    default: {
      const std::size_t end = std::min(text.find_first_of(kSpecial, at), text.size());
      return {.text = text.substr(at, end - at), .length = end - at};
    }
  }
}

/// Brackets that close nothing become words; those that are never closed weigh all that follows.
std::vector<Piece> pieces_of(const std::string& text) {
  using Kind = Piece::Kind;
  std::vector<Piece> pieces;
  std::vector<std::size_t> round, square;
  for (std::size_t at = 0; at < text.size(); at += pieces.back().length) {
    pieces.push_back(piece_at(text, at));
    Piece& piece = pieces.back();
    if (piece.kind == Kind::round) round.push_back(pieces.size() - 1);
    if (piece.kind == Kind::square) square.push_back(pieces.size() - 1);
    if (piece.kind != Kind::end_round && piece.kind != Kind::end_square) continue;
    auto& open = piece.kind == Kind::end_round ? round : square;
    if (open.empty()) {
      piece.kind = Kind::words;
      continue;
    }
    pieces[open.back()].weight = piece.weight;
    pieces[open.back()].closes = true;
    open.pop_back();
  }
  for (const std::size_t each : square)
    pieces[each].weight = 1 / kBracket;
  return pieces;
}

/// Refuses [from:to:when] and [one|other].
void refuse_turns(const std::string& field, const std::vector<Piece>& pieces) {
  using Kind = Piece::Kind;
  std::vector<bool> alternates;  // of the brackets that are open
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Piece& piece = pieces[i];
    if (piece.kind == Kind::square && piece.closes) alternates.push_back(false);
    if (alternates.empty()) continue;
    if (piece.kind == Kind::words && piece.text.find('|') != piece.text.npos)
      alternates.back() = true;
    if (piece.kind != Kind::end_square) continue;
    std::string last = i >= 2 && pieces[i - 2].text == ":" ? pieces[i - 1].text : "";
    last.erase(0, last.find_first_not_of(" \t\r\n+"));
    last.erase(last.find_last_not_of(" \t\r\n") + 1);
    if (alternates.back() || parse_number<double>(last))
      throw refused(field, "words that change in mid-run, as in [red:blue:0.5] or [red|blue]",
                    "take turns", "write one of them, or escape brackets that are words: \\[ \\]");
    alternates.pop_back();
  }
}

bool is_letter(const std::string& text, std::size_t at) {
  if (at >= text.size()) return false;
  const auto letter = static_cast<unsigned char>(text[at]);
  return std::isalnum(letter) || letter == '_' || letter >= 0x80;
}

/// A word by itself, in capitals.
void refuse_word(const std::string& field, const std::string& text, const std::string& word,
                 const std::string& does) {
  for (std::size_t at = text.find(word); at != text.npos; at = text.find(word, at + 1)) {
    if ((at == 0 || !is_letter(text, at - 1)) && !is_letter(text, at + word.size()))
      throw refused(field, word, does, "write it in small letters if it is a word");
  }
}

/// Removes comments: from "#" to the end of each line.
std::string without_comments(const std::string& prompt) {
  std::string text;
  for (std::size_t at = 0; at < prompt.size();) {
    const std::size_t mark = std::min(prompt.find('#', at), prompt.size());
    text.append(prompt, at, mark - at);
    at = mark;
    if (mark == prompt.size()) break;
    at = std::min(prompt.find('\n', mark), prompt.size() - 1) + 1;
    // A line that is nothing else takes the end of the line before with it.
    if (text.ends_with('\n')) text.pop_back();
    text += '\n';
  }
  return text;
}

/// Cuts <name:…> out, or refuses it.
std::string without_networks(const std::string& field, const std::string& prompt, bool cut) {
  std::string text;
  std::size_t kept = 0;
  for (std::size_t at = prompt.find('<'); at != prompt.npos; at = prompt.find('<', at + 1)) {
    std::size_t colon = at + 1;
    while (is_letter(prompt, colon))
      ++colon;
    if (colon == at + 1 || colon >= prompt.size() || prompt[colon] != ':') continue;
    const std::size_t end = prompt.find('>', colon);
    if (end == prompt.npos) break;
    if (end == colon + 1) continue;
    const std::string name = prompt.substr(at + 1, colon - at - 1);
    if (!cut)
      throw refused(field, beginning(prompt.substr(at, end + 1 - at)),
                    "loads a network by its name",
                    name == "lora" || name == "lyco"
                        ? "name its file: \"loras\": [{\"path\": FILE, \"scale\": NUMBER}]"
                        : "leave it out");
    text.append(prompt, kept, at - kept);
    kept = end + 1;
    at = end;
  }
  return text.append(prompt, kept);
}

/// Refuses words that weigh more or less than others.
std::string plain_words(const std::string& field, const std::vector<Piece>& pieces) {
  using Kind = Piece::Kind;
  constexpr double kSlip = 1e-9;
  std::vector<double> round{1}, square{1};  // what the brackets that are open make together
  std::string words;
  for (const Piece& piece : pieces) {
    if (piece.kind == Kind::round) round.push_back(round.back() * piece.weight);
    if (piece.kind == Kind::square) square.push_back(square.back() * piece.weight);
    if (piece.kind == Kind::end_round) round.pop_back();
    if (piece.kind == Kind::end_square) square.pop_back();
    if (piece.kind != Kind::words || piece.text.empty()) continue;
    refuse_word(field, piece.text, "BREAK", "begins another chunk of tokens");
    if (!(std::abs(round.back() * square.back() - 1) < kSlip))
      throw refused(field, beginning(piece.text) + " in brackets", "weighs these words",
                    "write them without, or escape brackets that are words: \\( \\)");
    words += piece.text;
  }
  return words;
}

}  // namespace

std::string words_of_prompt(const std::string& field, const std::string& prompt, PromptKind kind,
                            bool cut_networks) {
  std::string text = without_comments(prompt);
  if (kind == PromptKind::positive) {
    text = without_networks(field, text, cut_networks);
    refuse_word(field, text, "AND", "composes prompts");
  }
  const auto pieces = pieces_of(text);
  refuse_turns(field, pieces);
  return plain_words(field, pieces);
}

}  // namespace troupe::web
