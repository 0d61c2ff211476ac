#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "transport/wire/session.h"

namespace troupe::control {

using BlobId = std::uint64_t;  // random, never 0
using BlobBytes = std::shared_ptr<const std::string>;

/// Whole blob, its length and checksum verified, or the failure.
struct BlobResult {
  BlobBytes bytes;  // null on failure
  wire::Failure failure;

  bool ok() const { return bytes != nullptr; }
  explicit operator bool() const { return ok(); }
};
using BlobHandler = std::function<void(BlobResult)>;

/// XXH64 with seed 0, the checksum of blobs.
std::uint64_t blob_checksum(const void* data, std::size_t bytes);

/// Blobs that this process holds for others to fetch. Thread-safe.
class BlobStore {
 public:
  BlobStore();
  ~BlobStore();
  BlobStore(const BlobStore&) = delete;
  BlobStore& operator=(const BlobStore&) = delete;

  BlobId add(std::string bytes);
  BlobId add(BlobBytes bytes);
  /// A range of a file, read piece by piece when asked for; it must not change meanwhile. Reads it
  /// once to sum it up. Throws std::runtime_error when the file cannot be read or is too short.
  BlobId add_file(const std::filesystem::path& file, std::uint64_t offset, std::uint64_t length);

  /// Forgets a blob; fetches of it that are under way fail. False if there is none.
  bool remove(BlobId id);

  struct Info {
    std::uint64_t bytes = 0;
    std::uint64_t checksum = 0;
  };
  std::optional<Info> info(BlobId id) const;
  /// Returns bytes [offset, offset + length), cut at the end of the blob; nothing if there is no
  /// such blob or offset, or its file can no longer be read.
  std::optional<std::string> read(BlobId id, std::uint64_t offset, std::uint32_t length) const;
  /// Returns the whole blob, if it is held in memory.
  BlobBytes bytes(BlobId id) const;
  std::size_t size() const;

 private:
  struct Entry;
  BlobId insert(std::shared_ptr<const Entry> entry);
  std::shared_ptr<const Entry> find(BlobId id) const;

  mutable std::mutex mutex_;
  std::unordered_map<BlobId, std::shared_ptr<const Entry>> entries_;
};

}  // namespace troupe::control
