#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>

namespace troupe {

/// XXH64 with seed 0, piece by piece.
class Xxh64 {
 public:
  Xxh64();
  ~Xxh64();
  void update(const void* data, std::size_t bytes);
  std::uint64_t digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace troupe
