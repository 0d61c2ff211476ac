#include "transport/wire/archive.h"

#include <limits>

#include "base/format.h"

namespace troupe::wire {

void BoundedOutput::write_length(std::size_t length) {
  if (length > std::numeric_limits<std::uint32_t>::max()) throw_too_large();
  std::byte bytes[4];
  store_le(bytes, static_cast<std::uint32_t>(length));
  write(bytes, sizeof bytes);
}

void BoundedOutput::throw_too_large() {
  throw WireError(
      WireErrc::not_sendable,
      fmt::format("[encode] message is larger than {} bytes; send it as a blob", kMaxPayload));
}

std::size_t BoundedInput::take_length(std::size_t min_element) {
  const std::size_t length = load_le<std::uint32_t>(take(4));
  // An element of no bytes would make any length fit.
  const std::size_t most = remaining() / (min_element ? min_element : 1);
  if (length > most) {
    throw WireError(
        WireErrc::bad_length,
        fmt::format("[decode] length {}, but at most {} fit into the {} bytes that remain", length,
                    most, remaining()));
  }
  return length;
}

void BoundedInput::expect_end() const {
  if (remaining()) {
    throw WireError(WireErrc::trailing_bytes,
                    fmt::format("[decode] {} bytes too many after the message", remaining()));
  }
}

void BoundedInput::throw_truncated(std::size_t wanted) const {
  throw WireError(
      WireErrc::truncated,
      fmt::format("[decode] message ends early: {} bytes wanted, {} left", wanted, remaining()));
}

void BoundedInput::throw_bad_value(const std::string& what) {
  throw WireError(WireErrc::bad_value, "[decode] " + what);
}

void BoundedInput::throw_too_deep() {
  throw WireError(WireErrc::bad_value, fmt::format("[decode] nested deeper than {}", kMaxDepth));
}

}  // namespace troupe::wire
