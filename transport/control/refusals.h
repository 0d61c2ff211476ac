#pragma once
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <utility>

namespace troupe::control {

/// Peers that were turned away: counts them all, and tells of them without letting strangers fill
/// a log. The first is told at once, then one in `pause` at most, with how many were not.
class Refusals {
 public:
  using Clock = std::chrono::steady_clock;
  using Tell = std::function<void(const std::string&)>;

  explicit Refusals(Tell tell, Clock::duration pause = std::chrono::seconds(10))
      : tell_(std::move(tell)), pause_(pause) {}

  /// `who` and `why` may hold what strangers said: no more than 200 bytes of each are told, and
  /// what is not printable ASCII becomes "?".
  void add(const std::string& who, const std::string& why, Clock::time_point now = Clock::now()) {
    ++count_;
    if (told_ && now - last_ < pause_) {
      ++untold_;
      return;
    }
    told_ = true;
    last_ = now;
    std::string line = "turned away " + tame(who) + ": " + tame(why);
    if (untold_ > 0)
      line += " (and " + std::to_string(untold_) + " others since the last such line)";
    untold_ = 0;
    if (tell_) tell_(line);
  }
  std::uint64_t count() const { return count_; }

 private:
  static std::string tame(const std::string& said) {
    constexpr std::size_t kMost = 200;
    std::string text = said.substr(0, kMost);
    for (char& letter : text)
      if (letter < ' ' || letter > '~') letter = '?';
    if (said.size() > kMost) text += "...";
    return text;
  }

  Tell tell_;
  Clock::duration pause_;
  Clock::time_point last_{};
  bool told_ = false;
  std::uint64_t untold_ = 0, count_ = 0;
};

}  // namespace troupe::control
