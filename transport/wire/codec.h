#pragma once
#include <span>
#include <string>

#include "transport/wire/archive.h"
#include "transport/wire/envelope.h"

namespace troupe::wire {

/// Payload bytes of a message (any struct with `serialize`). Throws WireError not_sendable over
/// kMaxPayload.
template <class M>
std::string encode(const M& message) {
  std::string bytes;
  BoundedOutput archive(bytes);
  archive(message);
  return bytes;
}

/// The message in `payload`, which it must fill exactly. Throws WireError, never anything else, and
/// allocates no more than a small multiple of the bytes given.
template <class M>
M decode(std::span<const std::byte> payload) {
  M message{};
  BoundedInput archive(payload);
  archive(message);
  archive.expect_end();
  return message;
}

/// A whole frame, head and payload, in one buffer. Fills in kind and payload length.
template <class M>
std::string encode_frame(Header header, const M& message) {
  std::string frame(kHeaderSize, '\0');
  BoundedOutput archive(frame);
  archive(message);
  header.kind = M::kKind;
  header.payload_length = static_cast<std::uint32_t>(frame.size() - kHeaderSize);
  encode_header(header, std::span<std::byte, kHeaderSize>(
                            reinterpret_cast<std::byte*>(frame.data()), kHeaderSize));
  return frame;
}

inline std::span<const std::byte> as_bytes(const std::string& bytes) {
  return {reinterpret_cast<const std::byte*>(bytes.data()), bytes.size()};
}

}  // namespace troupe::wire
