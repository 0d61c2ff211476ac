#pragma once
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "transport/control/blob_store.h"
#include "transport/wire/job.h"

namespace troupe::actors {

/// Blobs that are left for others to fetch, and go with their publisher.
class PublishedBlobs {
 public:
  explicit PublishedBlobs(control::BlobStore& store) : store_(store) {}
  ~PublishedBlobs();
  PublishedBlobs(const PublishedBlobs&) = delete;
  PublishedBlobs& operator=(const PublishedBlobs&) = delete;

  wire::BlobRef publish(const std::string& name, std::string bytes,
                        std::vector<std::int64_t> shape);
  /// Adds the blob to its kind, of which all but the newest `most` are forgotten.
  wire::BlobRef keep_newest(std::deque<control::BlobId>& kind, wire::BlobRef blob,
                            std::size_t most);

 private:
  control::BlobStore& store_;
  std::vector<control::BlobId> published_;
};

}  // namespace troupe::actors
