#include "base/xxh64.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <fstream>
#include <stdexcept>
#include <vector>

#include "base/format.h"

namespace troupe {

struct Xxh64::State {
  XXH64_state_t xxh;
};

Xxh64::Xxh64() : state_(std::make_unique<State>()) {
  XXH64_reset(&state_->xxh, 0);
}

Xxh64::~Xxh64() = default;

void Xxh64::update(const void* data, std::size_t bytes) {
  XXH64_update(&state_->xxh, data, bytes);
}

std::uint64_t Xxh64::digest() const {
  return XXH64_digest(&state_->xxh);
}

std::uint64_t xxh64_of(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  Xxh64 hash;
  std::vector<char> piece(1u << 20);
  while (in.read(piece.data(), static_cast<std::streamsize>(piece.size())), in.gcount() > 0)
    hash.update(piece.data(), static_cast<std::size_t>(in.gcount()));
  if (!in.eof()) throw std::runtime_error(file.string() + ": cannot be read");
  return hash.digest();
}

std::string contents_text(const std::vector<std::filesystem::path>& files) {
  std::string text;
  for (const auto& file : files)
    text += fmt::format("{:016x}", xxh64_of(file));
  return text;
}

}  // namespace troupe
