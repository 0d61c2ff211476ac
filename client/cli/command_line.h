#pragma once

namespace troupe::cli {

/// The whole command: parses, does, reports. Exit codes: 0 done, 1 failed (one line on standard
/// error), 2 usage, 128 + signal. With --json standard output holds one JSON document, an error's
/// too.
int run_command_line(int argc, const char* const* argv);

}  // namespace troupe::cli
