#include "tests/tensor/ranks.h"

#include <ATen/ops/arange.h>

#include <atomic>
#include <exception>
#include <filesystem>
#include <mutex>
#include <thread>

namespace troupe::tensor::testing {

using namespace std::chrono_literals;

DeviceOptions small_options() {
  DeviceOptions options;
  options.token = kToken;
  options.ring_bytes = 16 << 10;
  return options;
}

void on_ranks(Backend backend, int size, const std::function<void(Member&)>& body,
              const DeviceOptions& options) {
  static std::atomic<int> runs{0};
  const std::string name = "test " + std::to_string(runs++);
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<std::string> addresses;
  for (int rank = 0; rank < size; ++rank) {
    devices.push_back(make_device(backend, options));
    addresses.push_back(devices.back()->address());
  }
  std::mutex mutex;
  std::exception_ptr first;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      try {
        const auto group = devices[rank]->connect(name, rank, addresses, within(60s));
        Member member{*devices[rank], addresses, rank, *group};
        try {
          body(member);
        } catch (...) {
          std::lock_guard lock(mutex);
          if (!first) first = std::current_exception();
          group->abort("the test failed");
        }
      } catch (...) {
        std::lock_guard lock(mutex);
        if (!first) first = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads)
    thread.join();
  if (first) std::rethrow_exception(first);
}

void require(bool condition, const std::string& text) {
  if (!condition) throw std::runtime_error("not so: " + text);
}

TransferError failure_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const TransferError& error) {
    return error;
  }
  throw std::runtime_error("not so: it failed");
}

at::Tensor pattern(std::int64_t count, int seed) {
  return at::arange(count, at::kFloat).mul_(0.5f).add_(static_cast<float>(seed) * 1000.0f);
}

int open_descriptors() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

}  // namespace troupe::tensor::testing
