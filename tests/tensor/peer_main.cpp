// A member of a group in a process of its own, for tests that kill it.
// Arguments: BACKEND GROUP RANK TOKEN. Prints its address, reads the others' (one a line, empty
// line at the end), connects, prints "ready", then exchanges large tensors with all members for
// ever. When that fails, prints "failed <failure> <peer> <text>" and leaves.
#include <ATen/ATen.h>
#include <sys/prctl.h>

#include <csignal>
#include <iostream>
#include <string>
#include <vector>

#include "transport/tensor/backend.h"

using namespace troupe::tensor;
using namespace std::chrono_literals;

int main(int argc, char** argv) {
  if (argc != 5) {
    std::cerr << "usage: " << argv[0] << " BACKEND GROUP RANK TOKEN\n";
    return 2;
  }
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  try {
    DeviceOptions options;
    options.token = argv[4];
    const auto device = make_device(backend_from(argv[1]), options);
    std::cout << device->address() << std::endl;
    std::vector<std::string> addresses;
    for (std::string line; std::getline(std::cin, line) && !line.empty();)
      addresses.push_back(line);
    const auto group = device->connect(argv[2], std::stoi(argv[3]), addresses, within(60s));
    std::cout << "ready" << std::endl;
    for (;;) {
      const at::Tensor value = at::ones({1'000'000});
      group->all_reduce(value, ReduceOp::sum).wait(within(60s));
    }
  } catch (const TransferError& error) {
    std::cout << "failed " << static_cast<int>(error.failure()) << " " << error.peer() << " "
              << error.what() << std::endl;
  } catch (const std::exception& error) {
    std::cout << "error " << error.what() << std::endl;
  }
  return 0;
}
