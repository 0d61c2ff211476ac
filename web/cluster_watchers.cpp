#include "web/cluster_watchers.h"

#include <vector>

#include "web/api_error.h"

namespace troupe::web {
namespace {

constexpr double kToldAgainAfter = 15;
constexpr std::size_t kMostRecent = 4000;

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

const Piece& PipelineWatchers::event(EventOfKey& events, double now, const Slices& slices,
                                     const KeyHolder& caller) const {
  Piece& event = events[caller.name];
  if (event) return event;
  auto seen = nlohmann::json::array();
  for (const auto& slice : slices)
    seen.push_back(seen_(slice, caller));
  event = piece(event_text("slices", json_text({{"now", now}, {"slices", std::move(seen)}})));
  return event;
}

void PipelineWatchers::add(const ReplyPtr& reply, std::shared_ptr<const KeyHolder> caller) {
  if (empty()) recent_.assign(recent_.size(), {});
  const auto number = ++last_;
  reply->begin(event_stream(), kHeartbeat);
  for (Recent& of : recent_)
    if (!of.slices.empty()) reply->write(event(of.begins, of.now, of.slices, *caller), true);
  watchers_[number] = {reply, std::move(caller)};
  reply->on_gone([self = shared_from_this(), number] { self->watchers_.erase(number); });
}

void PipelineWatchers::came(std::size_t cluster, double now, Slices fresh, bool is_anew) {
  Recent& of = recent_.at(cluster);
  const auto is_old = [&](const nlohmann::json& slice) {
    return slice.value("end", 0.0) < now - kRecent;
  };
  std::erase_if(fresh, is_old);
  if (is_anew) of.slices.clear();
  of.now = now;
  of.begins.clear();
  of.slices.insert(of.slices.end(), fresh.begin(), fresh.end());
  while (!of.slices.empty() && (of.slices.size() > kMostRecent || is_old(of.slices.front())))
    of.slices.pop_front();
  EventOfKey events;
  // Who falls behind is cut off, and then no more in the list.
  for (const auto& [number, watcher] : std::map(watchers_))
    watcher.reply->write(event(events, now, fresh, *watcher.caller), true);
}

}  // namespace troupe::web
