#include "transport/wire/envelope.h"

#include "base/endian.h"
#include "base/format.h"

namespace troupe::wire {
namespace {

/// Offsets of the head's parts.
enum Place : std::size_t {
  kMagicAt = 0,
  kVersionAt = 4,
  kKindAt = 6,
  kFlagsAt = 8,
  kLengthAt = 12,
  kSenderAt = 16,
  kIncarnationAt = 24,
  kSequenceAt = 32,
  kCorrelationAt = 40
};

std::string hex(std::uint32_t value) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text = "0x00000000";
  for (std::size_t i = 0; i < 8; ++i)
    text[9 - i] = kDigits[(value >> (4 * i)) & 15];
  return text;
}

}  // namespace

void encode_header(const Header& header, std::span<std::byte, kHeaderSize> out) {
  std::byte* at = out.data();
  store_le(at + kMagicAt, kMagic);
  store_le(at + kVersionAt, header.version);
  store_le(at + kKindAt, static_cast<std::uint16_t>(header.kind));
  store_le(at + kFlagsAt, header.flags);
  store_le(at + kLengthAt, header.payload_length);
  store_le(at + kSenderAt, header.sender);
  store_le(at + kIncarnationAt, header.incarnation);
  store_le(at + kSequenceAt, header.sequence);
  store_le(at + kCorrelationAt, header.correlation);
}

Header decode_header(std::span<const std::byte> frame) {
  // Magic and version keep their place in every version, so a skewed peer is told apart from
  // garbage.
  if (frame.size() < 8) {
    throw WireError(WireErrc::truncated,
                    fmt::format("[envelope] frame of {} bytes is no message", frame.size()));
  }
  const std::byte* at = frame.data();
  if (const auto magic = load_le<std::uint32_t>(at + kMagicAt); magic != kMagic) {
    throw WireError(WireErrc::bad_magic,
                    "[envelope] not a Troupe message: begins with " + hex(magic));
  }
  Header header;
  header.version = load_le<std::uint16_t>(at + kVersionAt);
  if (header.version != kProtocolVersion) {
    throw WireError(WireErrc::version_skew, "[envelope] " + version_skew_text(header.version));
  }
  if (frame.size() < kHeaderSize) {
    throw WireError(WireErrc::truncated,
                    fmt::format("[envelope] frame of {} bytes, the head alone has {}", frame.size(),
                                kHeaderSize));
  }
  header.kind = static_cast<Kind>(load_le<std::uint16_t>(at + kKindAt));
  header.flags = load_le<std::uint32_t>(at + kFlagsAt);
  header.payload_length = load_le<std::uint32_t>(at + kLengthAt);
  header.sender = load_le<std::uint64_t>(at + kSenderAt);
  header.incarnation = load_le<std::uint64_t>(at + kIncarnationAt);
  header.sequence = load_le<std::uint64_t>(at + kSequenceAt);
  header.correlation = load_le<std::uint64_t>(at + kCorrelationAt);
  if (header.flags & ~kFlagReply) {
    throw WireError(WireErrc::bad_value, "[envelope] unknown flags " + hex(header.flags));
  }
  if (header.payload_length > kMaxPayload) {
    throw WireError(WireErrc::too_large,
                    fmt::format("[envelope] payload of {} bytes, the limit is {}",
                                header.payload_length, kMaxPayload));
  }
  if (header.payload_length != frame.size() - kHeaderSize) {
    throw WireError(WireErrc::bad_length,
                    fmt::format("[envelope] head says {} bytes of payload, the frame has {}",
                                header.payload_length, frame.size() - kHeaderSize));
  }
  return header;
}

void FrameHead::set_correlation(std::uint64_t correlation) {
  store_le(head_ + kCorrelationAt, correlation);
}

void FrameHead::set_sender(std::uint64_t sender, std::uint64_t incarnation,
                           std::uint64_t sequence) {
  store_le(head_ + kSenderAt, sender);
  store_le(head_ + kIncarnationAt, incarnation);
  store_le(head_ + kSequenceAt, sequence);
}

Kind kind_of(std::string_view frame) {
  return static_cast<Kind>(
      load_le<std::uint16_t>(reinterpret_cast<const std::byte*>(frame.data()) + kKindAt));
}

std::uint64_t answered_by(std::string_view frame) {
  const auto* head = reinterpret_cast<const std::byte*>(frame.data());
  const bool reply = load_le<std::uint32_t>(head + kFlagsAt) & kFlagReply;
  return reply ? load_le<std::uint64_t>(head + kCorrelationAt) : 0;
}

std::string version_skew_text(std::uint16_t theirs) {
  return fmt::format(
      "protocol version {} of the other side does not go with version {} of this side; use the "
      "same Troupe on both",
      theirs, kProtocolVersion);
}

}  // namespace troupe::wire
