#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "transport/tensor/group.h"
#include "transport/wire/actor_messages.h"

namespace troupe::actors {

/// Suffix of groups' names on the tensor plane, so that a name is used once.
inline std::string epoch_suffix(std::uint64_t epoch) {
  return " epoch " + std::to_string(epoch);
}

/// The tensor-plane groups of this actor, by epoch and the id that the plan gave them. Thread-safe,
/// so that the second lane can abort while the work loop waits inside a group.
class GroupTable {
 public:
  void add(std::uint64_t epoch, std::uint32_t id, std::unique_ptr<tensor::Group> group);
  /// Throws std::runtime_error naming epoch and id when there is none.
  std::shared_ptr<tensor::Group> get(std::uint64_t epoch, std::uint32_t id) const;
  /// Returns all groups of an epoch, by id.
  std::map<std::uint32_t, std::shared_ptr<tensor::Group>> of(std::uint64_t epoch) const;
  /// Ends every operation of the epoch's groups; the groups stay until `remove`.
  void abort(std::uint64_t epoch, const std::string& why);
  void remove(std::uint64_t epoch);
  /// Returns the sum of the counters of the epoch's groups.
  tensor::Counters counters(std::uint64_t epoch) const;
  /// Returns the bytes that each of the epoch's groups has sent, by id.
  std::map<std::uint32_t, std::uint64_t> sent_by_group(std::uint64_t epoch) const;

 private:
  mutable std::mutex mutex_;
  std::map<std::uint64_t, std::map<std::uint32_t, std::shared_ptr<tensor::Group>>> groups_;
};

}  // namespace troupe::actors
