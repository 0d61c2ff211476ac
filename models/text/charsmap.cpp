#include "models/text/charsmap.h"

#include <stdexcept>

#include "models/text/unicode.h"

namespace troupe::models {
namespace {

std::uint32_t little_endian(std::string_view bytes) {
  std::uint32_t value = 0;
  for (std::size_t i = 4; i-- > 0;)
    value = value << 8U | static_cast<unsigned char>(bytes[i]);
  return value;
}

// A unit of the double array packs its label, a leaf flag and the offset to its children.
bool has_leaf(std::uint32_t unit) {
  return (unit >> 8U & 1U) != 0;
}
std::uint32_t label(std::uint32_t unit) {
  return unit & (1U << 31U | 0xFFU);
}
std::uint32_t offset(std::uint32_t unit) {
  return (unit >> 10U) << ((unit & 1U << 9U) >> 6U);
}
std::uint32_t leaf_value(std::uint32_t unit) {
  return unit & ((1U << 31U) - 1);
}

}  // namespace

Charsmap::Charsmap(std::string_view blob, const std::string& file) {
  const auto refuse = [&file](const std::string& why) {
    throw std::runtime_error("[load_tokenizer] " + file + ": precompiled charsmap " + why);
  };
  if (blob.size() < 4)
    refuse("has " + std::to_string(blob.size()) + " bytes, at least 4 are needed");
  const std::uint32_t trie_bytes = little_endian(blob);
  blob.remove_prefix(4);
  if (trie_bytes == 0 || trie_bytes % 4 != 0 || trie_bytes > blob.size()) {
    refuse("says its trie has " + std::to_string(trie_bytes) + " bytes of " +
           std::to_string(blob.size()));
  }
  trie_.reserve(trie_bytes / 4);
  for (std::uint32_t at = 0; at < trie_bytes; at += 4) {
    trie_.push_back(little_endian(blob.substr(at)));
  }
  replacements_ = blob.substr(trie_bytes);
  if (!replacements_.empty() && replacements_.back() != '\0')
    refuse("does not end with a zero byte");
}

Charsmap::Match Charsmap::longest_match(std::string_view text) const {
  Match match;
  std::uint32_t node = offset(trie_[0]);
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    node ^= byte;
    if (byte == 0 || node >= trie_.size() || label(trie_[node]) != byte) break;
    const std::uint32_t unit = trie_[node];
    node ^= offset(unit);
    if (!has_leaf(unit)) continue;
    if (node >= trie_.size()) break;
    const std::uint32_t replacement = leaf_value(trie_[node]);
    if (replacement < replacements_.size()) match = {i + 1, replacement};
  }
  return match;
}

std::string Charsmap::normalize(std::string_view text) const {
  std::string result;
  result.reserve(text.size());
  while (!text.empty()) {
    const Match match = longest_match(text);
    if (match.bytes > 0) {
      result += replacements_.c_str() + match.replacement;
      text.remove_prefix(match.bytes);
      continue;
    }
    const CodePoint point = code_point_at(text, 0);
    append_utf8(result, point.value);
    text.remove_prefix(point.bytes);
  }
  return result;
}

}  // namespace troupe::models
