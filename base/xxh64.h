#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace troupe {

/// Hash XXH64 with seed 0, computed piece by piece.
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

/// Returns the hash of the file's bytes. Throws std::runtime_error where the file cannot be read.
std::uint64_t xxh64_of(const std::filesystem::path& file);
/// Returns the hashes of all files in turn, as text, by which two processes tell whether they have
/// the same files.
std::string contents_text(const std::vector<std::filesystem::path>& files);

}  // namespace troupe
