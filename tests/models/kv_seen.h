#pragma once
#include <ostream>
#include <vector>

#include "models/dit/kv_store.h"

namespace troupe::models::testing {

/// A run of kept tokens that is attended to.
struct Seen {
  TokenRun run;
  int version;
  bool extrapolated;
  bool operator==(const Seen&) const = default;
};

inline std::ostream& operator<<(std::ostream& out, const Seen& seen) {
  return out << seen.run.begin << "-" << seen.run.end << " version " << seen.version
             << (seen.extrapolated ? " extrapolated" : "");
}

inline std::vector<Seen> seen(const KvStore& store, int step, const TokenRuns& fresh) {
  std::vector<Seen> all;
  for (const auto& choice : store.choose(0, step, fresh))
    all.push_back({choice.run, choice.version, choice.extrapolated});
  return all;
}

}  // namespace troupe::models::testing
