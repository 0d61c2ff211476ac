#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

#include "transport/wire/kind.h"

namespace troupe::wire {

inline constexpr std::uint32_t kMagic = 0x50555254;    // the bytes "TRUP"
inline constexpr std::uint16_t kProtocolVersion = 13;  // tests/wire/layout_test.cpp watches over it
inline constexpr std::size_t kHeaderSize = 48;
/// Largest payload of one message, in bytes. Anything heavier goes as a blob.
inline constexpr std::size_t kMaxPayload = 1u << 20;
inline constexpr std::size_t kMaxFrame = kHeaderSize + kMaxPayload;

inline constexpr std::uint32_t kFlagReply = 1;  // correlation is the one of the request answered

/// Reason why bytes from the wire were not accepted.
enum class WireErrc {
  truncated,
  bad_magic,
  version_skew,
  too_large,
  bad_length,
  bad_value,
  trailing_bytes,
  wrong_kind,
  not_sendable
};

class WireError : public std::runtime_error {
 public:
  WireError(WireErrc code, const std::string& what) : std::runtime_error(what), code_(code) {}
  WireErrc code() const { return code_; }

 private:
  WireErrc code_;
};

/// The fixed head of every message, little-endian on the wire:
///   0 magic u32 | 4 version u16 | 6 kind u16 | 8 flags u32 | 12 payload length u32 |
///   16 sender u64 | 24 incarnation u64 | 32 sequence u64 | 40 correlation u64
struct Header {
  std::uint16_t version = kProtocolVersion;
  Kind kind{};
  std::uint32_t flags = 0;
  std::uint32_t payload_length = 0;
  std::uint64_t sender = 0;
  std::uint64_t incarnation = 0;  // of the sending process; a restarted process is a new one
  std::uint64_t sequence = 0;     // per link and direction, from 1
  std::uint64_t correlation = 0;  // 0 = neither a request nor an answer

  bool is_reply() const { return flags & kFlagReply; }
  bool is_request() const { return correlation != 0 && !is_reply(); }
  bool operator==(const Header&) const = default;
};

/// Writes the head into the first kHeaderSize bytes of `out`.
void encode_header(const Header& header, std::span<std::byte, kHeaderSize> out);

/// Reads the head of a whole frame. Throws WireError: truncated, bad_magic, version_skew (the text
/// names both versions), too_large (payload over kMaxPayload), bad_length (the frame has more or
/// fewer bytes than the head says), bad_value (unknown flags).
Header decode_header(std::span<const std::byte> frame);

/// The head of a frame that encode_frame made, in place: what the sender reads of it, and what only
/// the link knows.
class FrameHead {
 public:
  explicit FrameHead(std::string& frame) : head_(reinterpret_cast<std::byte*>(frame.data())) {}
  void set_correlation(std::uint64_t correlation);
  void set_sender(std::uint64_t sender, std::uint64_t incarnation, std::uint64_t sequence);

 private:
  std::byte* head_;
};
Kind kind_of(std::string_view frame);
/// The request that the frame answers; 0 where it answers none.
std::uint64_t answered_by(std::string_view frame);

/// The sentence that both ends use for two protocol versions that do not go together.
std::string version_skew_text(std::uint16_t theirs);

inline std::span<const std::byte> payload_of(std::span<const std::byte> frame) {
  return frame.subspan(kHeaderSize);
}

}  // namespace troupe::wire
