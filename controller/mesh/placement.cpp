#include "controller/mesh/placement.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>

#include "base/format.h"

namespace troupe::mesh {
namespace {

constexpr int kNowhere = -1;

/// For a run of `size` ranks, of `left` that have no place yet.
int host_for(int size, int left, const std::vector<int>& rooms, int last) {
  if (last != kNowhere && rooms[last] >= size) return last;
  int whole = kNowhere;
  int roomiest = kNowhere;
  for (int host = 0; host < static_cast<int>(rooms.size()); ++host) {
    if (rooms[host] < size) continue;
    if (rooms[host] >= left && (whole == kNowhere || rooms[host] < rooms[whole])) whole = host;
    if (roomiest == kNowhere || rooms[host] > rooms[roomiest]) roomiest = host;
  }
  return whole != kNowhere ? whole : roomiest;
}

}  // namespace

std::vector<int> place_on_hosts(const Degrees& degrees, std::vector<int> rooms) {
  const int world = degrees.world();
  if (const int room = std::accumulate(rooms.begin(), rooms.end(), 0); room < world) {
    throw std::invalid_argument(
        fmt::format("[mesh] {} ranks are too many for {} places", world, room));
  }
  std::vector<int> host_of(world, kNowhere);
  std::vector<int> homeless = {0};  // the first ranks of runs that lie nowhere yet
  int before = world;               // how long these are
  int left = world;
  int last = kNowhere;
  const int stage = degrees.sp() * degrees.tp;
  for (const int size : {world, world / degrees.dp, degrees.pp * stage, stage,
                         degrees.ulysses * degrees.tp, degrees.tp, 1}) {
    std::vector<int> still;
    for (const int run : homeless) {
      for (int first = run; first < run + before; first += size) {
        const int host = host_for(size, left, rooms, last);
        if (host == kNowhere) {
          still.push_back(first);
          continue;
        }
        std::fill_n(host_of.begin() + first, size, host);
        rooms[host] -= size;
        left -= size;
        last = host;
      }
    }
    homeless = std::move(still);
    before = size;
  }
  return host_of;
}

}  // namespace troupe::mesh
