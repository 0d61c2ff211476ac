#include "models/text/byte_bpe.h"

#include <array>
#include <queue>
#include <stdexcept>
#include <tuple>

#include "models/text/unicode.h"

namespace troupe::models {
namespace {

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

}  // namespace troupe::models
