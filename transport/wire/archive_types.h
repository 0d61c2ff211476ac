#pragma once
// Included by archive.h: how each type is written and read. Found by cereal through the archives'
// namespace.
#include "transport/wire/archive.h"
#include "transport/wire/min_size.h"

namespace troupe::wire {

template <class T>
concept Bulk = std::is_arithmetic_v<T> && !std::same_as<T, bool>;

template <class T>
requires std::is_arithmetic_v<T>
void CEREAL_SAVE_FUNCTION_NAME(BoundedOutput& ar, const T& value) {
  std::byte bytes[sizeof(T)];
  store_le(bytes, value);
  ar.write(bytes, sizeof bytes);
}

template <Bulk T>
void CEREAL_LOAD_FUNCTION_NAME(BoundedInput& ar, T& value) {
  value = load_le<T>(ar.take(sizeof(T)));
}

inline void CEREAL_LOAD_FUNCTION_NAME(BoundedInput& ar, bool& value) {
  const auto byte = std::to_integer<unsigned>(*ar.take(1));
  if (byte > 1) BoundedInput::throw_bad_value("a bool is " + std::to_string(byte));
  value = byte == 1;
}

/// cereal writes and reads an enum as its underlying number; this looks at it afterwards.
template <class E>
requires std::is_enum_v<E>
void epilogue(BoundedInput&, const E& value) {
  if constexpr (requires {
                  { is_valid(value) } -> std::convertible_to<bool>;
                }) {
    if (!is_valid(value)) {
      BoundedInput::throw_bad_value(
          "an enum is " +
          std::to_string(static_cast<long long>(static_cast<std::underlying_type_t<E>>(value))));
    }
  }
}

inline void CEREAL_SAVE_FUNCTION_NAME(BoundedOutput& ar, const std::string& text) {
  ar.write_length(text.size());
  ar.write(text.data(), text.size());
}

inline void CEREAL_LOAD_FUNCTION_NAME(BoundedInput& ar, std::string& text) {
  const std::size_t length = ar.take_length(1);
  text.assign(reinterpret_cast<const char*>(ar.take(length)), length);
}

template <class T>
void CEREAL_SAVE_FUNCTION_NAME(BoundedOutput& ar, const std::vector<T>& items) {
  ar.write_length(items.size());
  if constexpr (Bulk<T> && std::endian::native == std::endian::little) {
    ar.write(items.data(), items.size() * sizeof(T));
  } else {
    for (const auto& item : items)
      ar(static_cast<const T&>(item));
  }
}

template <class T>
void CEREAL_LOAD_FUNCTION_NAME(BoundedInput& ar, std::vector<T>& items) {
  BoundedInput::Nested nested(ar);
  const std::size_t length = ar.take_length(min_size<T>());
  items.clear();
  if constexpr (Bulk<T> && std::endian::native == std::endian::little) {
    items.resize(length);
    if (length) std::memcpy(items.data(), ar.take(length * sizeof(T)), length * sizeof(T));
  } else {
    // Grows as elements arrive, so that memory follows the bytes read and not the length claimed.
    for (std::size_t i = 0; i < length; ++i) {
      T item{};
      ar(item);
      items.push_back(std::move(item));
    }
  }
}

template <class T, std::size_t N>
void CEREAL_SAVE_FUNCTION_NAME(BoundedOutput& ar, const std::array<T, N>& items) {
  for (const T& item : items)
    ar(item);
}

template <class T, std::size_t N>
void CEREAL_LOAD_FUNCTION_NAME(BoundedInput& ar, std::array<T, N>& items) {
  BoundedInput::Nested nested(ar);
  for (T& item : items)
    ar(item);
}

template <class K, class V>
void CEREAL_SAVE_FUNCTION_NAME(BoundedOutput& ar, const std::map<K, V>& entries) {
  ar.write_length(entries.size());
  for (const auto& [key, value] : entries)
    ar(key, value);
}

template <class K, class V>
void CEREAL_LOAD_FUNCTION_NAME(BoundedInput& ar, std::map<K, V>& entries) {
  BoundedInput::Nested nested(ar);
  const std::size_t length = ar.take_length(min_size<K>() + min_size<V>());
  entries.clear();
  for (std::size_t i = 0; i < length; ++i) {
    K key{};
    V value{};
    ar(key, value);
    // One way to write a map: ascending, no key twice.
    if (!entries.empty() && !(entries.rbegin()->first < key))
      BoundedInput::throw_bad_value("map keys out of order");
    entries.emplace_hint(entries.end(), std::move(key), std::move(value));
  }
}

template <class A, class B>
void CEREAL_SAVE_FUNCTION_NAME(BoundedOutput& ar, const std::pair<A, B>& both) {
  ar(both.first, both.second);
}

template <class A, class B>
void CEREAL_LOAD_FUNCTION_NAME(BoundedInput& ar, std::pair<A, B>& both) {
  BoundedInput::Nested nested(ar);
  ar(both.first, both.second);
}

template <class T>
void CEREAL_SAVE_FUNCTION_NAME(BoundedOutput& ar, const std::optional<T>& maybe) {
  ar(maybe.has_value());
  if (maybe) ar(*maybe);
}

template <class T>
void CEREAL_LOAD_FUNCTION_NAME(BoundedInput& ar, std::optional<T>& maybe) {
  BoundedInput::Nested nested(ar);
  bool present = false;
  ar(present);
  maybe.reset();
  if (present) ar(maybe.emplace());
}

template <class... Ts>
void CEREAL_SAVE_FUNCTION_NAME(BoundedOutput& ar, const std::variant<Ts...>& one) {
  static_assert(sizeof...(Ts) < 256);
  ar(static_cast<std::uint8_t>(one.index()));
  std::visit([&](const auto& value) { ar(value); }, one);
}

template <class... Ts>
void CEREAL_LOAD_FUNCTION_NAME(BoundedInput& ar, std::variant<Ts...>& one) {
  BoundedInput::Nested nested(ar);
  std::uint8_t index = 0;
  ar(index);
  if (index >= sizeof...(Ts)) {
    BoundedInput::throw_bad_value("a variant of " + std::to_string(sizeof...(Ts)) + " has index " +
                                  std::to_string(index));
  }
  [&]<std::size_t... I>(std::index_sequence<I...>) {
    ((index == I && (ar(one.template emplace<I>()), true)) || ...);
  }
  (std::index_sequence_for<Ts...>());
}

}  // namespace troupe::wire
