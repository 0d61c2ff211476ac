#pragma once

namespace troupe::models {

struct Composition {
  char32_t first, second, whole;
};

/// Unicode's canonical compositions, by first and second.
// clang-format off
inline constexpr Composition kCompositions[] = {
#include "models/text/compositions.inc"
};
// clang-format on

// Hangul's syllables are counted, not listed.
inline constexpr char32_t kHangul = 0xAC00;
inline constexpr char32_t kLead = 0x1100;
inline constexpr char32_t kVowel = 0x1161;
inline constexpr char32_t kTail = 0x11A7;
inline constexpr char32_t kLeads = 19;
inline constexpr char32_t kVowels = 21;
inline constexpr char32_t kTails = 28;

}  // namespace troupe::models
