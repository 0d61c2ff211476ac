#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

namespace troupe {

/// Counts values by upper bounds, as Prometheus' histograms do.
class Histogram {
 public:
  /// `bounds`: rising; they must live as long as the histogram.
  explicit Histogram(std::span<const double> bounds) : bounds_(bounds), counts_(bounds.size()) {}

  void add(double value) {
    const auto at = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
    if (static_cast<std::size_t>(at) < counts_.size()) ++counts_[static_cast<std::size_t>(at)];
    ++count_;
    sum_ += value;
  }

  std::span<const double> bounds() const { return bounds_; }
  /// Number of values per bound: those that were not above it, but above the bound before.
  const std::vector<std::uint64_t>& counts() const { return counts_; }
  std::uint64_t count() const { return count_; }  // number of all values
  double sum() const { return sum_; }

 private:
  std::span<const double> bounds_;
  std::vector<std::uint64_t> counts_;
  std::uint64_t count_ = 0;
  double sum_ = 0;
};

}  // namespace troupe
