#pragma once
#include <array>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "web/api_keys.h"
#include "web/http_message.h"

namespace troupe::web {

/// Streams that tell how the clusters are. There are two readings of that, by whether the watcher
/// has the role operate; each is made once for a change, however many watch. On the loop.
class ClusterWatchers : public std::enable_shared_from_this<ClusterWatchers> {
 public:
  using Document = std::function<nlohmann::json(bool operate)>;
  explicit ClusterWatchers(Document document) : document_(std::move(document)) {}

  bool empty() const { return readings_[0].watchers.empty() && readings_[1].watchers.empty(); }
  /// Begins a stream with what is known. `now` in seconds.
  void add(const ReplyPtr& reply, bool operate, double now);
  /// Something may have changed: it is told if it has, or was told last a while ago, which a slow
  /// reader may have lost.
  void update(double now);

 private:
  struct Reading {
    std::map<std::uint64_t, ReplyPtr> watchers;
    Piece event;       // the newest one
    std::string same;  // the document without what always changes
    double told_at = 0;
  };
  /// Makes the newest event. False if nothing has changed.
  bool make(Reading& reading, bool operate, double now) const;

  Document document_;
  std::array<Reading, 2> readings_;  // by whether it is that of the role operate
  std::uint64_t last_ = 0;
};

/// Streams of what actors were inside: the micro-steps of the last seconds, then those that come.
/// An event is written down once for each key, however many streams the key has. On the loop.
class PipelineWatchers : public std::enable_shared_from_this<PipelineWatchers> {
 public:
  using Slices = std::deque<nlohmann::json>;
  /// Returns a slice as the caller may see it.
  using Seen = std::function<nlohmann::json(nlohmann::json slice, const KeyHolder& caller)>;
  static constexpr double kRecent = 10;  // seconds

  PipelineWatchers(std::size_t clusters, Seen seen) : seen_(std::move(seen)), recent_(clusters) {}

  bool empty() const { return watchers_.empty(); }
  /// Begins a stream with what is known. The first stream begins with nothing.
  void add(const ReplyPtr& reply, std::shared_ptr<const KeyHolder> caller);
  /// Tells new slices of a cluster, whose clock says `now`. `is_anew`: earlier ones are of a
  /// controller that is gone.
  void came(std::size_t cluster, double now, Slices fresh, bool is_anew);

 private:
  using EventOfKey = std::map<std::string, Piece>;
  struct Recent {
    double now = 0;
    Slices slices;
    EventOfKey begins;  // what a stream begins with
  };
  struct Watcher {
    ReplyPtr reply;
    std::shared_ptr<const KeyHolder> caller;
  };
  const Piece& event(EventOfKey& events, double now, const Slices& slices,
                     const KeyHolder& caller) const;

  Seen seen_;
  std::vector<Recent> recent_;  // of each cluster
  std::map<std::uint64_t, Watcher> watchers_;
  std::uint64_t last_ = 0;
};

}  // namespace troupe::web
