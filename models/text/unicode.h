#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace troupe::models {

/// One code point and the bytes it took. A byte that is not UTF-8 reads as U+FFFD of one byte.
struct CodePoint {
  char32_t value = 0;
  std::size_t bytes = 0;
};

/// The code point at `at`, which is below text.size(). Overlong forms and surrogates are not UTF-8.
CodePoint code_point_at(std::string_view text, std::size_t at);
void append_utf8(std::string& text, char32_t value);

/// The text with U+FFFD in place of bytes that are not UTF-8.
std::string valid_utf8(std::string_view text);

/// Unicode's White_Space property.
bool is_white_space(char32_t value);

/// Returns whether regular expressions count a character as part of a word: letters, marks, digits,
/// joining punctuation.
bool is_word_character(char32_t value);

/// Lower case of a whole text by Unicode's default mapping, final sigma included; bytes that are
/// not UTF-8 become U+FFFD. Equals Python's str.lower.
std::string lower_case(std::string_view text);

/// Lower case letter by letter, without regard to what stands beside one: sigma is always σ.
std::string lower_case_by_letter(std::string_view text);

/// Unicode's normal form C (UAX #15); bytes that are not UTF-8 become U+FFFD.
std::string nfc(std::string_view text);

/// Normal forms C and D as the library `tokenizers` has them, by Unicode 9.0: marks and letters
/// that came later stay where and as they are.
std::string tokenizers_nfc(std::string_view text);
std::string tokenizers_nfd(std::string_view text);

/// Returns a full-width or half-width letter or sign in its usual width, as its compatibility
/// decomposition has it; any other code point unchanged.
std::string usual_width(char32_t value);

/// Removes the white space at both ends, as Python's str.strip does (which counts U+001C to U+001F
/// as such).
std::string_view strip(std::string_view text);

/// Returns a prompt as PixArtAlphaPipeline changes it when caption cleaning is off.
std::string normal_caption(std::string_view text);

}  // namespace troupe::models
