#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
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

/// Of the file's bytes. Throws std::runtime_error where it cannot be read.
std::uint64_t xxh64_of(const std::filesystem::path& file);

}  // namespace troupe
