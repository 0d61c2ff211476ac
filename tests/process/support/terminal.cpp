#include "tests/process/support/terminal.h"

#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <stdexcept>

#include "tests/process/support/processes.h"

namespace troupe::testing {
namespace {

constexpr int kMoment = 50;  // milliseconds
constexpr int kNoSuchProgram = 99;

/// Returns where the escape sequence ends that begins at `at`; npos if more of it is to come.
std::size_t end_of_escape(const std::string& text, std::size_t at) {
  if (at + 1 >= text.size()) return std::string::npos;
  if (text[at + 1] != '[') return at + 2;
  for (std::size_t i = at + 2; i < text.size(); ++i)
    if (text[i] >= '@' && text[i] <= '~') return i + 1;
  return std::string::npos;
}

}  // namespace

Terminal::Terminal(const std::vector<std::string>& arguments,
                   const std::vector<std::string>& environment) {
  std::vector<const char*> words{"troupe"};
  for (const auto& argument : arguments)
    words.push_back(argument.c_str());
  words.push_back(nullptr);
  winsize size{};
  size.ws_row = 25;
  size.ws_col = 100;
  pid_ = forkpty(&terminal_, nullptr, nullptr, &size);
  if (pid_ < 0) throw std::runtime_error("[tests] no terminal");
  if (pid_ == 0) {
    for (const auto& variable : environment)
      putenv(const_cast<char*>(variable.c_str()));
    execv(TROUPE_BINARY_DIR "/bin/troupe", const_cast<char**>(words.data()));
    _exit(kNoSuchProgram);
  }
}

Terminal::~Terminal() {
  close(terminal_);
  if (ended_) return;
  kill(pid_, SIGKILL);
  waitpid(pid_, nullptr, 0);
}

void Terminal::type(const std::string& keys) {
  if (write(terminal_, keys.data(), keys.size()) != static_cast<ssize_t>(keys.size()))
    throw std::runtime_error("[tests] the terminal takes no keys");
}

bool Terminal::read() {
  pollfd ready{terminal_, POLLIN, 0};
  if (poll(&ready, 1, kMoment) <= 0) return true;
  char piece[4096];
  const ssize_t got = ::read(terminal_, piece, sizeof piece);
  if (got <= 0) return false;
  raw_.append(piece, static_cast<std::size_t>(got));
  std::size_t at = 0;
  while (at < raw_.size()) {
    if (raw_[at] == '\x1b') {
      const auto end = end_of_escape(raw_, at);
      if (end == std::string::npos) break;
      at = end;
    } else {
      if (raw_[at] != '\r' && raw_[at] != '\a') screen_ += raw_[at];
      ++at;
    }
  }
  raw_.erase(0, at);
  return true;
}

bool Terminal::shows(const std::string& text) {
  bool open = true;
  return eventually(kPatience, [&] {
    const auto found = screen_.find(text, seen_);
    if (found != std::string::npos) {
      seen_ = found + text.size();
      return true;
    }
    if (open) open = read();
    return false;
  });
}

int Terminal::wait() {
  int status = 0;
  if (!ended_ && eventually(kPatience, [&] {
        read();
        return waitpid(pid_, &status, WNOHANG) != 0;
      })) {
    ended_ = true;
    if (WIFEXITED(status)) code_ = WEXITSTATUS(status);
  }
  return code_;
}

}  // namespace troupe::testing
