#include "actors/probe.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <exception>
#include <limits>
#include <thread>

#include "base/error_text.h"
#include "base/numbers.h"
#include "transport/tensor/backend.h"

namespace troupe::actors {
namespace {

using Clock = std::chrono::steady_clock;
using namespace std::chrono_literals;

/// Time for each kind of work: when it is over, no more tries are made, except the first few.
constexpr auto kTrying = 8ms;
constexpr int kFewestTries = 3;
constexpr int kMostTries = 30;
constexpr auto kLinkDeadline = 2s;

/// Seconds that this thread has computed: what neighbours take is not counted.
double computed() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double passed() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

/// The quickest of a few tries, after one that does not count.
template <class Work>
double best_seconds(bool alone, const Work& work) {
  const auto now = [alone] { return alone ? computed() : passed(); };
  work();
  double best = std::numeric_limits<double>::infinity();
  const auto until = Clock::now() + kTrying;
  for (int tries = 0; tries < kMostTries && (tries < kFewestTries || Clock::now() < until);
       ++tries) {
    const double start = now();
    work();
    best = std::min(best, now() - start);
  }
  return std::max(best, 1e-9);
}

class DeviceProbe {
 public:
  explicit DeviceProbe(at::Device device) : device_(device) {}

  /// FLOP/s.
  double products(at::ScalarType type) const {
    const std::int64_t rows = gpu() ? 2048 : 96, width = gpu() ? 2048 : 512;
    const auto in = filled({rows, width}, type);
    const auto weights = filled({width, width}, type);
    const double flops = 2.0 * static_cast<double>(rows * width * width) * in_a_row();
    return flops / best_seconds(alone(), [&] {
             at::Tensor out;
             for (int i = 0; i < in_a_row(); ++i)
               out = at::linear(in, weights);
             finish(out);
           });
  }

  /// FLOP/s.
  double attention(at::ScalarType type) const {
    const std::int64_t heads = gpu() ? 16 : 8, tokens = gpu() ? 4096 : 192, width = 64;
    const auto in = filled({1, heads, tokens, width}, type);
    const double flops = 4.0 * static_cast<double>(tokens * tokens * heads * width) * in_a_row();
    return flops / best_seconds(alone(), [&] {
             at::Tensor out;
             for (int i = 0; i < in_a_row(); ++i)
               out = at::scaled_dot_product_attention(in, in, in);
             finish(out);
           });
  }

  /// Bytes/s, read and written.
  double bandwidth() const {
    const std::int64_t values = (gpu() ? 64 << 20 : beyond_caches()) / 4;
    auto tensor = filled({values}, at::kFloat);
    const double bytes = 2.0 * 4 * static_cast<double>(values) * in_a_row();
    const auto pass = [&] {
      for (int i = 0; i < in_a_row(); ++i)
        tensor.mul_(1.0F);
      finish(tensor);
    };
    if (gpu()) return bytes / best_seconds(false, pass);
    // One pass over so much is long enough, and its pages are there since it was filled.
    const double start = alone() ? computed() : passed();
    pass();
    return bytes / std::max((alone() ? computed() : passed()) - start, 1e-9);
  }

  /// Seconds to issue one operation; on a CPU to do a small one.
  double launch() const {
    constexpr int kOperations = 200;
    auto tensor = filled({16}, at::kFloat);
    const double seconds = best_seconds(alone(), [&] {
      for (int i = 0; i < kOperations; ++i)
        tensor.mul_(1.0F);
    });
    finish(tensor);
    return seconds / kOperations;
  }

 private:
  bool gpu() const { return device_.is_cuda(); }
  /// One thread does all of it.
  bool alone() const { return !gpu() && at::get_num_threads() == 1; }
  /// Bytes of which the last level's cache keeps little.
  static std::int64_t beyond_caches() {
    constexpr std::int64_t kLeast = 64 << 20, kMost = 256 << 20;
    const std::int64_t cache = sysconf(_SC_LEVEL3_CACHE_SIZE);  // 0 or -1 = not known
    return cache > 0 ? std::clamp(4 * cache, kLeast, kMost) : kMost / 2;
  }
  /// Number of calls in a row, so that a GPU's queue does not run dry.
  int in_a_row() const { return gpu() ? 8 : 1; }
  at::Tensor filled(at::IntArrayRef sizes, at::ScalarType type) const {
    return at::full(sizes, 0.5, at::TensorOptions().dtype(type).device(device_));
  }
  void finish(const at::Tensor& tensor) const {
    if (gpu()) static_cast<void>(tensor.reshape({-1})[0].item<float>());
  }

  at::Device device_;
};

/// Two ends of a link in this process, each on a thread.
class LinkProbe {
 public:
  struct Found {
    double latency = 0;
    double bandwidth = 0;
  };

  Found measure() {
    tensor::DeviceOptions options;
    options.token = "probe";
    const auto one = tensor::make_device(tensor::Backend::shm, options);
    const auto other = tensor::make_device(tensor::Backend::shm, options);
    const std::vector<std::string> addresses{one->address(), other->address()};
    const auto deadline = tensor::within(kLinkDeadline);
    std::exception_ptr failure;
    std::thread echo([&] {
      try {
        run(*other->connect("probe", 1, addresses, deadline), deadline);
      } catch (...) {
        failure = std::current_exception();
      }
    });
    Found found;
    std::exception_ptr own;
    try {
      found = run(*one->connect("probe", 0, addresses, deadline), deadline);
    } catch (...) {
      own = std::current_exception();
    }
    echo.join();
    if (own) std::rethrow_exception(own);
    if (failure) std::rethrow_exception(failure);
    return found;
  }

 private:
  static constexpr int kRounds = 40;
  static constexpr int kBulks = 4;
  static constexpr std::int64_t kBulk = 1 << 20;

  /// Returns the seconds that a message takes to the other end and back; both ends make the same
  /// number of calls.
  static double there_and_back(tensor::Group& group, std::int64_t bytes, int rounds,
                               tensor::Deadline deadline) {
    const auto out = at::zeros({bytes}, at::kByte), in = at::zeros({bytes}, at::kByte);
    const int peer = 1 - group.rank();
    double best = std::numeric_limits<double>::infinity();
    for (int round = 0; round < rounds; ++round) {
      const auto start = Clock::now();
      if (group.rank() == 0) group.send(out, peer);
      group.receive(in, peer).wait(deadline);
      if (group.rank() == 1) group.send(out, peer).wait(deadline);
      best = std::min(best, std::chrono::duration<double>(Clock::now() - start).count());
    }
    return best;
  }

  static Found run(tensor::Group& group, tensor::Deadline deadline) {
    const double latency = there_and_back(group, 1024, kRounds, deadline) / 2;
    const double bulk = there_and_back(group, kBulk, kBulks, deadline) / 2;
    return {latency, static_cast<double>(kBulk) / std::max(bulk - latency, 1e-9)};
  }
};

}  // namespace

void tell_speed(at::Device device, std::map<std::string, std::string>& attributes) {
  const auto tell = [&attributes](const char* name, double value) {
    attributes[std::string("measured.") + name] = number_text(value);
  };
  try {
    const c10::InferenceMode no_gradients;
    const DeviceProbe probe(device);
    const auto quickest = device.is_cuda() ? at::kHalf : at::kFloat;
    tell("float_flops", probe.products(at::kFloat));
    if (device.is_cuda()) tell("half_flops", probe.products(at::kHalf));
    tell("attention_flops", probe.attention(quickest));
    tell("bandwidth", probe.bandwidth());
    tell("launch", probe.launch());
  } catch (const std::exception& error) {
    std::erase_if(attributes, [](const auto& said) { return said.first.starts_with("measured."); });
    attributes["measured.failed"] = first_line(error.what());
    return;
  }
  if (device.is_cuda()) return;  // the other GPUs are other actors'
  try {
    const auto link = LinkProbe().measure();
    tell("link_latency", link.latency);
    tell("link_bandwidth", link.bandwidth);
  } catch (const std::exception& error) {
    attributes["measured.failed"] = first_line(error.what());
  }
}

}  // namespace troupe::actors
