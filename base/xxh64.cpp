#include "base/xxh64.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

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

}  // namespace troupe
