#include "controller/plan/link_cost.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "controller/mesh/placement.h"

namespace troupe::plan {
namespace {

/// Ranks along an axis: the steps between neighbours and their number. The axis' groups are
/// `first`, `first + stride`, and so on.
struct AxisStride {
  int stride, degree;

  int span() const { return stride * degree; }
};

/// Ranks on their hosts, as those see them who send along an axis.
class Placed {
 public:
  Placed(const mesh::Degrees& degrees, const Machine& machine)
      : machine_(machine),
        host_of_(hosts_of_ranks(degrees, machine)),
        world_(static_cast<int>(host_of_.size())),
        on_host_(static_cast<std::size_t>(std::ranges::max(host_of_)) + 1),
        senders_(on_host_.size()),
        run_end_(host_of_.size()) {
    int end = world_;
    for (int rank = world_ - 1; rank >= 0; --rank) {
      run_end_[rank] = end;
      if (rank > 0 && host_of_[rank - 1] != host_of_[rank]) end = rank;
    }
  }

  /// Returns the way of ranks that each send to all others of their group.
  LinkCost to_group(const AxisStride& axis) {
    if (axis.degree == 1 || run_end_[0] == world_) return way(0);
    int most = 0;
    std::ranges::fill(senders_, 0);
    for (int block = 0; block < world_; block += axis.span()) {
      if (run_end_[block] >= block + axis.span()) continue;
      for (int first = block, alike = 0; first < block + axis.stride; first += alike) {
        const int end = first + axis.span();
        alike = block + axis.stride - first;  // groups that lie on the same hosts as this one
        for (int rank = first; rank < end; rank += axis.stride) {
          ++on_host_[host_of_[rank]];
          alike = std::min(alike, run_end_[rank] - rank);
        }
        for (int rank = first; rank < end; rank += axis.stride) {
          const int outside = axis.degree - on_host_[host_of_[rank]];
          if (outside > 0) senders_[host_of_[rank]] += alike;
          most = std::max(most, outside);
        }
        for (int rank = first; rank < end; rank += axis.stride)
          on_host_[host_of_[rank]] = 0;
      }
    }
    return way(static_cast<double>(most) / (axis.degree - 1));
  }

  /// Returns the way of ranks that each send to the next of their line; where `back` is set, of the
  /// last to the first.
  LinkCost to_next(const AxisStride& axis, bool back) {
    if (axis.degree == 1 || run_end_[0] == world_) return way(0);
    std::ranges::fill(senders_, 0);
    const int before_last = axis.span() - axis.stride;
    const int step = back ? -before_last : axis.stride;
    bool outside = false;
    for (int block = 0; block < world_; block += axis.span()) {
      const int first = block + (back ? before_last : 0);
      const int end = block + (back ? axis.span() : before_last);
      for (int rank = first; rank < end; ++rank) {
        if (host_of_[rank] == host_of_[rank + step]) continue;
        ++senders_[host_of_[rank]];
        outside = true;
      }
    }
    return way(outside ? 1 : 0);
  }

  /// Returns whether a group has ranks at both sockets of a host.
  bool crosses_sockets(const AxisStride& axis) {
    if (machine_.devices_per_socket == 0) return false;
    std::vector<int> socket_of;
    for (const int host : host_of_)
      socket_of.push_back(on_host_[host]++ / machine_.devices_per_socket);
    std::ranges::fill(on_host_, 0);
    std::vector<int> group_on(on_host_.size(), -1), socket_on(on_host_.size());
    for (int block = 0; block < world_; block += axis.span()) {
      for (int first = block; first < block + axis.stride; ++first) {
        for (int rank = first; rank < first + axis.span(); rank += axis.stride) {
          const int host = host_of_[rank];
          if (std::exchange(group_on[host], first) != first) socket_on[host] = socket_of[rank];
          if (socket_on[host] != socket_of[rank]) return true;
        }
      }
    }
    return false;
  }

 private:
  /// Returns the way of ranks of whose peers at most this part are on other hosts, each host with
  /// its senders.
  LinkCost way(double most_outside) const {
    LinkCost way{machine_.inside.latency, 1 / machine_.inside.bandwidth};
    if (most_outside == 0) return way;
    way.latency = std::max(machine_.inside.latency, machine_.between.latency);
    way.seconds_per_byte =
        std::max((1 - most_outside) / machine_.inside.bandwidth,
                 most_outside * std::ranges::max(senders_) / machine_.between.bandwidth);
    return way;
  }

  const Machine& machine_;
  const std::vector<int> host_of_;
  const int world_;
  std::vector<int> on_host_;  // of a group's ranks; all 0 between two groups
  std::vector<int> senders_;  // by host: ranks that send to another one
  std::vector<int> run_end_;  // by rank: up to where ranks are on its host
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

LinkCosts link_costs_of(const mesh::Degrees& degrees, const Machine& machine) {
  Placed placed(degrees, machine);
  const AxisStride tp{1, degrees.tp}, ulysses{tp.span(), degrees.ulysses};
  const AxisStride ring{ulysses.span(), degrees.ring}, pp{ring.span(), degrees.pp};
  const AxisStride cfg{pp.span(), degrees.cfg};
  LinkCosts link_costs;
  link_costs.ulysses = placed.to_group(ulysses);
  // Where each sends to each, all pairs between the sockets share the one way between them.
  if (degrees.ulysses > 2 && placed.crosses_sockets(ulysses)) {
    link_costs.ulysses.seconds_per_byte =
        std::max(link_costs.ulysses.seconds_per_byte,
                 1 / (machine.inside.bandwidth * machine.across_sockets));
  }
  link_costs.ring = placed.to_group(ring);
  link_costs.tp = placed.to_group(tp);
  link_costs.cfg = placed.to_group(cfg);
  const auto worse = [](const LinkCost& a, const LinkCost& b) {
    return LinkCost{std::max(a.latency, b.latency),
                    std::max(a.seconds_per_byte, b.seconds_per_byte)};
  };
  link_costs.heads = worse(link_costs.ulysses, link_costs.tp);
  link_costs.stage = worse(link_costs.heads, link_costs.ring);
  link_costs.edge = placed.to_next(pp, false);
  link_costs.feedback = placed.to_next(pp, true);
  return link_costs;
}

}  // namespace troupe::plan
