#pragma once
#include <string>
#include <vector>

#include "tests/process/support/compare.h"
#include "tests/process/support/shared_cluster.h"

namespace troupe::testing {

inline constexpr double kSameBound = 1e-5;  // of the range of the single actor's latents

/// Results of a row of comparisons.
struct Seen {
  Worst latents, levels, seconds;
  double total = 0;

  std::string text() const;
};

/// A request's pictures by one actor, which other degrees are held against.
class SamePicture {
 public:
  /// Runs `submission` on one actor of `cluster`; `seen` outlives this.
  SamePicture(SharedCluster& cluster, Submission submission, Seen& seen);

  /// Runs it at `degrees`: latents within 1e-5 of range, pictures within one level.
  JobResult check_at(const Parallelism& degrees);
  const Latents& latents() const { return latents_; }

 private:
  SharedCluster& cluster_;
  Submission submission_;
  Seen& seen_;
  Latents latents_;
  std::vector<Bytes> pictures_;
};

}  // namespace troupe::testing
