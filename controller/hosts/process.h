#pragma once
#include <sys/types.h>

#include <boost/asio/io_context.hpp>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "controller/hosts/process_host.h"

namespace troupe::cluster {

struct ProcessOptions {
  std::string program;
  std::vector<std::string> arguments;
  std::vector<std::string> environment;  // "KEY=value", added to this process's own
  std::filesystem::path
      log;  // standard output and error are appended to it; empty = kept in memory only
  std::uint64_t log_bytes = 64u << 20;  // at most, of a log; what comes after is not written
  std::function<void(const std::string&)> on_line = {};  // told of each line of the process
  std::vector<int> cpus = {};  // CPUs that it runs on; none = those of this process
  int inherited = -1;          // a descriptor of this process that it has as kInherited; -1 = none
};

/// The number under which a child finds ProcessOptions::inherited. Of all other descriptors it has
/// standard input, output and error alone, however they were opened here.
inline constexpr int kInherited = 3;

/// A child process on an io_context: its end is noticed at once (pidfd) and told with its cause and
/// its last log lines. In a process group of its own, so that a terminal's Ctrl-C does not reach
/// it. Killed and reaped when destroyed.
class Process {
 public:
  /// Throws std::runtime_error naming program and cause when it cannot be started; also where this
  /// process would have no descriptors to spare then.
  Process(boost::asio::io_context& io, const ProcessOptions& options,
          std::function<void(const ExitCause&)> on_exit);
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const;
  /// True when the process runs on the CPUs that the options name; false where there are none or
  /// the kernel refused.
  bool pinned() const;
  void kill(int signal);
  /// Kills the process for sure. The first reason that is given is said in its log.
  void end(const std::string& why);
  /// Adds a line to the process's log that the process did not write: told to `on_line`, and never
  /// a cause of its end.
  void say(const std::string& line);

 private:
  class Impl;
  std::shared_ptr<Impl> impl_;
};

}  // namespace troupe::cluster
