#pragma once

#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

namespace troupe {

/// Integers and floats of 1, 2, 4 or 8 bytes to and from little-endian bytes, at any alignment.
template <class T>
requires std::is_arithmetic_v<T>
void store_le(std::byte* out, T value) {
  std::memcpy(out, &value, sizeof(T));
  if constexpr (std::endian::native == std::endian::big) {
    for (std::size_t i = 0; i < sizeof(T) / 2; ++i)
      std::swap(out[i], out[sizeof(T) - 1 - i]);
  }
}

template <class T>
requires std::is_arithmetic_v<T> T load_le(const std::byte* in) {
  std::byte bytes[sizeof(T)];
  std::memcpy(bytes, in, sizeof(T));
  if constexpr (std::endian::native == std::endian::big) {
    for (std::size_t i = 0; i < sizeof(T) / 2; ++i)
      std::swap(bytes[i], bytes[sizeof(T) - 1 - i]);
  }
  T value;
  std::memcpy(&value, bytes, sizeof(T));
  return value;
}

/// The lowest `bytes` bytes of `value`, the highest of them first.
inline std::string big_endian(std::uint64_t value, int bytes) {
  std::string out;
  for (int shift = 8 * (bytes - 1); shift >= 0; shift -= 8)
    out += static_cast<char>(value >> shift & 0xff);
  return out;
}

}  // namespace troupe
