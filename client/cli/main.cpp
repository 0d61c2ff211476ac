#include "client/cli/command_line.h"
#include "transport/control/descriptors.h"

int main(int argc, char** argv) {
  troupe::control::meet_limits();
  return troupe::cli::run_command_line(argc, argv);
}
