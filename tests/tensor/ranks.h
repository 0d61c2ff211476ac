#pragma once

#include <functional>
#include <string>
#include <vector>

#include "transport/tensor/backend.h"

namespace troupe::tensor::testing {

inline const std::string kToken = "a token for tests";

/// The backends that can run on this machine's CPU.
inline std::vector<Backend> cpu_backends() {
  return {Backend::shm, Backend::tcp};
}

/// Options with a small ring, so that ordinary messages are larger than it.
DeviceOptions small_options();

struct Member {
  Device& device;
  std::vector<std::string> addresses;
  int rank;
  Group& group;
};

/// Runs `body` on `size` ranks, each a thread with a device and a group of its own. Rethrows the
/// first exception of any.
void on_ranks(Backend backend, int size, const std::function<void(Member&)>& body,
              const DeviceOptions& options = small_options());

/// Throws std::runtime_error with `text` unless `condition`; for use off the main thread.
void require(bool condition, const std::string& text);

/// The failure that `action` ends with; throws if it ends without.
TransferError failure_of(const std::function<void()>& action);

/// Float tensor whose elements tell sender, message and place.
at::Tensor pattern(std::int64_t count, int seed);

int open_descriptors();

}  // namespace troupe::tensor::testing
