#pragma once
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/support/scratch.h"
#include "tests/support/text.h"

namespace troupe::testing {

struct CommandResult {
  int exit_code = -1;
  std::string out;
  std::string err;
};

/// Runs a command by a shell, for four minutes at most; `before` goes in front (assignments,
/// ulimit).
inline CommandResult run_command(const std::string& command, const std::string& before = "") {
  const Scratch scratch;
  const std::string line = before + " timeout 240 " + command + " > " + scratch / "out" + " 2> " +
                           scratch / "err" + " < /dev/null";
  const int status = std::system(line.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
          read_all(scratch / "out"), read_all(scratch / "err")};
}

/// The built `troupe`.
inline CommandResult troupe(const std::string& arguments, const std::string& before = "") {
  return run_command(TROUPE_BINARY_DIR "/bin/troupe " + arguments, before);
}

/// Returns what is written to the terminal whose other end this is, until it is closed, and answers
/// with `attributes` when the terminal is asked for them.
inline std::string answer_terminal(int terminal, const std::string& attributes) {
  std::string out;
  char piece[4096];
  for (ssize_t got; (got = read(terminal, piece, sizeof piece)) > 0;) {
    const auto asked = out.find("\x1b[c");
    out.append(piece, static_cast<std::size_t>(got));
    if (asked == std::string::npos && out.find("\x1b[c") != std::string::npos &&
        write(terminal, attributes.data(), attributes.size()) < 0)
      break;
  }
  close(terminal);
  return out;
}

/// Returns what the built `troupe` writes to a terminal of so many columns, which answers with
/// `attributes` when it is asked for them.
inline std::string troupe_on_terminal(const std::string& arguments, unsigned short columns,
                                      const std::string& before = "",
                                      const std::string& attributes = "\x1b[?6c") {
  // Without colours, unless `before` asks for them.
  const std::string line = "NO_COLOR=1 " + before +
                           " timeout --foreground 240 " TROUPE_BINARY_DIR "/bin/troupe " +
                           arguments;
  winsize size{};
  size.ws_row = 25;
  size.ws_col = columns;
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, &size);
  if (child < 0) return "no terminal";
  if (child == 0) {
    execl("/bin/sh", "sh", "-c", line.c_str(), nullptr);
    _exit(99);
  }
  std::string out = answer_terminal(terminal, attributes);
  waitpid(child, nullptr, 0);
  std::erase(out, '\r');
  return out;
}

}  // namespace troupe::testing
