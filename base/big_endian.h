#pragma once
#include <cstdint>
#include <string>

namespace troupe {

/// The lowest `bytes` bytes of `value`, the highest of them first.
inline std::string big_endian(std::uint64_t value, int bytes) {
  std::string out;
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8)
    out += static_cast<char>(value >> shift & 0xff);
  return out;
}

}  // namespace troupe
