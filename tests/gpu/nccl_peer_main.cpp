// One rank of the NCCL tests, in a process of its own: NCCL allows one rank a process on a GPU.
// Prints "at ADDRESS"; then for every line "SIZE<tab>RANK<tab>NAME<tab>SCENARIO<tab>ADDRESS..."
// runs that scenario and prints "ok" or "failed WHY". Ends with its input.
#include <ATen/ATen.h>
#include <sys/prctl.h>

#include <chrono>
#include <csignal>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/gpu/gpu.h"
#include "tests/gpu/nccl_scenarios.h"

using namespace troupe;
using namespace std::chrono_literals;

namespace {

/// Waits for all, so that nobody leaves while others are at work: a second after a peer's goodbye
/// they would miss it.
void meet(testing::Rank& me) {
  try {
    me.group.all_reduce(at::zeros({1}, at::TensorOptions().device(me.where)), tensor::ReduceOp::sum)
        .wait(tensor::within(30s));
  } catch (const tensor::TransferError&) {
    // A scenario may have ended the group.
  }
}

std::string run(tensor::Device& door, at::Device gpu, const std::string& line) {
  std::vector<std::string> words;
  std::istringstream text(line);
  for (std::string word; std::getline(text, word, '\t');)
    words.push_back(word);
  if (words.size() < 5) return "failed cannot read: " + line;
  const int size = std::stoi(words[0]), rank = std::stoi(words[1]);
  const std::vector<std::string> addresses(words.begin() + 4, words.end());
  try {
    const auto start = std::chrono::steady_clock::now();
    const auto group = door.connect(words[2], rank, addresses, tensor::within(90s));
    const auto joined = std::chrono::steady_clock::now();
    testing::Rank me{door, addresses, words[2], rank, size, gpu, *group};
    testing::scenarios().at(words[3])(me);
    const auto done = std::chrono::steady_clock::now();
    meet(me);
    return "ok joined in " + std::to_string((joined - start) / 1ms) + " ms, ran " +
           std::to_string((done - joined) / 1ms) + " ms";
  } catch (const std::exception& error) {
    return std::string("failed ") + error.what();
  }
}

}  // namespace

int main() {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  try {
    const auto gpu = testing::gpu();
    if (!gpu) throw std::runtime_error(testing::why_no_gpu());
    tensor::DeviceOptions options;
    options.token = "a token for tests";
    options.cuda_device = gpu->index();
    options.max_ctas = 4;
    const auto door = tensor::make_device(tensor::Backend::nccl, options);
    std::cout << "at " << door->address() << std::endl;
    for (std::string line; std::getline(std::cin, line) && !line.empty();)
      std::cout << run(*door, *gpu, line) << std::endl;
  } catch (const std::exception& error) {
    std::cout << "failed " << error.what() << std::endl;
    return 1;
  }
  return 0;
}
