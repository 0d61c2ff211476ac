#include "client/cli/command_line.h"

int main(int argc, char** argv) {
  return troupe::cli::run_command_line(argc, argv);
}
