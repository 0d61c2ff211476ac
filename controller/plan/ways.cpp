#include "controller/plan/ways.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "controller/mesh/placement.h"

namespace troupe::plan {
namespace {

/// `peers_of(rank)`: whom it sends to.
template <class PeersOf>
Way worst_way(const std::vector<int>& host_of, const Machine& machine, const PeersOf& peers_of) {
  const auto host = [&](int rank) { return host_of[rank]; };
  const int world = static_cast<int>(host_of.size());
  Way way{machine.inside.latency, 1 / machine.inside.bandwidth};
  if (std::ranges::count(host_of, host_of.front()) == world) return way;
  double most_outside = 0;
  std::map<int, int> senders;  // by host: ranks that send to another one
  for (int rank = 0; rank < world; ++rank) {
    const auto peers = peers_of(rank);
    const auto outside = std::count_if(peers.begin(), peers.end(),
                                       [&](int peer) { return host(peer) != host(rank); });
    if (outside == 0) continue;
    ++senders[host(rank)];
    most_outside =
        std::max(most_outside, static_cast<double>(outside) / static_cast<double>(peers.size()));
  }
  int sharing = 0;
  for (const auto& [where, count] : senders)
    sharing = std::max(sharing, count);
  if (sharing == 0) return way;
  way.latency = std::max(machine.inside.latency, machine.between.latency);
  way.seconds_per_byte = std::max((1 - most_outside) / machine.inside.bandwidth,
                                  most_outside * sharing / machine.between.bandwidth);
  return way;
}

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
  const auto along = [&](mesh::Axis axis) {
    return worst_way(host_of, machine, [&](int rank) {
      auto peers = mesh.group_of(axis, rank);
      std::erase(peers, rank);
      return peers;
    });
  };
  /// To the next stage; from the last one back to the first where `back` is set.
  const auto along_stages = [&](bool back) {
    return worst_way(host_of, machine, [&](int rank) {
      auto at = mesh.coordinates(rank);
      const bool last = at.pp == degrees.pp - 1;
      if (last != back || degrees.pp == 1) return std::vector<int>{};
      at.pp = last ? 0 : at.pp + 1;
      return std::vector<int>{mesh.rank(at)};
    });
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
