#pragma once
#include <iosfwd>
#include <string>

#include "client/cli/verb.h"

namespace troupe::repl {

/// A console on the cluster at `target`. Each answers with the exit code: 0, or 1 when a command
/// failed, or 128 + signal. Throws cli::CommandError when there is no cluster. With `json` every
/// command prints one document on one line.
int run_commands(const cli::Target& target, const std::string& commands, bool json);
int run_script(const cli::Target& target, std::istream& script, bool json);
/// Runs a console on a terminal. Answers with 0, whatever the commands did.
int run_console(const cli::Target& target);

}  // namespace troupe::repl
