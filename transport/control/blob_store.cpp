#include "transport/control/blob_store.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <vector>

#include "base/error_text.h"
#include "base/files.h"
#include "base/format.h"
#include "base/xxh64.h"
#include "transport/control/types.h"

namespace troupe::control {
namespace {

/// Reads bytes of a file. False at an error or an early end of the file.
bool read_at(int file, std::uint64_t offset, char* out, std::size_t bytes) {
  while (bytes > 0) {
    const ssize_t got = ::pread(file, out, bytes, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    out += got;
    offset += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

}  // namespace

std::uint64_t blob_checksum(const void* data, std::size_t bytes) {
  Xxh64 hash;
  hash.update(data, bytes);
  return hash.digest();
}

struct BlobStore::Entry {
  Info info;
  BlobBytes bytes;  // or:
  FileHandle file;
  std::uint64_t file_offset = 0;
};

BlobStore::BlobStore() = default;
BlobStore::~BlobStore() = default;

BlobId BlobStore::add(std::string bytes) {
  return add(std::make_shared<const std::string>(std::move(bytes)));
}

BlobId BlobStore::add(BlobBytes bytes) {
  auto entry = std::make_shared<Entry>();
  entry->info = {bytes->size(), blob_checksum(bytes->data(), bytes->size())};
  entry->bytes = std::move(bytes);
  return insert(std::move(entry));
}

BlobId BlobStore::add_file(const std::filesystem::path& file, std::uint64_t offset,
                           std::uint64_t length) {
  auto entry = std::make_shared<Entry>();
  entry->file = FileHandle(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (!entry->file) {
    throw std::runtime_error("[blob] " + file.string() + ": " + error_text(errno));
  }
  entry->file_offset = offset;
  Xxh64 hash;
  std::vector<char> piece(1u << 20);
  for (std::uint64_t done = 0; done < length;) {
    const std::size_t take =
        static_cast<std::size_t>(std::min<std::uint64_t>(piece.size(), length - done));
    if (!read_at(entry->file.get(), offset + done, piece.data(), take)) {
      throw std::runtime_error(fmt::format("[blob] {}: cannot read bytes {} to {}", file.string(),
                                           offset + done, offset + done + take));
    }
    hash.update(piece.data(), take);
    done += take;
  }
  entry->info = {length, hash.digest()};
  return insert(std::move(entry));
}

BlobId BlobStore::insert(std::shared_ptr<const Entry> entry) {
  const std::lock_guard lock(mutex_);
  BlobId id = random_incarnation();
  while (!entries_.emplace(id, entry).second)
    id = random_incarnation();
  return id;
}

std::shared_ptr<const BlobStore::Entry> BlobStore::find(BlobId id) const {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(id);
  return found == entries_.end() ? nullptr : found->second;
}

bool BlobStore::remove(BlobId id) {
  const std::lock_guard lock(mutex_);
  return entries_.erase(id) > 0;
}

std::optional<BlobStore::Info> BlobStore::info(BlobId id) const {
  const auto entry = find(id);
  if (!entry) return std::nullopt;
  return entry->info;
}

std::optional<std::string> BlobStore::read(BlobId id, std::uint64_t offset,
                                           std::uint32_t length) const {
  const auto entry = find(id);
  if (!entry || offset > entry->info.bytes) return std::nullopt;
  const auto take =
      static_cast<std::size_t>(std::min<std::uint64_t>(length, entry->info.bytes - offset));
  if (entry->bytes) return entry->bytes->substr(static_cast<std::size_t>(offset), take);
  std::string piece(take, '\0');
  if (!read_at(entry->file.get(), entry->file_offset + offset, piece.data(), take))
    return std::nullopt;
  return piece;
}

BlobBytes BlobStore::bytes(BlobId id) const {
  const auto entry = find(id);
  return entry ? entry->bytes : nullptr;
}

std::size_t BlobStore::size() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

}  // namespace troupe::control
