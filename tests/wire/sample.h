#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "transport/wire/codec.h"

namespace troupe::wire::sample {

enum class Colour : std::uint8_t { red, green, blue };
constexpr bool is_valid(Colour colour) {
  return colour <= Colour::blue;
}

struct Part {
  std::int32_t rows = 0;
  std::string name;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(rows, name);
  }
  bool operator==(const Part&) const = default;
};

/// A message with one field of every type that the archives know.
struct Everything {
  static constexpr Kind kKind = Kind::ping;
  bool flag = false;
  std::int8_t small = 0;
  std::uint16_t medium = 0;
  std::int64_t large = 0;
  double real = 0;
  Colour colour = Colour::red;
  std::string text;
  std::vector<std::uint8_t> bytes;
  std::vector<std::int64_t> shape;
  std::vector<bool> flags;
  std::vector<Part> parts;
  std::array<std::uint32_t, 3> triple{};
  std::map<std::string, std::string> entries;
  std::pair<std::int32_t, std::string> both;
  std::optional<Part> maybe;
  std::variant<std::int32_t, std::string, Part> one;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(flag, small, medium, large, real, colour, text, bytes, shape, flags, parts, triple, entries,
       both, maybe, one);
  }
  bool operator==(const Everything&) const = default;
};

/// Can nest in itself without end.
struct Tree {
  static constexpr Kind kKind = Kind::ping;
  std::vector<Tree> children;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(children);
  }
};

}  // namespace troupe::wire::sample
