#pragma once
#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace troupe::wire {

template <class T>
std::size_t min_size();

/// Walks a struct's `serialize` and adds up what its fields take at least; reads and writes
/// nothing.
class MinSizeArchive {
 public:
  template <class... Ts>
  void operator()(Ts&&...) {
    bytes_ += (std::size_t{0} + ... + min_size<std::remove_cvref_t<Ts>>());
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_ = 0;
};

template <class T>
struct MinSize {
  static std::size_t value() {
    if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T>) {
      return sizeof(T);
    } else {
      static const std::size_t bytes = [] {
        T blank{};
        MinSizeArchive archive;
        blank.serialize(archive);
        return archive.bytes();
      }();
      return bytes;
    }
  }
};

template <>
struct MinSize<std::string> {
  static std::size_t value() { return 4; }
};
template <class T>
struct MinSize<std::vector<T>> {
  static std::size_t value() { return 4; }
};
template <class K, class V>
struct MinSize<std::map<K, V>> {
  static std::size_t value() { return 4; }
};
template <class T>
struct MinSize<std::optional<T>> {
  static std::size_t value() { return 1; }
};
template <class T, std::size_t N>
struct MinSize<std::array<T, N>> {
  static std::size_t value() { return N * min_size<T>(); }
};
template <class A, class B>
struct MinSize<std::pair<A, B>> {
  static std::size_t value() { return min_size<A>() + min_size<B>(); }
};
template <class... Ts>
struct MinSize<std::variant<Ts...>> {
  static std::size_t value() { return 1 + std::min({min_size<Ts>()...}); }
};

/// Fewest bytes that a T takes on the wire: what bounds a claimed number of elements.
template <class T>
std::size_t min_size() {
  return MinSize<T>::value();
}

}  // namespace troupe::wire
