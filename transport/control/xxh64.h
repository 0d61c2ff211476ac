#pragma once
#include <array>
#include <cstddef>
#include <cstdint>

namespace troupe::control {

/// XXH64 with seed 0, piece by piece.
/// Source: the xxHash specification, https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
class Xxh64 {
 public:
  Xxh64();
  void update(const void* data, std::size_t bytes);
  std::uint64_t digest() const;

 private:
  static constexpr std::size_t kStripe = 32;
  void stripe(const std::byte* at);

  std::array<std::uint64_t, 4> lanes_;
  std::array<std::byte, kStripe> pending_{};
  std::size_t pending_bytes_ = 0;
  std::uint64_t total_ = 0;
};

}  // namespace troupe::control
