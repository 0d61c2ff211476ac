#include "controller/hosts/process_host.h"

#include <string.h>
#include <sys/wait.h>

#include "base/available_memory.h"
#include "base/format.h"

namespace troupe::cluster {

namespace {

/// Exit code of a program that does not begin, since its libraries cannot be mapped for example.
constexpr int kNotLoaded = 127;

}  // namespace

ExitCause exit_cause(int status, std::vector<std::string> log) {
  ExitCause cause;
  cause.by_signal = WIFSIGNALED(status);
  cause.number = cause.by_signal ? WTERMSIG(status) : WEXITSTATUS(status);
  cause.core = cause.by_signal && WCOREDUMP(status);
  cause.log = std::move(log);
  const auto limit = address_limit_text();
  if (!cause.by_signal && cause.number == kNotLoaded && !limit.empty() && !cause.log.empty())
    cause.log.back() += " (" + limit + ")";
  return cause;
}

std::string ExitCause::text() const {
  if (!told.empty()) return told;
  std::string text;
  if (by_signal) {
    const char* name = sigabbrev_np(number);
    text =
        fmt::format("killed by signal {}{}", number, name ? " (SIG" + std::string(name) + ")" : "");
    if (core) text += ", core dumped";
  } else {
    text = fmt::format("exit code {}", number);
  }
  if (!method.empty()) text += " in " + method;
  if (!log.empty()) text += ": " + log.back();
  return text;
}

}  // namespace troupe::cluster
