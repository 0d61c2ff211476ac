#pragma once
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

/// Encoding of arguments and results of actors' methods as bytes: little-endian, lengths as u32,
/// every load bounded by the bytes that remain. Encodes arithmetic types, enums, string, vector,
/// array, map, pair, tuple, optional, variant, Array, handles of actors, and structs with `template
/// <class Archive> void serialize(Archive& ar) { ar(field, field); }`. Pointers are not encoded.
namespace troupe {

namespace detail {
class Caller;
}

/// Thrown for bytes that do not encode the expected value.
class ValueError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

class ValueWriter {
 public:
  void raw(const void* data, std::size_t bytes) {
    bytes_.append(static_cast<const char*>(data), bytes);
  }
  void length(std::size_t elements) {
    if (elements > 0xffffffffu) throw ValueError("[value] more than 2^32 elements");
    const auto number = static_cast<std::uint32_t>(elements);
    raw(&number, sizeof number);
  }
  std::size_t size() const { return bytes_.size(); }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

/// Reads bytes that must outlive it. Throws ValueError.
class ValueReader {
 public:
  /// `caller` is used by handles among the values for their calls; null if no handle may be among
  /// them.
  explicit ValueReader(std::string_view bytes, std::shared_ptr<detail::Caller> caller = nullptr)
      : rest_(bytes), caller_(std::move(caller)) {}

  const char* take(std::size_t bytes) {
    if (bytes > rest_.size()) throw ValueError("[value] ends before its last field");
    const char* at = rest_.data();
    rest_.remove_prefix(bytes);
    return at;
  }
  void raw(void* data, std::size_t bytes) { std::memcpy(data, take(bytes), bytes); }
  /// Reads the number of elements that follow, each of at least one byte.
  std::size_t length() {
    std::uint32_t number = 0;
    raw(&number, sizeof number);
    if (number > rest_.size()) throw ValueError("[value] claims more elements than it has bytes");
    return number;
  }
  void expect_end() const {
    if (!rest_.empty()) throw ValueError("[value] has bytes behind its last field");
  }
  const std::shared_ptr<detail::Caller>& caller() const { return caller_; }

  /// Bounds the depth of nested values while it lives.
  class Nested {
   public:
    explicit Nested(ValueReader& in) : in_(in) {
      if (++in_.depth_ > 32) throw ValueError("[value] is nested too deeply");
    }
    ~Nested() { --in_.depth_; }

   private:
    ValueReader& in_;
  };

 private:
  std::string_view rest_;
  std::shared_ptr<detail::Caller> caller_;
  int depth_ = 0;
};

/// Writes, reads and names a T; specialise this for types of your own that have no `serialize`.
template <class T>
struct Value;

/// Name of a type, which people see and calls are checked by: "int64", "list<string>",
/// "Point{float64, float64}".
template <class T>
std::string type_name() {
  std::string name;
  Value<std::remove_cvref_t<T>>::name(name, 0);
  return name;
}

namespace detail {

static_assert(std::endian::native == std::endian::little, "values travel as they lie in memory");

template <class T>
concept Number = std::is_arithmetic_v<T> || std::is_enum_v<T>;

struct FieldWriter {
  ValueWriter& out;
  template <class... Ts>
  void operator()(const Ts&... fields) {
    (Value<Ts>::write(out, fields), ...);
  }
};
struct FieldReader {
  ValueReader& in;
  template <class... Ts>
  void operator()(Ts&... fields) {
    (Value<Ts>::read(in, fields), ...);
  }
};
struct FieldNamer {
  std::string& out;
  int depth;
  bool first = true;
  template <class T>
  void one(const T&) {
    if (!std::exchange(first, false)) out += ", ";
    Value<T>::name(out, depth);
  }
  template <class... Ts>
  void operator()(const Ts&... fields) {
    (one(fields), ...);
  }
};

template <class T>
concept Struct = requires(T& value, FieldReader& ar) {
  value.serialize(ar);
};

template <class T>
std::string struct_name() {
  const std::string_view text = __PRETTY_FUNCTION__;
  const auto begin = text.find("T = ") + 4;
  return std::string(text.substr(begin, text.find_first_of(";]", begin) - begin));
}

template <class T>
concept Bulk = std::is_arithmetic_v<T> && !std::is_same_v<T, bool>;

}  // namespace detail

template <detail::Number T>
struct Value<T> {
  static void write(ValueWriter& out, const T& value) { out.raw(&value, sizeof value); }
  static void read(ValueReader& in, T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      const char byte = *in.take(1);
      if (byte != 0 && byte != 1) throw ValueError("[value] a bool is neither 0 nor 1");
      value = byte == 1;
    } else {
      in.raw(&value, sizeof value);
    }
  }
  static void name(std::string& out, int depth) {
    if constexpr (std::is_enum_v<T>) {
      Value<std::underlying_type_t<T>>::name(out, depth);
    } else if constexpr (std::is_same_v<T, bool>) {
      out += "bool";
    } else {
      out += std::is_floating_point_v<T> ? "float" : std::is_signed_v<T> ? "int" : "uint";
      out += std::to_string(8 * sizeof(T));
    }
  }
};

template <>
struct Value<std::string> {
  static void write(ValueWriter& out, const std::string& text) {
    out.length(text.size());
    out.raw(text.data(), text.size());
  }
  static void read(ValueReader& in, std::string& text) {
    const std::size_t length = in.length();
    text.assign(in.take(length), length);
  }
  static void name(std::string& out, int) { out += "string"; }
};

template <detail::Struct T>
struct Value<T> {
  static void write(ValueWriter& out, const T& value) {
    out.length(0);  // an empty struct has a byte, too
    detail::FieldWriter fields{out};
    const_cast<T&>(value).serialize(fields);
  }
  static void read(ValueReader& in, T& value) {
    ValueReader::Nested nested(in);
    if (in.length() != 0) throw ValueError("[value] is no struct");
    detail::FieldReader fields{in};
    value.serialize(fields);
  }
  static void name(std::string& out, int depth) {
    out += detail::struct_name<T>();
    out += '{';
    if (depth < 8) {
      T blank{};
      detail::FieldNamer fields{out, depth + 1};
      blank.serialize(fields);
    }
    out += '}';
  }
};

}  // namespace troupe

#include "troupe/actor_containers.h"
