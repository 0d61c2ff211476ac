#include "tests/sim/crossing.h"

#include <algorithm>

namespace troupe::sim {

bool Crossing::meet(Epoch epoch, const std::string& what, Process who, std::size_t members) {
  auto& there = meetings_[{epoch, what}];
  there.insert(who);
  if (there.size() > members) throw Violation(what + ": more members than it has");
  return there.size() == members;
}

void Crossing::check(const std::string& name, const Edge& edge) {
  const auto both = std::min(edge.sent.size(), edge.posted.size());
  if (both == 0 || edge.sent[both - 1] == edge.posted[both - 1]) return;
  throw Violation("edge " + name + ": transfer " + std::to_string(both) + " was sent as " +
                  edge.sent[both - 1] + " and received as " + edge.posted[both - 1]);
}

void Crossing::sent(Epoch epoch, const std::string& edge, const std::string& what) {
  auto& both = edges_[{epoch, edge}];
  both.sent.push_back(what);
  check(edge, both);
}

void Crossing::posted(Epoch epoch, const std::string& edge, const std::string& what) {
  auto& both = edges_[{epoch, edge}];
  both.posted.push_back(what);
  check(edge, both);
}

bool Crossing::arrived(Epoch epoch, const std::string& edge, const std::string& what) const {
  const auto found = edges_.find({epoch, edge});
  if (found == edges_.end()) return false;
  const auto& [sent, posted] = found->second;
  const auto at = std::find(posted.begin(), posted.end(), what);
  if (at == posted.end()) throw Violation("edge " + edge + ": nobody posted a receive of " + what);
  return static_cast<std::size_t>(at - posted.begin()) < sent.size();
}

void Crossing::forget(Epoch epoch) {
  std::erase_if(meetings_, [&](const auto& entry) { return entry.first.first == epoch; });
  std::erase_if(edges_, [&](const auto& entry) { return entry.first.first == epoch; });
}

}  // namespace troupe::sim
