#pragma once
#include <algorithm>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

namespace troupe::cluster {

/// The last lines that somebody wrote, numbered from 1, so that a follower misses and repeats none.
class LineLog {
 public:
  explicit LineLog(std::size_t most = 1000) : most_(most) {}

  void add(std::string line) {
    lines_.push_back(std::move(line));
    ++last_;
    if (lines_.size() > most_) lines_.pop_front();
  }
  /// Number of the newest line; 0 while there is none.
  std::uint64_t last() const { return last_; }
  /// Returns the last `limit` of the lines after number `after` that are still here.
  std::vector<std::string> lines(std::uint64_t after, std::size_t limit) const {
    const auto newer = last_ > after ? last_ - after : 0;
    const auto count = std::min({static_cast<std::size_t>(newer), lines_.size(), limit});
    return {lines_.end() - static_cast<std::ptrdiff_t>(count), lines_.end()};
  }

 private:
  std::size_t most_;
  std::deque<std::string> lines_;
  std::uint64_t last_ = 0;
};

}  // namespace troupe::cluster
