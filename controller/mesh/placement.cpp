#include "controller/mesh/placement.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/format.h"

namespace troupe::mesh {
namespace {

constexpr int kNowhere = -1;

/// Room that hosts have left, and which has most: the first of equal ones.
class Rooms {
 public:
  explicit Rooms(std::vector<int> rooms) : rooms_(std::move(rooms)) {
    std::vector<Entry> entries;
    for (int host = 0; host < static_cast<int>(rooms_.size()); ++host)
      entries.emplace_back(rooms_[host], -host);
    by_room_ = std::priority_queue<Entry>({}, std::move(entries));
  }

  /// Chooses a host for a run of `size` ranks, of `left` that have no place yet.
  int host_for(int size, int left) {
    if (last_ != kNowhere && rooms_[last_] >= size) return last_;
    const int most = roomiest();
    if (rooms_[most] < size) return kNowhere;
    if (rooms_[most] < left) return most;
    int whole = most;
    for (int host = 0; host < static_cast<int>(rooms_.size()); ++host) {
      const bool takes_all = rooms_[host] >= left;
      if (takes_all && std::pair(rooms_[host], host) < std::pair(rooms_[whole], whole))
        whole = host;
    }
    return whole;
  }

  /// Takes room for as many of so many runs of `size` as fit; returns how many those are.
  int take(int host, int size, int runs) {
    const int fit = std::min(rooms_[host] / size, runs);
    rooms_[host] -= fit * size;
    last_ = host;
    return fit;
  }

 private:
  using Entry = std::pair<int, int>;  // room, and minus the host

  int roomiest() {
    for (;;) {
      const auto [room, host] = by_room_.top();
      if (rooms_[-host] == room) return -host;
      by_room_.pop();
      by_room_.emplace(rooms_[-host], host);
    }
  }

  std::vector<int> rooms_;
  std::priority_queue<Entry> by_room_;  // as they were when they were looked at last
  int last_ = kNowhere;                 // taken from
};

}  // namespace

std::vector<int> place_on_hosts(const Degrees& degrees, std::vector<int> rooms) {
  const int world = degrees.world();
  if (const int room = std::accumulate(rooms.begin(), rooms.end(), 0); room < world) {
    throw std::invalid_argument(
        fmt::format("[mesh] {} ranks are too many for {} places", world, room));
  }
  Rooms free(std::move(rooms));
  std::vector<int> host_of(world, kNowhere);
  std::vector<int> homeless = {0};  // the first ranks of runs that lie nowhere yet
  int before = world;               // how long these are
  int left = world;
  const int stage = degrees.sp() * degrees.tp;
  for (const int size : {world, world / degrees.dp, degrees.pp * stage, stage,
                         degrees.ulysses * degrees.tp, degrees.tp, 1}) {
    std::vector<int> still;
    for (const int run : homeless) {
      for (int first = run; first < run + before;) {
        const int host = free.host_for(size, left);
        if (host == kNowhere) {
          still.push_back(first);
          first += size;
          continue;
        }
        const int taken = size * free.take(host, size, (run + before - first) / size);
        std::fill_n(host_of.begin() + first, taken, host);
        first += taken;
        left -= taken;
      }
    }
    homeless = std::move(still);
    before = size;
  }
  return host_of;
}

}  // namespace troupe::mesh
