#pragma once
#include <cstdint>
#include <optional>

#include "controller/deployments/environment.h"

namespace troupe::testing {

/// An Environment without stage actors and blobs, of which users' actors ask nothing.
class NoStages : public cluster::Environment {
 public:
  std::optional<double> last_progress(control::PeerId) const override { return std::nullopt; }
  void fetch_blob(std::uint64_t, const wire::BlobRef&, control::Milliseconds,
                  control::BlobHandler) override {}
  control::BlobId keep_blob(control::BlobBytes) override { return 0; }
  void drop_blob(control::BlobId) override {}
  std::uint32_t spawn(const cluster::Actor&, std::uint64_t) override { return 0; }
  void kill(cluster::ActorId, const std::string&) override {}
};

}  // namespace troupe::testing
