#include "transport/control/types.h"

#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <latch>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>
#include <zmq.hpp>

#include "base/available_memory.h"
#include "base/format.h"
#include "transport/control/descriptors.h"

namespace troupe::control {
namespace {

constexpr int kThreads = 8;               // a context's own, and some for whoever wants it
constexpr std::size_t kDescriptors = 16;  // likewise

void require_room_for_threads() {
  std::latch done(1);
  std::vector<std::thread> threads;
  std::string why;
  try {
    for (int i = 0; i < kThreads; ++i)
      threads.emplace_back([&done] { done.wait(); });
  } catch (const std::system_error& error) {
    why = error.code().message();
  }
  done.count_down();
  for (auto& thread : threads)
    thread.join();
  if (!why.empty()) throw std::runtime_error("[control] " + no_threads_text(why));
}

/// ZeroMQ ends the process where it cannot have an epoll descriptor.
void require_room_for_descriptors() {
  const auto used = descriptors_in_use();
  if (used + kDescriptors > descriptor_limit())
    throw std::runtime_error(fmt::format(
        "[control] too many open files: {} of {} are in use, and {} more are needed (ulimit -n)",
        used, descriptor_limit(), kDescriptors));
}

}  // namespace

std::uint64_t random_incarnation() {
  std::uint64_t number = 0;
  while (number == 0) {
    if (getrandom(&number, sizeof number, 0) != sizeof number) {
      throw std::runtime_error("[control] the system gives no random bytes");
    }
  }
  return number;
}

std::string random_secret() {
  std::array<char, 40> text{};
  std::snprintf(text.data(), text.size(), "%016llx%016llx",
                static_cast<unsigned long long>(random_incarnation()),
                static_cast<unsigned long long>(random_incarnation()));
  return text.data();
}

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

void Reply::throw_wrong_kind(wire::Kind wanted) const {
  const std::string got =
      failure_ ? "a failure (" + failure_->what + ")" : wire::to_string(header_.kind);
  throw wire::WireError(wire::WireErrc::wrong_kind,
                        fmt::format("[reply] expected {}, got {}", wire::to_string(wanted), got));
}

std::shared_ptr<zmq::context_t> make_context() {
  require_room_for_descriptors();
  require_room_for_threads();
  return std::make_shared<zmq::context_t>(1);
}

}  // namespace troupe::control
