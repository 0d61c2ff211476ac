#pragma once
#include <cstdint>
#include <string>

#include "transport/wire/kind.h"

namespace troupe::wire {

/// Fetcher → holder, on the blob channel: bytes [offset, offset + length) of a blob, fewer at its
/// end. Answered by BlobChunk or Failure (not_found, bad_request).
struct BlobRequest {
  static constexpr Kind kKind = Kind::blob_request;
  std::uint64_t id = 0;
  std::uint64_t offset = 0;
  std::uint32_t length = 0;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(id, offset, length);
  }
};

struct BlobChunk {
  static constexpr Kind kKind = Kind::blob_chunk;
  std::uint64_t total = 0;     // bytes of the whole blob
  std::uint64_t checksum = 0;  // XXH64 of the whole blob, seed 0
  std::uint64_t offset = 0;
  std::string data;

  template <class Archive>
  void serialize(Archive& ar) {
    ar(total, checksum, offset, data);
  }
};

}  // namespace troupe::wire
