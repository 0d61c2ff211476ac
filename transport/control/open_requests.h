#pragma once
#include <cstddef>
#include <cstdint>
#include <unordered_map>

namespace troupe::control {

/// Requests of one peer that have not been answered, and how much of them a server keeps: whatever
/// its rooms hold for who waits is bounded here.
class OpenRequests {
 public:
  struct Bounds {
    std::size_t most = 1024;
    std::size_t most_bytes = 16u << 20;
  };
  struct Sum {
    std::size_t count = 0;
    std::size_t bytes = 0;

    bool room(std::size_t more, const Bounds& bounds) const {
      return count < bounds.most && bytes + more <= bounds.most_bytes;
    }
  };

  /// Returns whether a request of that number is open.
  bool has(std::uint64_t correlation) const { return open_.contains(correlation); }
  /// `all`: of all peers together, this one's included.
  void take(std::uint64_t correlation, std::size_t bytes, Sum& all) {
    open_.emplace(correlation, bytes);
    for (Sum* sum : {&own_, &all}) {
      ++sum->count;
      sum->bytes += bytes;
    }
  }
  void answered(std::uint64_t correlation, Sum& all) {
    const auto found = open_.extract(correlation);
    if (found.empty()) return;
    for (Sum* sum : {&own_, &all}) {
      --sum->count;
      sum->bytes -= found.mapped();
    }
  }
  /// Forgets the peer's requests, when nobody is there to be answered.
  void forget(Sum& all) const {
    all.count -= own_.count;
    all.bytes -= own_.bytes;
  }
  const Sum& own() const { return own_; }

 private:
  std::unordered_map<std::uint64_t, std::size_t> open_;
  Sum own_;
};

}  // namespace troupe::control
