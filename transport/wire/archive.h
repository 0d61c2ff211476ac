#pragma once
#include <array>
#include <cereal/cereal.hpp>
#include <concepts>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "base/endian.h"
#include "transport/wire/envelope.h"

/// Cereal archives of Troupe's own: little-endian, lengths as u32, and every load bounded by the
/// bytes that remain before anything is allocated. They know arithmetic types, enums, string,
/// vector, array, map, pair, optional, variant and structs with `serialize`. An enum with a
/// function `bool is_valid(E)` beside it is checked on load.
namespace troupe::wire {

/// Nesting of containers allowed in one message.
inline constexpr int kMaxDepth = 16;

/// Appends to a string. Throws WireError not_sendable once it has written more than kMaxPayload
/// bytes.
class BoundedOutput : public cereal::OutputArchive<BoundedOutput, cereal::AllowEmptyClassElision> {
 public:
  explicit BoundedOutput(std::string& out)
      : OutputArchive(this), out_(out), limit_(out.size() + kMaxPayload) {}

  void write(const void* data, std::size_t bytes) {
    if (bytes > limit_ - out_.size()) throw_too_large();
    out_.append(static_cast<const char*>(data), bytes);
  }
  void write_length(std::size_t length);

 private:
  [[noreturn]] static void throw_too_large();

  std::string& out_;
  std::size_t limit_;
};

/// Reads from a span that must outlive it. Throws WireError.
class BoundedInput : public cereal::InputArchive<BoundedInput, cereal::AllowEmptyClassElision> {
 public:
  explicit BoundedInput(std::span<const std::byte> bytes) : InputArchive(this), rest_(bytes) {}

  std::size_t remaining() const { return rest_.size(); }
  const std::byte* take(std::size_t bytes) {
    if (bytes > rest_.size()) throw_truncated(bytes);
    const std::byte* at = rest_.data();
    rest_ = rest_.subspan(bytes);
    return at;
  }
  /// Number of elements that follow, each of at least `min_element` bytes on the wire.
  std::size_t take_length(std::size_t min_element);
  void expect_end() const;

  /// Bounds the nesting of containers while it lives.
  class Nested {
   public:
    explicit Nested(BoundedInput& in) : in_(in) {
      if (++in_.depth_ > kMaxDepth) throw_too_deep();
    }
    ~Nested() { --in_.depth_; }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;

   private:
    BoundedInput& in_;
  };

  [[noreturn]] static void throw_bad_value(const std::string& what);

 private:
  [[noreturn]] void throw_truncated(std::size_t wanted) const;
  [[noreturn]] static void throw_too_deep();

  std::span<const std::byte> rest_;
  int depth_ = 0;
};

}  // namespace troupe::wire

#include "transport/wire/archive_types.h"

CEREAL_REGISTER_ARCHIVE(troupe::wire::BoundedOutput)
CEREAL_REGISTER_ARCHIVE(troupe::wire::BoundedInput)
CEREAL_SETUP_ARCHIVE_TRAITS(troupe::wire::BoundedInput, troupe::wire::BoundedOutput)
