#include "transport/control/types.h"

#include <sys/random.h>
#include <unistd.h>

#include <array>
#include <stdexcept>
#include <zmq.hpp>

namespace troupe::control {

std::uint64_t random_incarnation() {
  std::uint64_t number = 0;
  while (number == 0) {
    if (getrandom(&number, sizeof number, 0) != sizeof number) {
      throw std::runtime_error("[control] the system gives no random bytes");
    }
  }
  return number;
}

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "unknown";
}

void Reply::throw_wrong_kind(unsigned wanted) const {
  const std::string got = failure_ ? "a failure (" + failure_->what + ")"
                                   : "kind " + std::to_string(static_cast<unsigned>(header_.kind));
  throw wire::WireError(wire::WireErrc::wrong_kind,
                        "[reply] expected kind " + std::to_string(wanted) + ", got " + got);
}

std::shared_ptr<zmq::context_t> make_context() {
  return std::make_shared<zmq::context_t>(1);
}

}  // namespace troupe::control
