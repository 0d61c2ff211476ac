#include "controller/plan/ways.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "controller/mesh/placement.h"

namespace troupe::plan {
namespace {

/// What ranks send to their peers, the worst of it where hosts lie between them.
class Sent {
 public:
  Sent(const std::vector<int>& host_of, const Machine& machine)
      : host_of_(host_of),
        machine_(machine),
        senders_(static_cast<std::size_t>(std::ranges::max(host_of)) + 1) {}

  /// The rank sends to so many, of which `outside` are on other hosts.
  void add(int rank, int peers, int outside) {
    if (outside == 0) return;
    const int senders = ++senders_[static_cast<std::size_t>(host_of_[rank])];
    sharing_ = std::max(sharing_, senders);
    most_outside_ = std::max(most_outside_, static_cast<double>(outside) / peers);
  }

  Way way() const {
    Way way{machine_.inside.latency, 1 / machine_.inside.bandwidth};
    if (sharing_ == 0) return way;
    way.latency = std::max(machine_.inside.latency, machine_.between.latency);
    way.seconds_per_byte = std::max((1 - most_outside_) / machine_.inside.bandwidth,
                                    most_outside_ * sharing_ / machine_.between.bandwidth);
    return way;
  }

 private:
  const std::vector<int>& host_of_;
  const Machine& machine_;
  std::vector<int> senders_;  // by host: ranks that send to another one
  int sharing_ = 0;           // the most of these
  double most_outside_ = 0;   // part of a rank's peers
};

}  // namespace

std::vector<int> hosts_of_ranks(const mesh::Degrees& degrees, const Machine& machine) {
  const int world = degrees.world();
  auto rooms = machine.hosts;
  if (rooms.empty()) {
    const int devices = std::max(machine.devices, world);
    rooms.assign((devices - 1) / machine.devices_per_host + 1, machine.devices_per_host);
  }
  const int room = std::accumulate(rooms.begin(), rooms.end(), 0);
  rooms.back() += std::max(world - room, 0);
  return mesh::place_on_hosts(degrees, std::move(rooms));
}

Ways ways_of(const mesh::Degrees& degrees, const Machine& machine) {
  const mesh::Mesh mesh(degrees);
  const auto host_of = hosts_of_ranks(degrees, machine);
  const int world = degrees.world();
  const auto along = [&](mesh::Axis axis) {
    Sent sent(host_of, machine);
    std::vector<bool> seen(static_cast<std::size_t>(world));
    for (int first = 0; first < world; ++first) {
      if (seen[static_cast<std::size_t>(first)]) continue;
      const auto group = mesh.group_of(axis, first);
      std::map<int, int> on_host;
      for (const int rank : group)
        ++on_host[host_of[rank]];
      const int size = static_cast<int>(group.size());
      for (const int rank : group) {
        seen[static_cast<std::size_t>(rank)] = true;
        sent.add(rank, size - 1, size - on_host[host_of[rank]]);
      }
    }
    return sent.way();
  };
  /// To the next stage; from the last one back to the first where `back` is set.
  const auto along_stages = [&](bool back) {
    Sent sent(host_of, machine);
    for (int rank = 0; rank < world && degrees.pp > 1; ++rank) {
      auto at = mesh.coordinates(rank);
      const bool last = at.pp == degrees.pp - 1;
      if (last != back) continue;
      at.pp = last ? 0 : at.pp + 1;
      sent.add(rank, 1, host_of[mesh.rank(at)] != host_of[rank] ? 1 : 0);
    }
    return sent.way();
  };
  /// Whether a group has ranks at both sockets of a host.
  const auto crosses_sockets = [&](mesh::Axis axis) {
    if (machine.devices_per_socket == 0) return false;
    std::map<int, int> on_host;
    std::vector<int> socket_of;
    for (const int host : host_of)
      socket_of.push_back(on_host[host]++ / machine.devices_per_socket);
    for (int rank = 0; rank < degrees.world(); ++rank) {
      for (const int peer : mesh.group_of(axis, rank)) {
        if (host_of[peer] == host_of[rank] && socket_of[peer] != socket_of[rank]) return true;
      }
    }
    return false;
  };
  Ways ways;
  ways.ulysses = along(mesh::Axis::ulysses);
  // Where each sends to each, all pairs between the sockets share the one way between them.
  if (degrees.ulysses > 2 && crosses_sockets(mesh::Axis::ulysses)) {
    ways.ulysses.seconds_per_byte = std::max(
        ways.ulysses.seconds_per_byte, 1 / (machine.inside.bandwidth * machine.across_sockets));
  }
  ways.ring = along(mesh::Axis::ring);
  ways.tp = along(mesh::Axis::tp);
  ways.cfg = along(mesh::Axis::cfg);
  const auto worse = [](const Way& a, const Way& b) {
    return Way{std::max(a.latency, b.latency), std::max(a.seconds_per_byte, b.seconds_per_byte)};
  };
  ways.heads = worse(ways.ulysses, ways.tp);
  ways.stage = worse(ways.heads, ways.ring);
  ways.edge = along_stages(false);
  ways.feedback = along_stages(true);
  return ways;
}

}  // namespace troupe::plan
