#include "transport/control/pending_connections.h"

#include <algorithm>

namespace troupe::control {

std::vector<AcceptedLink> PendingConnections::came(AcceptedLink link, const std::string& address,
                                                   Clock::time_point now, const Bounds& bounds) {
  forget(link.descriptor);
  std::vector<AcceptedLink> gone;
  while (of(address) > 0 && of(address) >= bounds.most_of_one)
    gone.push_back(take_oldest(address));
  while (!links_.empty() && links_.size() >= bounds.most)
    gone.push_back(*oldest_of_most());
  const auto number = ++last_;
  by_descriptor_[link.descriptor] = number;
  by_address_[address][number] = link.descriptor;
  links_[number] = {link, address, now};
  return gone;
}

std::optional<AcceptedLink> PendingConnections::forget(int descriptor) {
  const auto found = by_descriptor_.find(descriptor);
  if (found == by_descriptor_.end()) return std::nullopt;
  const auto stranger = links_.find(found->second);
  const auto link = stranger->second.link;
  const auto neighbours = by_address_.find(stranger->second.address);
  neighbours->second.erase(found->second);
  if (neighbours->second.empty()) by_address_.erase(neighbours);
  links_.erase(stranger);
  by_descriptor_.erase(found);
  return link;
}

AcceptedLink PendingConnections::take_oldest(const std::string& address) {
  const auto link = links_.at(by_address_.at(address).begin()->first).link;
  forget(link.descriptor);
  return link;
}

std::optional<AcceptedLink> PendingConnections::oldest_of_most() {
  const auto most = std::ranges::max_element(by_address_, {},
                                             [](const auto& each) { return each.second.size(); });
  if (most == by_address_.end()) return std::nullopt;
  return take_oldest(std::string(most->first));
}

std::vector<AcceptedLink> PendingConnections::overdue(Clock::time_point now, const Bounds& bounds) {
  std::vector<AcceptedLink> gone;
  while (!links_.empty() && now - links_.begin()->second.since > bounds.patience) {
    gone.push_back(links_.begin()->second.link);
    forget(gone.back().descriptor);
  }
  return gone;
}

std::vector<AcceptedLink> PendingConnections::all() const {
  std::vector<AcceptedLink> links;
  for (const auto& [number, stranger] : links_)
    links.push_back(stranger.link);
  return links;
}

std::size_t PendingConnections::of(const std::string& address) const {
  const auto found = by_address_.find(address);
  return found == by_address_.end() ? 0 : found->second.size();
}

}  // namespace troupe::control
