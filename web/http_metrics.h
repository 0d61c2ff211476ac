#pragma once
#include <array>
#include <cstdint>
#include <map>
#include <string>

#include "base/metrics_text.h"

namespace troupe::web {

/// Counts of the gateway's requests. Pure.
class HttpMetrics {
 public:
  /// A request was answered, or its stream begun. `route`: the pattern, of which there are few.
  void answered(const std::string& route, int status, double seconds);
  void write(MetricsText& out) const;

 private:
  static constexpr std::array<double, 12> kBounds = {0.001, 0.003, 0.01, 0.03, 0.1, 0.3,
                                                     1,     3,     10,   30,   100, 300};
  std::map<std::string, Histogram> seconds_;
  std::map<std::pair<std::string, int>, std::uint64_t> answers_;
};

}  // namespace troupe::web
