#include "web/cluster_watchers.h"

#include <vector>

#include "web/api_error.h"

namespace troupe::web {
namespace {

constexpr double kToldAgainAfter = 15;

}  // namespace

bool ClusterWatchers::make(Reading& reading, bool operate, double now) const {
  auto document = document_(operate);
  const std::string text = json_text(document);
  document.erase("uptime_seconds");
  std::string same = json_text(document);
  if (same == reading.same && now < reading.told_at + kToldAgainAfter) return false;
  reading.event = piece(event_text("cluster", text));
  reading.same = std::move(same);
  reading.told_at = now;
  return true;
}

void ClusterWatchers::add(const ReplyPtr& reply, bool operate, double now) {
  Reading& reading = readings_[operate];
  if (reading.watchers.empty()) make(reading, operate, now);
  const auto number = ++last_;
  reply->begin(event_stream(), kHeartbeat);
  reading.watchers[number] = reply;
  reply->on_gone([self = shared_from_this(), operate, number] {
    self->readings_[operate].watchers.erase(number);
  });
  reply->write(reading.event, true);
}

void ClusterWatchers::update(double now) {
  for (const bool operate : {false, true}) {
    Reading& reading = readings_[operate];
    if (reading.watchers.empty() || !make(reading, operate, now)) continue;
    // Who falls behind is cut off, and then no more in the list.
    std::vector<ReplyPtr> watchers;
    for (const auto& [number, reply] : reading.watchers)
      watchers.push_back(reply);
    for (const auto& reply : watchers)
      reply->write(reading.event, true);
  }
}

}  // namespace troupe::web
