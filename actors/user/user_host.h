#pragma once

namespace troupe::runtime {

/// Everything of troupe-host; troupe-actor comes here, too, when a class asks for torch. What
/// `--describe FILE` finds goes to standard output; why it cannot be used as well; other failures
/// go to standard error, one line. Answers the exit code.
int host_main(int argc, char** argv);

}  // namespace troupe::runtime
