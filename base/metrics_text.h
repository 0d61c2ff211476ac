#pragma once
#include <string>
#include <utility>
#include <vector>

#include "base/histogram.h"

namespace troupe {

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
