#include "actors/stage/group_table.h"

#include <stdexcept>
#include <vector>

namespace troupe::actors {

void GroupTable::add(std::uint64_t epoch, std::uint32_t id, std::unique_ptr<tensor::Group> group) {
  std::lock_guard lock(mutex_);
  groups_[epoch][id] = std::move(group);
}

std::shared_ptr<tensor::Group> GroupTable::get(std::uint64_t epoch, std::uint32_t id) const {
  std::lock_guard lock(mutex_);
  const auto of_epoch = groups_.find(epoch);
  if (of_epoch != groups_.end()) {
    if (const auto group = of_epoch->second.find(id); group != of_epoch->second.end())
      return group->second;
  }
  throw std::runtime_error("[actor] group " + std::to_string(id) + " of epoch " +
                           std::to_string(epoch) + " is not connected here");
}

std::map<std::uint32_t, std::shared_ptr<tensor::Group>> GroupTable::of(std::uint64_t epoch) const {
  std::lock_guard lock(mutex_);
  const auto of_epoch = groups_.find(epoch);
  if (of_epoch == groups_.end()) return {};
  return of_epoch->second;
}

void GroupTable::abort(std::uint64_t epoch, const std::string& why) {
  std::vector<std::shared_ptr<tensor::Group>> groups;
  {
    std::lock_guard lock(mutex_);
    if (const auto of_epoch = groups_.find(epoch); of_epoch != groups_.end()) {
      for (const auto& [id, group] : of_epoch->second)
        groups.push_back(group);
    }
  }
  for (const auto& group : groups)
    group->begin_abort(why);
  for (const auto& group : groups)
    group->abort(why);
}

void GroupTable::remove(std::uint64_t epoch) {
  std::map<std::uint32_t, std::shared_ptr<tensor::Group>> gone;
  std::lock_guard lock(mutex_);
  if (const auto of_epoch = groups_.find(epoch); of_epoch != groups_.end()) {
    gone = std::move(of_epoch->second);
    groups_.erase(of_epoch);
  }
}

tensor::Counters GroupTable::counters(std::uint64_t epoch) const {
  std::lock_guard lock(mutex_);
  tensor::Counters sum;
  const auto of_epoch = groups_.find(epoch);
  if (of_epoch == groups_.end()) return sum;
  for (const auto& [id, group] : of_epoch->second) {
    const auto one = group->counters();
    sum.bytes_sent += one.bytes_sent;
    sum.bytes_received += one.bytes_received;
    sum.messages_sent += one.messages_sent;
    sum.messages_received += one.messages_received;
    sum.waiting_seconds += one.waiting_seconds;
  }
  return sum;
}

std::map<std::uint32_t, std::uint64_t> GroupTable::sent_by_group(std::uint64_t epoch) const {
  std::lock_guard lock(mutex_);
  std::map<std::uint32_t, std::uint64_t> sent;
  const auto of_epoch = groups_.find(epoch);
  if (of_epoch == groups_.end()) return sent;
  for (const auto& [id, group] : of_epoch->second)
    sent[id] = group->counters().bytes_sent;
  return sent;
}

}  // namespace troupe::actors
