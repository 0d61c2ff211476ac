#include "web/http_metrics.h"

#include <algorithm>

#include "base/format.h"
#include "base/number_text.h"

namespace troupe::web {

void HttpMetrics::answered(const std::string& route, int status, double seconds) {
  Histogram& histogram = seconds_[route];
  ++histogram.counts[std::lower_bound(kBounds.begin(), kBounds.end(), seconds) - kBounds.begin()];
  histogram.sum += seconds;
  ++answers_[{route, status}];
}

std::string HttpMetrics::text(const std::map<std::string, double>& now) const {
  std::string text =
      "# HELP troupe_http_request_seconds From a request's beginning to its answer, or to the "
      "beginning of its stream.\n# TYPE troupe_http_request_seconds histogram\n";
  for (const auto& [route, histogram] : seconds_) {
    const std::string label = "route=\"" + route + "\"";
    std::uint64_t all = 0;
    for (std::size_t i = 0; i < histogram.counts.size(); ++i) {
      all += histogram.counts[i];
      text += fmt::format("troupe_http_request_seconds_bucket{{{},le=\"{}\"}} {}\n", label,
                          i < kBounds.size() ? number_text(kBounds[i]) : "+Inf", all);
    }
    text += fmt::format(
        "troupe_http_request_seconds_sum{{{}}} {}\ntroupe_http_request_seconds_count{{{}}} {}\n",
        label, number_text(histogram.sum), label, all);
  }
  text +=
      "# HELP troupe_http_answers_total Requests that were answered.\n"
      "# TYPE troupe_http_answers_total counter\n";
  for (const auto& [key, count] : answers_) {
    text += fmt::format("troupe_http_answers_total{{route=\"{}\",status=\"{}\"}} {}\n", key.first,
                        key.second, count);
  }
  for (const auto& [name, value] : now) {
    text += "# TYPE " + name + (name.ends_with("_total") ? " counter\n" : " gauge\n") + name + " " +
            number_text(value) + "\n";
  }
  return text;
}

}  // namespace troupe::web
