#include "base/utf8.h"

#include <cstddef>
#include <cstdint>

namespace troupe {
namespace {

// Bytes that a valid sequence starting with `lead` has, 0 if none starts so.
int sequence_length(std::uint8_t lead) {
  if (lead < 0x80) return 1;
  if (lead >= 0xc2 && lead < 0xe0) return 2;
  if (lead >= 0xe0 && lead < 0xf0) return 3;
  return lead >= 0xf0 && lead < 0xf5 ? 4 : 0;
}

}  // namespace

bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto byte = [&](size_t at) { return static_cast<std::uint8_t>(text[at]); };
    const int length = sequence_length(byte(i));
    if (length == 0 || i + length > text.size()) return false;
    for (int k = 1; k < length; ++k) {
      if ((byte(i + k) & 0xc0) != 0x80) return false;
    }
    if (length == 3 && byte(i) == 0xe0 && byte(i + 1) < 0xa0) return false;   // overlong
    if (length == 3 && byte(i) == 0xed && byte(i + 1) >= 0xa0) return false;  // surrogate
    if (length == 4 && byte(i) == 0xf0 && byte(i + 1) < 0x90) return false;   // overlong
    if (length == 4 && byte(i) == 0xf4 && byte(i + 1) >= 0x90) return false;  // beyond Unicode
    i += length;
  }
  return true;
}

}  // namespace troupe
