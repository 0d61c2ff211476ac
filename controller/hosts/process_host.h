#pragma once
#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <vector>

#include "transport/wire/host_messages.h"

namespace troupe::cluster {

/// End of a child process.
struct ExitCause {
  bool by_signal = false;
  int number = 0;  // signal or exit code
  bool core = false;
  std::vector<std::string> log;  // its last lines
  std::string told = {};         // how it ended where no wait status says it; "" = by the above
  std::string method = {};       // method that a user's actor was in; "" = none
  bool with_host = false;        // the process's host is lost: nothing else counts as the cause
  /// Returns "killed by signal 9 (SIGKILL)" or "exit code 1", then the method and the last log line
  /// where there are such.
  std::string text() const;
};

/// Makes the cause from a wait status, as waitpid gives it.
ExitCause exit_cause(int wait_status, std::vector<std::string> log);

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

using wire::ProcessOwner;

/// Starts and ends the processes of one host, whosever they are: in this process (LocalProcessHost)
/// or over a link to one (RemoteProcessHost).
class ProcessHost {
 public:
  using OnExit =
      std::function<void(const ProcessOwner&, std::uint64_t incarnation, const ExitCause&)>;

  virtual ~ProcessHost() = default;
  /// Starts a process and returns its pid, 0 where that will be known later. A process that is
  /// there already is not started again. Throws std::runtime_error naming program and cause.
  virtual std::uint32_t start(const wire::StartProcess& launch) = 0;
  /// False when there is no process of that owner here.
  virtual bool signal(const ProcessOwner& owner, int signal) = 0;
  /// Ends for sure (SIGKILL) the process that runs here for the owner, and says why in its log, if
  /// there is a reason; its exit is told as any other.
  virtual void end(const ProcessOwner& owner, const std::string& why) = 0;
  /// Returns the lines that an actor's processes have written, and that they began and ended.
  virtual const LineLog& lines(std::uint32_t actor) = 0;
  virtual std::size_t running() const = 0;
};

}  // namespace troupe::cluster
