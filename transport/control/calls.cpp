#include "transport/control/calls.h"

#include <algorithm>

namespace troupe::control {

std::uint64_t Calls::add(Call call) {
  const std::uint64_t correlation = ++last_;
  due_.push_back({call.deadline, correlation});
  std::push_heap(due_.begin(), due_.end(), std::greater<>());
  calls_.emplace(correlation, std::move(call));
  if (due_.size() > 2 * calls_.size() + 1024) tidy();
  return correlation;
}

std::optional<Calls::Call> Calls::take(std::uint64_t correlation, PeerId peer) {
  const auto found = calls_.find(correlation);
  if (found == calls_.end() || found->second.peer != peer) return std::nullopt;
  Call call = std::move(found->second);
  calls_.erase(found);
  return call;
}

std::vector<Calls::Call> Calls::take_expired(Clock::time_point now) {
  std::vector<Call> expired;
  while (!due_.empty() && due_.front().deadline <= now) {
    const std::uint64_t correlation = due_.front().correlation;
    std::pop_heap(due_.begin(), due_.end(), std::greater<>());
    due_.pop_back();
    if (const auto found = calls_.find(correlation); found != calls_.end()) {
      expired.push_back(std::move(found->second));
      calls_.erase(found);
    }
  }
  return expired;
}

std::vector<Calls::Call> Calls::take_peer(PeerId peer) {
  std::vector<std::uint64_t> mine;
  for (const auto& [correlation, call] : calls_) {
    if (call.peer == peer) mine.push_back(correlation);
  }
  std::sort(mine.begin(), mine.end());
  std::vector<Call> taken;
  for (const std::uint64_t correlation : mine)
    taken.push_back(*take(correlation, peer));
  return taken;
}

std::vector<Calls::Call> Calls::take_all() {
  std::vector<Call> taken;
  for (auto& [correlation, call] : calls_)
    taken.push_back(std::move(call));
  calls_.clear();
  due_.clear();
  return taken;
}

std::optional<Clock::time_point> Calls::next_deadline() const {
  if (due_.empty()) return std::nullopt;
  return due_.front().deadline;
}

void Calls::tidy() {
  std::erase_if(due_, [&](const Due& due) { return !calls_.contains(due.correlation); });
  std::make_heap(due_.begin(), due_.end(), std::greater<>());
}

}  // namespace troupe::control
