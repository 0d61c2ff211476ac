#pragma once
#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/log_line.h"
#include "controller/recorder/recorder.h"

namespace troupe::gateway {

/// Failures of the cluster, for people to read. The last few are in its status, each with the time
/// (UTC) before it.
class FailureLog {
 public:
  /// `now`: seconds. `log` hears of every failure; may be empty.
  FailureLog(recorder::Recorder& recorder, std::function<double()> now,
             std::function<void(const std::string&)> log = {})
      : recorder_(recorder), now_(std::move(now)), log_(std::move(log)) {}

  void note(const std::string& text) {
    if (log_) log_(text);
    recorder_.note(recorder::Event::Kind::failure, 0, std::nullopt, text,
                   recorder::nanoseconds(now_()));
    recent_.push_back(utc_text(std::chrono::system_clock::now()) + " " + text);
    if (recent_.size() > kKept) recent_.erase(recent_.begin());
  }
  const std::vector<std::string>& recent() const { return recent_; }

 private:
  static constexpr std::size_t kKept = 10;

  recorder::Recorder& recorder_;
  std::function<double()> now_;
  std::function<void(const std::string&)> log_;
  std::vector<std::string> recent_;
};

}  // namespace troupe::gateway
