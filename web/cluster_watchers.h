#pragma once
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

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

}  // namespace troupe::web
