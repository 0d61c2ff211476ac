#include "transport/wire/envelope.h"

#include <rapidcheck.h>

#include <string>

#include "tests/support/doctest.h"
#include "transport/wire/codec.h"
#include "transport/wire/session.h"

namespace troupe::wire {
namespace {

std::string sample_frame() {
  Header header;
  header.flags = kFlagReply;
  header.sender = 0x0102030405060708;
  header.incarnation = 0x1112131415161718;
  header.sequence = 0x2122232425262728;
  header.correlation = 0x3132333435363738;
  return encode_frame(header, Heartbeat{5});
}

WireError error_of(const std::string& frame) {
  try {
    decode_header(as_bytes(frame));
  } catch (const WireError& error) {
    return error;
  }
  throw std::runtime_error("nothing was refused");
}

}  // namespace

TEST_CASE("golden bytes of a frame") {
  static const unsigned char kGolden[] = {
      'T',  'R',  'U',  'P',  13,   0,    4,    0,    1,    0,    0,    0,    8,    0,
      0,    0,    0x08, 0x07, 0x06, 0x05, 0x04, 0x03, 0x02, 0x01, 0x18, 0x17, 0x16, 0x15,
      0x14, 0x13, 0x12, 0x11, 0x28, 0x27, 0x26, 0x25, 0x24, 0x23, 0x22, 0x21, 0x38, 0x37,
      0x36, 0x35, 0x34, 0x33, 0x32, 0x31, 5,    0,    0,    0,    0,    0,    0,    0};
  const std::string frame = sample_frame();
  CHECK(frame == std::string(reinterpret_cast<const char*>(kGolden), sizeof kGolden));
  const Header header = decode_header(as_bytes(frame));
  CHECK(header.kind == Kind::heartbeat);
  CHECK(header.is_reply());
  CHECK_FALSE(header.is_request());
  CHECK(decode<Heartbeat>(payload_of(as_bytes(frame))).progress == 5);
}

TEST_CASE("a head comes back as it was") {
  const bool held = rc::check(
      "head", [](std::uint16_t kind, bool reply, std::uint64_t sender, std::uint64_t incarnation,
                 std::uint64_t sequence, std::uint64_t correlation) {
        Header header;
        header.kind = static_cast<Kind>(kind);
        header.flags = reply ? kFlagReply : 0;
        header.sender = sender;
        header.incarnation = incarnation;
        header.sequence = sequence;
        header.correlation = correlation;
        std::array<std::byte, kHeaderSize> bytes;
        encode_header(header, bytes);
        RC_ASSERT(decode_header(bytes) == header);
      });
  CHECK(held);
}

TEST_CASE("a frame cut anywhere is refused") {
  const std::string frame = sample_frame();
  for (std::size_t cut = 0; cut < frame.size(); ++cut) {
    CHECK_THROWS_AS(decode_header(as_bytes(frame).first(cut)), WireError);
  }
}

TEST_CASE("what is no frame of ours is told apart") {
  std::string frame = sample_frame();
  SUBCASE("magic") {
    frame[0] = 'H';
    CHECK(error_of(frame).code() == WireErrc::bad_magic);
  }
  SUBCASE("version, named on both sides") {
    frame[4] = static_cast<char>(kProtocolVersion + 1);
    const WireError error = error_of(frame);
    CHECK(error.code() == WireErrc::version_skew);
    CHECK(std::string(error.what()).find("version " + std::to_string(kProtocolVersion + 1)) !=
          std::string::npos);
    CHECK(std::string(error.what()).find("version " + std::to_string(kProtocolVersion)) !=
          std::string::npos);
  }
  SUBCASE("version, of a shorter head") {
    frame.resize(8);
    frame[4] = static_cast<char>(kProtocolVersion + 1);
    CHECK(error_of(frame).code() == WireErrc::version_skew);
  }
  SUBCASE("flags") {
    frame[9] = 1;
    CHECK(error_of(frame).code() == WireErrc::bad_value);
  }
  SUBCASE("payload over the limit") {
    frame[15] = 1;
    CHECK(error_of(frame).code() == WireErrc::too_large);
  }
  SUBCASE("payload longer than said") {
    CHECK(error_of(frame + "x").code() == WireErrc::bad_length);
  }
}

TEST_CASE("a link reads and completes the head of an encoded frame in place") {
  std::string frame = encode_frame({}, Ping{});
  CHECK(kind_of(frame) == Kind::ping);
  CHECK(answered_by(frame) == 0);
  FrameHead(frame).set_correlation(7);
  FrameHead(frame).set_sender(1, 2, 3);
  CHECK(answered_by(frame) == 0);
  const Header header = decode_header(as_bytes(frame));
  CHECK(header.is_request());
  CHECK(header.correlation == 7);
  CHECK(header.sender == 1);
  CHECK(header.incarnation == 2);
  CHECK(header.sequence == 3);
  Header answer;
  answer.flags = kFlagReply;
  answer.correlation = 7;
  CHECK(answered_by(encode_frame(answer, Pong{})) == 7);
}

}  // namespace troupe::wire
