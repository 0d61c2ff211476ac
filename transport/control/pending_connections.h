#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "transport/control/types.h"

namespace troupe::control {

/// A connection that was accepted, and how to know it again: numbers of descriptors are given anew.
struct AcceptedLink {
  int descriptor = -1;
  std::uint64_t cookie = 0;  // the kernel's, given once
  bool operator==(const AcceptedLink&) const = default;
};

/// Links that were accepted and have not said hello yet, or whose peer was lost: which of them go
/// when there are too many, or when they take too long. Pure: no descriptor is touched here.
class PendingConnections {
 public:
  struct Bounds {
    std::size_t most = 1;
    std::size_t most_of_one = 1;  // address
    Milliseconds patience{5000};
  };

  /// Adds a link from that address. Returns the links that have to go for it: the oldest of the
  /// same address where that has its share, else of the address that has most.
  std::vector<AcceptedLink> came(AcceptedLink link, const std::string& address,
                                 Clock::time_point now, const Bounds& bounds);
  /// Forgets a link that has said hello, or is gone. Returns the link, if it was here.
  std::optional<AcceptedLink> forget(int descriptor);
  /// Takes a link that has to go for a reason that has nothing to do with an address.
  std::optional<AcceptedLink> oldest_of_most();
  /// Returns links that have had their time.
  std::vector<AcceptedLink> overdue(Clock::time_point now, const Bounds& bounds);

  std::vector<AcceptedLink> all() const;
  std::size_t size() const { return links_.size(); }
  std::size_t of(const std::string& address) const;

 private:
  struct Stranger {
    AcceptedLink link;
    std::string address;
    Clock::time_point since;
  };
  AcceptedLink take_oldest(const std::string& address);

  std::map<std::uint64_t, Stranger> links_;  // in the order in which they came
  std::map<int, std::uint64_t> by_descriptor_;
  std::map<std::string, std::map<std::uint64_t, int>> by_address_;
  std::uint64_t last_ = 0;
};

}  // namespace troupe::control
