#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
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

/// Builds the text exposition format of Prometheus, version 0.0.4. Every family once, its samples
/// together.
class MetricsText {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;

  /// Begins a family; `counter` names must end with _total. Source: Prometheus' exposition formats.
  MetricsText& counter(const std::string& name, const std::string& help);
  MetricsText& gauge(const std::string& name, const std::string& help);
  /// Begins a histogram's family. Its samples are the histogram's buckets, sum and count.
  MetricsText& histogram(const std::string& name, const std::string& help);
  /// Adds a sample of the family that was begun last.
  MetricsText& sample(const Histogram& values, const Labels& labels = {});
  MetricsText& sample(double value, const Labels& labels = {});

  const std::string& text() const { return text_; }

 private:
  MetricsText& family(const std::string& name, const std::string& help, const char* type);
  void line(const std::string& name, double value, const Labels& labels);

  std::string text_;
  std::string name_;
};

}  // namespace troupe
