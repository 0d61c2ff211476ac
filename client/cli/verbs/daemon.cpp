#include "client/cli/verbs/daemon.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>

#include "base/available_memory.h"
#include "base/format.h"
#include "base/log_line.h"
#include "client/cli/signals.h"

namespace troupe::cli {
namespace {

[[noreturn]] void fail(const std::string& what) {
  throw std::runtime_error(what + ": " + std::strerror(errno));
}

void write_report(int pipe, const DaemonReport& report) {
  std::string bytes = (report.ok ? "+" : "-") + report.text;
  for (std::size_t done = 0; done < bytes.size();) {
    const ssize_t written = write(pipe, bytes.data() + done, bytes.size() - done);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return;
    done += static_cast<std::size_t>(written);
  }
}

/// Reads everything until the pipe's other end closes. False at the deadline.
bool read_until_closed(int pipe, int deadline_seconds, std::string& bytes) {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(deadline_seconds);
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        until - std::chrono::steady_clock::now());
    if (left.count() <= 0) return false;
    pollfd ready{pipe, POLLIN, 0};
    if (poll(&ready, 1, static_cast<int>(left.count())) < 0 && errno != EINTR) fail("poll");
    if ((ready.revents & (POLLIN | POLLHUP)) == 0) continue;
    char buffer[4096];
    const ssize_t got = read(pipe, buffer, sizeof buffer);
    if (got < 0 && errno != EINTR) fail("read");
    if (got == 0) return true;
    if (got > 0) bytes.append(buffer, static_cast<std::size_t>(got));
  }
}

[[noreturn]] void be_child(int pipe, int log, const std::function<int(const ReportOnce&)>& work) {
  setsid();
  const int null = open("/dev/null", O_RDONLY);
  dup2(null, STDIN_FILENO);
  dup2(log, STDOUT_FILENO);
  dup2(log, STDERR_FILENO);
  close(null);
  close(log);
  int code = 1;
  try {
    code = work([&pipe](const DaemonReport& report) {
      if (pipe < 0) return;
      write_report(pipe, report);
      close(pipe);
      pipe = -1;
    });
  } catch (const std::exception& error) {
    if (pipe >= 0) write_report(pipe, {false, text_of(error)});
    log_line(text_of(error));
  }
  _exit(code);
}

}  // namespace

DaemonReport run_in_background(const std::string& log, int deadline_seconds,
                               const std::function<int(const ReportOnce&)>& work) {
  const int log_file = open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (log_file < 0) fail(log + ": cannot be opened");
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) fail("pipe");
  const pid_t child = fork();
  if (child < 0) fail("fork");
  if (child == 0) {
    close(ends[0]);
    be_child(ends[1], log_file, work);
  }
  close(ends[1]);
  close(log_file);
  std::string bytes;
  bool told;
  int interrupted;
  {
    // The child hears nothing of the terminal any more.
    SignalWatch signals;
    ActOnSignal stop(signals, [child] { kill(child, SIGTERM); });
    told = read_until_closed(ends[0], deadline_seconds, bytes);
    interrupted = signals.caught() ? signals.exit_code() : 0;
  }
  close(ends[0]);
  if (interrupted && bytes.empty())
    return {false, "interrupted while actors were starting", interrupted};
  if (!told) {
    kill(child, SIGTERM);
    return {false, fmt::format("the controller (pid {}) did not start within {} s; see {}", child,
                               deadline_seconds, log)};
  }
  if (bytes.empty()) return {false, "the controller ended before it had started; see " + log};
  if (bytes[0] == '-') waitpid(child, nullptr, 0);
  return {bytes[0] == '+', bytes.substr(1)};
}

}  // namespace troupe::cli
