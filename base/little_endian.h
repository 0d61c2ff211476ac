#pragma once
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstring>
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

}  // namespace troupe
