#include "actors/stage/published_blobs.h"

#include <utility>

namespace troupe::actors {

PublishedBlobs::~PublishedBlobs() {
  for (const auto id : published_)
    store_.remove(id);
}

wire::BlobRef PublishedBlobs::publish(const std::string& name, std::string bytes,
                                      std::vector<std::int64_t> shape) {
  wire::BlobRef ref{.name = name, .id = 0, .bytes = bytes.size(), .shape = std::move(shape)};
  ref.id = store_.add(std::move(bytes));
  published_.push_back(ref.id);
  return ref;
}

wire::BlobRef PublishedBlobs::keep_newest(std::deque<control::BlobId>& kind, wire::BlobRef blob,
                                          std::size_t most) {
  kind.push_back(blob.id);
  if (kind.size() > most) {
    store_.remove(kind.front());
    std::erase(published_, kind.front());
    kind.pop_front();
  }
  return blob;
}

}  // namespace troupe::actors
