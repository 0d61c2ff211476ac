#include "models/text/compose.h"

#include <algorithm>
#include <cstdint>
#include <iterator>

#include "models/text/composition_table.h"
#include "models/text/unicode.h"

namespace troupe::models {
namespace {

/// Parts of a Hangul syllable as a syllable, or 0.
char32_t hangul_of(char32_t first, char32_t second) {
  if (first >= kLead && first < kLead + 19 && second >= kVowel && second < kVowel + kVowels) {
    return kHangul + ((first - kLead) * kVowels + (second - kVowel)) * kTails;
  }
  const bool open = first >= kHangul && first < kHangul + 11172 && (first - kHangul) % kTails == 0;
  if (open && second > kTail && second < kTail + kTails) return first + (second - kTail);
  return 0;
}

/// What two code points are together, or 0.
char32_t composed(char32_t first, char32_t second) {
  if (const char32_t syllable = hangul_of(first, second)) return syllable;
  const auto key = [](char32_t a, char32_t b) { return std::uint64_t{a} << 32 | b; };
  const auto* found =
      std::ranges::lower_bound(kCompositions, key(first, second), {},
                               [&](const Composition& c) { return key(c.first, c.second); });
  const bool hit =
      found != std::end(kCompositions) && found->first == first && found->second == second;
  return hit ? found->whole : 0;
}

}  // namespace

std::string compose(std::string_view text) {
  std::string out;
  char32_t last = 0;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    at += point.bytes;
    const char32_t whole = last != 0 ? composed(last, point.value) : 0;
    if (last != 0 && whole == 0) append_utf8(out, last);
    last = whole != 0 ? whole : point.value;
    if (last == 0) out += '\0';
  }
  if (last != 0) append_utf8(out, last);
  return out;
}

}  // namespace troupe::models
