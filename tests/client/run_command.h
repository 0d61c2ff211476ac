#pragma once
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/client/scratch.h"

namespace troupe::testing {

struct CommandResult {
  int exit_code = -1;
  std::string out;
  std::string err;
};

/// Runs the built `troupe` by a shell, for a minute at most; `before` goes in front (assignments,
/// ulimit).
inline CommandResult troupe(const std::string& arguments, const std::string& before = "") {
  const Scratch scratch;
  const std::string line = before + " timeout 60 " TROUPE_BINARY_DIR "/bin/troupe " + arguments +
                           " > " + scratch / "out" + " 2> " + scratch / "err" + " < /dev/null";
  const int status = std::system(line.c_str());
  const auto slurp = [](const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  };
  return {WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status), slurp(scratch / "out"),
          slurp(scratch / "err")};
}

}  // namespace troupe::testing
