#include <array>
#include <concepts>
#include <cstdint>
#include <cstdio>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "tests/support/doctest.h"
#include "tests/wire/every_message.h"
#include "transport/wire/envelope.h"

namespace troupe::wire {
namespace {

/// Returns how many values of an enum are taken, from 0 on: one more is another protocol, too.
template <class E>
std::size_t valid_values(E) {
  std::size_t count = 0;
  while (count < 256 && is_valid(static_cast<E>(count)))
    ++count;
  return count;
}

/// An archive that writes down types instead of values: "u64 s [u64 i32]"; of an enum also how many
/// values it has: "e8 of4".
class Layout {
 public:
  template <class... Ts>
  void operator()(Ts&&... values) {
    (add(values), ...);
  }
  const std::string& text() const { return text_; }

 private:
  void word(const char* name) {
    if (!text_.empty()) text_ += ' ';
    text_ += name;
  }
  void word(const char* name, std::size_t number) {
    word(name);
    text_ += std::to_string(number);
  }
  template <class T>
  void add(const T& value) {
    if constexpr (std::is_enum_v<T>) {
      word("e", 8 * sizeof(T));
      if constexpr (requires { is_valid(value); }) word("of", valid_values(value));
    } else if constexpr (std::is_same_v<T, bool>) {
      word("b");
    } else if constexpr (std::is_arithmetic_v<T>) {
      const char* kind = std::is_floating_point_v<T> ? "f" : std::is_signed_v<T> ? "i" : "u";
      word(kind, 8 * sizeof(T));
    } else {
      word("(");
      const_cast<T&>(value).serialize(*this);
      word(")");
    }
  }
  void add(const std::string&) { word("s"); }
  template <class T>
  void add(const std::vector<T>&) {
    word("[");
    add(T{});
    word("]");
  }
  template <class T, std::size_t N>
  void add(const std::array<T, N>&) {
    word("[", N);
    add(T{});
    word("]");
  }
  template <class K, class V>
  void add(const std::map<K, V>&) {
    word("{");
    add(K{});
    add(V{});
    word("}");
  }
  template <class A, class B>
  void add(const std::pair<A, B>&) {
    add(A{});
    add(B{});
  }
  template <class T>
  void add(const std::optional<T>&) {
    word("?");
    add(T{});
  }
  template <class... Ts>
  void add(const std::variant<Ts...>&) {
    word("<");
    (add(Ts{}), ...);
    word(">");
  }

  std::string text_;
};

std::string layouts() {
  std::string lines;
  EveryMessage::each([&]<class M>(M message) {
    Layout layout;
    message.serialize(layout);
    lines += std::to_string(static_cast<int>(M::kKind)) + ": " + layout.text() + "\n";
  });
  return lines;
}

/// FNV-1a.
std::uint64_t hash(const std::string& text) {
  std::uint64_t value = 0xcbf29ce484222325;
  for (const char byte : text)
    value = (value ^ static_cast<unsigned char>(byte)) * 0x100000001b3;
  return value;
}

/// The layout of all messages in the protocol version that stands in envelope.h.
constexpr std::uint16_t kRecordedVersion = 13;
constexpr std::uint64_t kRecordedLayout = 0x5fc8466160ffd954;

}  // namespace

TEST_CASE("messages have the layout that their protocol version stands for") {
  const std::string now = layouts();
  std::array<char, 32> number{};
  std::snprintf(number.data(), number.size(), "0x%016llx",
                static_cast<unsigned long long>(hash(now)));
  INFO(
      "messages have changed: raise kProtocolVersion in transport/wire/envelope.h, unless it was "
      "raised since the last release, and record it here with kRecordedLayout = "
      << std::string(number.data()) << "\n"
      << now);
  CHECK(kProtocolVersion == kRecordedVersion);
  CHECK(hash(now) == kRecordedLayout);
}

TEST_CASE("a layout tells an enum by how many values it has") {
  Layout layout;
  GetDocument{}.serialize(layout);
  CHECK(layout.text() == "e8 of6 u64 u64");
}

TEST_CASE("a layout tells fields apart that an empty message would not") {
  struct Narrow {
    std::vector<std::uint32_t> numbers;
    void serialize(Layout& ar) { ar(numbers); }
  };
  struct Wide {
    std::vector<std::uint64_t> numbers;
    void serialize(Layout& ar) { ar(numbers); }
  };
  Layout narrow, wide;
  Narrow{}.serialize(narrow);
  Wide{}.serialize(wide);
  CHECK(narrow.text() == "[ u32 ]");
  CHECK(wide.text() == "[ u64 ]");
}

}  // namespace troupe::wire
