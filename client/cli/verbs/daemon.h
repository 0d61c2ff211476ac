#pragma once
#include <functional>
#include <string>

namespace troupe::cli {

/// Report that a process in the background sends once to the process that started it.
struct DaemonReport {
  bool ok = false;
  std::string text;   // for standard output when ok, else the cause
  int exit_code = 1;  // when not ok: 128 + the signal that ended the wait, else 1
};

/// Forks, before any thread exists. The child becomes a session of its own with its output in
/// `log`, does `work(report)` and exits with what it returns; `work` calls `report` once it stands
/// or has failed. The parent gets that report, or the cause when there is none within
/// `deadline_seconds` or a signal ends the wait (then the child is told to end). Throws
/// std::runtime_error when the log cannot be opened or no process made.
using ReportOnce = std::function<void(const DaemonReport&)>;
DaemonReport run_in_background(const std::string& log, int deadline_seconds,
                               const std::function<int(const ReportOnce&)>& work);

}  // namespace troupe::cli
