#include "web/http_metrics.h"

namespace troupe::web {

void HttpMetrics::answered(const std::string& route, int status, double seconds) {
  seconds_.try_emplace(route, kBounds).first->second.add(seconds);
  ++answers_[{route, status}];
}

void HttpMetrics::write(MetricsText& out) const {
  out.histogram("troupe_http_request_seconds",
                "From a request's beginning to its answer, or to the beginning of its stream.");
  for (const auto& [route, seconds] : seconds_)
    out.sample(seconds, {{"route", route}});
  out.counter("troupe_http_answers_total", "Requests that were answered.");
  for (const auto& [key, count] : answers_)
    out.sample(static_cast<double>(count),
               {{"route", key.first}, {"status", std::to_string(key.second)}});
}

}  // namespace troupe::web
