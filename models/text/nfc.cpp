#include "models/text/nfc.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <vector>

#include "models/text/composition_table.h"
#include "models/text/unicode.h"

namespace troupe::models {
namespace {

struct Decomposition {
  char32_t whole, first, second;
  int composes;
};

struct MarkRun {
  char32_t first, last;
  int combining_class;
};

// clang-format off
constexpr Decomposition kDecompositions[] = {
#include "models/text/decompositions.inc"
};
constexpr MarkRun kMarks[] = {
#include "models/text/combining_classes.inc"
};
// clang-format on

constexpr char32_t kSyllables = kLeads * kVowels * kTails;
constexpr char32_t kFirstThatChanges = 0xC0;
constexpr char32_t kFirstThatComposes = 0x300;

/// Both tables in the two orders that are looked up.
struct Tables {
  Tables() {
    for (const Composition& c : kCompositions) {
      apart.push_back({c.whole, c.first, c.second, 1});
      together.push_back(c);
    }
    for (const Decomposition& d : kDecompositions) {
      apart.push_back(d);
      if (d.composes != 0) together.push_back({d.first, d.second, d.whole});
    }
    std::ranges::sort(apart, {}, &Decomposition::whole);
    std::ranges::sort(together, {}, key_of);
  }
  static std::uint64_t key_of(const Composition& c) {
    return std::uint64_t{c.first} << 32U | c.second;
  }

  std::vector<Decomposition> apart;
  std::vector<Composition> together;
};

const Tables& tables() {
  static const Tables made;
  return made;
}

int combining_class(char32_t value) {
  if (value < kFirstThatComposes) return 0;
  const auto* run = std::ranges::lower_bound(kMarks, value, {}, &MarkRun::last);
  return run != std::end(kMarks) && value >= run->first ? run->combining_class : 0;
}

void take_apart(char32_t value, std::vector<char32_t>& out) {
  if (value >= kHangul && value < kHangul + kSyllables) {
    const char32_t index = value - kHangul;
    out.push_back(kLead + index / (kVowels * kTails));
    out.push_back(kVowel + index / kTails % kVowels);
    if (index % kTails != 0) out.push_back(kTail + index % kTails);
    return;
  }
  const auto& apart = tables().apart;
  const auto found = std::ranges::lower_bound(apart, value, {}, &Decomposition::whole);
  if (value < kFirstThatChanges || found == apart.end() || found->whole != value) {
    out.push_back(value);
    return;
  }
  take_apart(found->first, out);
  if (found->second != 0) take_apart(found->second, out);
}

/// What two code points are together, or 0.
char32_t put_together(char32_t first, char32_t second) {
  if (first >= kLead && first < kLead + kLeads && second >= kVowel && second < kVowel + kVowels) {
    return kHangul + ((first - kLead) * kVowels + (second - kVowel)) * kTails;
  }
  const bool open =
      first >= kHangul && first < kHangul + kSyllables && (first - kHangul) % kTails == 0;
  if (open && second > kTail && second < kTail + kTails) return first + (second - kTail);
  const auto& together = tables().together;
  const std::uint64_t key = std::uint64_t{first} << 32U | second;
  const auto found = std::ranges::lower_bound(together, key, {}, Tables::key_of);
  return found != together.end() && Tables::key_of(*found) == key ? found->whole : 0;
}

/// Runs of marks by their classes, those of one class as they stood.
void order_marks(std::vector<char32_t>& points) {
  for (auto begin = points.begin(); begin != points.end();) {
    if (combining_class(*begin) == 0) {
      ++begin;
      continue;
    }
    const auto end = std::find_if(begin, points.end(),
                                  [](char32_t value) { return combining_class(value) == 0; });
    std::stable_sort(
        begin, end, [](char32_t a, char32_t b) { return combining_class(a) < combining_class(b); });
    begin = end;
  }
}

std::vector<char32_t> apart(std::string_view text) {
  std::vector<char32_t> points;
  for (std::size_t at = 0; at < text.size();) {
    const CodePoint point = code_point_at(text, at);
    take_apart(point.value, points);
    at += point.bytes;
  }
  order_marks(points);
  return points;
}

}  // namespace

std::string nfd(std::string_view text) {
  std::string result;
  for (const char32_t value : apart(text))
    append_utf8(result, value);
  return result;
}

std::string nfc(std::string_view text) {
  const std::vector<char32_t> points = apart(text);
  std::vector<char32_t> out;
  std::size_t starter = 0;
  bool has_starter = false;
  int last_class = 0;
  for (const char32_t value : points) {
    const int own_class = combining_class(value);
    const bool adjacent = has_starter && out.size() == starter + 1;
    // A mark of a lower or the same class between the two keeps them apart.
    if (has_starter && (adjacent || (own_class != 0 && last_class < own_class))) {
      if (const char32_t whole = put_together(out[starter], value)) {
        out[starter] = whole;
        continue;
      }
    }
    if (own_class == 0) {
      starter = out.size();
      has_starter = true;
    }
    last_class = own_class;
    out.push_back(value);
  }
  std::string result;
  result.reserve(text.size());
  for (const char32_t value : out)
    append_utf8(result, value);
  return result;
}

}  // namespace troupe::models
