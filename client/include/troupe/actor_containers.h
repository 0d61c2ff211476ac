#pragma once
// Included by actor_values.h: the containers of the standard library, and Array.
#include "troupe/actor_values.h"

namespace troupe {

template <class T>
struct Value<std::vector<T>> {
  static void write(ValueWriter& out, const std::vector<T>& items) {
    out.length(items.size());
    if constexpr (detail::Bulk<T>) {
      out.raw(items.data(), items.size() * sizeof(T));
    } else {
      for (const auto& item : items)
        Value<T>::write(out, item);
    }
  }
  static void read(ValueReader& in, std::vector<T>& items) {
    ValueReader::Nested nested(in);
    const std::size_t length = in.length();
    items.clear();
    if constexpr (detail::Bulk<T>) {
      const char* bytes = in.take(length * sizeof(T));
      items.resize(length);
      if (length) std::memcpy(items.data(), bytes, length * sizeof(T));
    } else {
      for (std::size_t i = 0; i < length; ++i) {
        T item{};
        Value<T>::read(in, item);
        items.push_back(std::move(item));
      }
    }
  }
  static void name(std::string& out, int depth) {
    out += "list<";
    Value<T>::name(out, depth + 1);
    out += '>';
  }
};

template <class T, std::size_t N>
struct Value<std::array<T, N>> {
  static void write(ValueWriter& out, const std::array<T, N>& items) {
    for (const T& item : items)
      Value<T>::write(out, item);
  }
  static void read(ValueReader& in, std::array<T, N>& items) {
    ValueReader::Nested nested(in);
    for (T& item : items)
      Value<T>::read(in, item);
  }
  static void name(std::string& out, int depth) {
    out += "array<";
    Value<T>::name(out, depth + 1);
    out += ", " + std::to_string(N) + ">";
  }
};

template <class K, class V>
struct Value<std::map<K, V>> {
  static void write(ValueWriter& out, const std::map<K, V>& entries) {
    out.length(entries.size());
    for (const auto& [key, value] : entries) {
      Value<K>::write(out, key);
      Value<V>::write(out, value);
    }
  }
  static void read(ValueReader& in, std::map<K, V>& entries) {
    ValueReader::Nested nested(in);
    entries.clear();
    for (std::size_t left = in.length(); left > 0; --left) {
      K key{};
      V value{};
      Value<K>::read(in, key);
      Value<V>::read(in, value);
      entries.insert_or_assign(std::move(key), std::move(value));
    }
  }
  static void name(std::string& out, int depth) {
    out += "map<";
    Value<K>::name(out, depth + 1);
    out += ", ";
    Value<V>::name(out, depth + 1);
    out += '>';
  }
};

template <class T>
struct Value<std::optional<T>> {
  static void write(ValueWriter& out, const std::optional<T>& maybe) {
    Value<bool>::write(out, maybe.has_value());
    if (maybe) Value<T>::write(out, *maybe);
  }
  static void read(ValueReader& in, std::optional<T>& maybe) {
    ValueReader::Nested nested(in);
    bool present = false;
    Value<bool>::read(in, present);
    maybe.reset();
    if (present) Value<T>::read(in, maybe.emplace());
  }
  static void name(std::string& out, int depth) {
    out += "optional<";
    Value<T>::name(out, depth + 1);
    out += '>';
  }
};

namespace detail {

/// Value of a pair or a tuple.
template <class Tuple>
struct TupleValue {
  static void write(ValueWriter& out, const Tuple& items) {
    std::apply([&](const auto&... item) { FieldWriter{out}(item...); }, items);
  }
  static void read(ValueReader& in, Tuple& items) {
    ValueReader::Nested nested(in);
    std::apply([&](auto&... item) { FieldReader{in}(item...); }, items);
  }
  static void name(std::string& out, int depth) {
    out += "tuple<";
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      ((out += I ? ", " : "", Value<std::tuple_element_t<I, Tuple>>::name(out, depth + 1)), ...);
    }
    (std::make_index_sequence<std::tuple_size_v<Tuple>>());
    out += '>';
  }
};

}  // namespace detail

template <class A, class B>
struct Value<std::pair<A, B>> : detail::TupleValue<std::pair<A, B>> {};
template <class... Ts>
requires(sizeof...(Ts) > 0) struct Value<std::tuple<Ts...>>
    : detail::TupleValue<std::tuple<Ts...>> {
};

template <class... Ts>
struct Value<std::variant<Ts...>> {
  static_assert(sizeof...(Ts) < 256);
  static void write(ValueWriter& out, const std::variant<Ts...>& one) {
    Value<std::uint8_t>::write(out, static_cast<std::uint8_t>(one.index()));
    std::visit([&](const auto& value) { detail::FieldWriter{out}(value); }, one);
  }
  static void read(ValueReader& in, std::variant<Ts...>& one) {
    ValueReader::Nested nested(in);
    std::uint8_t index = 0;
    Value<std::uint8_t>::read(in, index);
    if (index >= sizeof...(Ts)) throw ValueError("[value] a variant has an index beyond its last");
    [&]<std::size_t... I>(std::index_sequence<I...>) {
      ((index == I && (Value<Ts>::read(in, one.template emplace<I>()), true)) || ...);
    }
    (std::index_sequence_for<Ts...>());
  }
  static void name(std::string& out, int depth) {
    out += "variant<";
    bool first = true;
    ((out += std::exchange(first, false) ? "" : ", ", Value<Ts>::name(out, depth + 1)), ...);
    out += '>';
  }
};

/// A tensor's numbers without a tensor library: row-major, as `bytes` holds them.
struct Array {
  std::string dtype = "float32";  // as torch and NumPy say it: float32, bfloat16, int64, uint8, …
  std::vector<std::int64_t> shape;
  std::string bytes;

  /// Makes an array of float, double, std::int32_t, std::int64_t or std::uint8_t; throws
  /// std::invalid_argument when the shape does not have that many elements.
  template <class T>
  static Array of(const std::vector<T>& numbers, std::vector<std::int64_t> shape);
  std::int64_t elements() const {
    std::int64_t product = 1;
    for (const auto size : shape)
      product *= size;
    return product;
  }
  /// Returns a copy as numbers; throws std::invalid_argument when the array has another dtype.
  template <class T>
  std::vector<T> to() const;
  bool operator==(const Array&) const = default;
};

namespace detail {
template <class T>
constexpr const char* dtype_of() {
  if constexpr (std::is_same_v<T, float>) return "float32";
  if constexpr (std::is_same_v<T, double>) return "float64";
  if constexpr (std::is_same_v<T, std::int32_t>) return "int32";
  if constexpr (std::is_same_v<T, std::int64_t>) return "int64";
  if constexpr (std::is_same_v<T, std::uint8_t>) return "uint8";
}
}  // namespace detail

template <class T>
Array Array::of(const std::vector<T>& numbers, std::vector<std::int64_t> shape) {
  Array array{detail::dtype_of<T>(), std::move(shape), {}};
  if (array.elements() != static_cast<std::int64_t>(numbers.size())) {
    throw std::invalid_argument("[array] " + std::to_string(numbers.size()) +
                                " numbers do not fill a shape of " +
                                std::to_string(array.elements()));
  }
  array.bytes.assign(reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(T));
  return array;
}

template <class T>
std::vector<T> Array::to() const {
  if (dtype != detail::dtype_of<T>() || bytes.size() % sizeof(T) != 0) {
    throw std::invalid_argument("[array] holds " + dtype + ", not " + detail::dtype_of<T>());
  }
  std::vector<T> numbers(bytes.size() / sizeof(T));
  if (!numbers.empty()) std::memcpy(numbers.data(), bytes.data(), bytes.size());
  return numbers;
}

template <>
struct Value<Array> {
  static void write(ValueWriter& out, const Array& array) {
    detail::FieldWriter{out}(array.dtype, array.shape);
    const std::uint64_t bytes = array.bytes.size();
    out.raw(&bytes, sizeof bytes);
    out.raw(array.bytes.data(), array.bytes.size());
  }
  static void read(ValueReader& in, Array& array) {
    detail::FieldReader{in}(array.dtype, array.shape);
    std::uint64_t bytes = 0;
    in.raw(&bytes, sizeof bytes);
    array.bytes.assign(in.take(bytes), bytes);
  }
  static void name(std::string& out, int) { out += "Array"; }
};

}  // namespace troupe
