#include <rapidcheck.h>

#include <cmath>

#include "tests/support/doctest.h"
#include "tests/wire/sample.h"

namespace rc {

template <>
struct Arbitrary<troupe::wire::sample::Part> {
  static Gen<troupe::wire::sample::Part> arbitrary() {
    using troupe::wire::sample::Part;
    return gen::build<Part>(gen::set(&Part::rows), gen::set(&Part::name));
  }
};

template <>
struct Arbitrary<troupe::wire::sample::Everything> {
  static Gen<troupe::wire::sample::Everything> arbitrary() {
    using namespace troupe::wire::sample;
    using E = Everything;
    const auto one = gen::oneOf(
        gen::map(gen::arbitrary<std::int32_t>(),
                 [](std::int32_t v) { return decltype(E::one)(v); }),
        gen::map(gen::arbitrary<std::string>(),
                 [](std::string v) { return decltype(E::one)(std::move(v)); }),
        gen::map(gen::arbitrary<Part>(), [](Part v) { return decltype(E::one)(std::move(v)); }));
    const auto maybe =
        gen::oneOf(gen::just(std::optional<Part>()),
                   gen::map(gen::arbitrary<Part>(), [](Part v) { return std::optional<Part>(v); }));
    return gen::build<E>(
        gen::set(&E::flag), gen::set(&E::small), gen::set(&E::medium), gen::set(&E::large),
        gen::set(&E::real),
        gen::set(&E::colour, gen::element(Colour::red, Colour::green, Colour::blue)),
        gen::set(&E::text), gen::set(&E::bytes), gen::set(&E::shape), gen::set(&E::flags),
        gen::set(&E::parts), gen::set(&E::triple), gen::set(&E::entries), gen::set(&E::both),
        gen::set(&E::maybe, maybe), gen::set(&E::one, one));
  }
};

}  // namespace rc

namespace troupe::wire {
namespace {

using sample::Everything;

WireErrc error_of(const auto& work) {
  try {
    work();
  } catch (const WireError& error) {
    return error.code();
  }
  throw std::runtime_error("nothing was refused");
}

std::string le32(std::uint32_t value) {
  std::string bytes(4, '\0');
  store_le(reinterpret_cast<std::byte*>(bytes.data()), value);
  return bytes;
}

struct Text {
  std::string text;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(text);
  }
};

struct Numbers {
  std::vector<std::int64_t> values;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(values);
  }
};

struct Parts {
  std::vector<sample::Part> parts;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(parts);
  }
};

struct Entries {
  std::map<std::string, std::uint8_t> entries;
  template <class Archive>
  void serialize(Archive& ar) {
    ar(entries);
  }
};

}  // namespace

TEST_CASE("what is encoded comes back, and in one way only") {
  const bool held = rc::check("round trip", [](const Everything& message) {
    const std::string bytes = encode(message);
    const auto back = decode<Everything>(as_bytes(bytes));
    RC_ASSERT(back == message);
    RC_ASSERT(encode(back) == bytes);
  });
  CHECK(held);
}

TEST_CASE("every cut of a message is refused") {
  const bool held = rc::check("truncation", [](const Everything& message) {
    const std::string bytes = encode(message);
    for (std::size_t cut = 0; cut < bytes.size(); ++cut) {
      RC_ASSERT_THROWS_AS(decode<Everything>(as_bytes(bytes).first(cut)), WireError);
    }
  });
  CHECK(held);
}

TEST_CASE("bytes after a message are refused") {
  const std::string bytes = encode(Everything{}) + "x";
  CHECK(error_of([&] { decode<Everything>(as_bytes(bytes)); }) == WireErrc::trailing_bytes);
}

TEST_CASE("golden bytes") {
  Everything message;
  message.flag = true;
  message.small = -2;
  message.medium = 0x1234;
  message.large = -1;
  message.real = 1.0;
  message.colour = sample::Colour::blue;
  message.text = "hi";
  message.shape = {3};
  message.flags = {true, false};
  message.parts = {{7, "p"}};
  message.triple = {1, 2, 3};
  message.entries = {{"k", "v"}};
  message.both = {5, ""};
  message.maybe = sample::Part{1, ""};
  message.one = "s";
  static const unsigned char kGolden[] = {
      1,                                                                       // flag
      0xfe,                                                                    // small
      0x34, 0x12,                                                              // medium
      0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,                          // large
      0,    0,    0,    0,    0,    0,    0xf0, 0x3f,                          // real
      2,                                                                       // colour
      2,    0,    0,    0,    'h',  'i',                                       // text
      0,    0,    0,    0,                                                     // bytes
      1,    0,    0,    0,    3,    0,    0,    0,    0,   0, 0, 0,            // shape
      2,    0,    0,    0,    1,    0,                                         // flags
      1,    0,    0,    0,    7,    0,    0,    0,    1,   0, 0, 0, 'p',       // parts
      1,    0,    0,    0,    2,    0,    0,    0,    3,   0, 0, 0,            // triple
      1,    0,    0,    0,    1,    0,    0,    0,    'k', 1, 0, 0, 0,   'v',  // entries
      5,    0,    0,    0,    0,    0,    0,    0,                             // both
      1,    1,    0,    0,    0,    0,    0,    0,    0,                       // maybe
      1,    1,    0,    0,    0,    's',                                       // one
  };
  CHECK(encode(message) == std::string(reinterpret_cast<const char*>(kGolden), sizeof kGolden));
}

TEST_CASE("values that no encoder writes are refused") {
  std::string bytes = encode(Everything{});
  SUBCASE("a bool of 2") {
    bytes[0] = 2;
  }
  SUBCASE("an enum beyond its last value") {
    bytes[20] = 3;
  }
  SUBCASE("a variant without such an alternative") {
    bytes[bytes.size() - 5] = 3;
  }
  SUBCASE("an optional that is neither here nor not") {
    bytes[bytes.size() - 6] = 9;
  }
  CHECK(error_of([&] { decode<Everything>(as_bytes(bytes)); }) == WireErrc::bad_value);
}

TEST_CASE("a length is held against the bytes that remain before anything is allocated") {
  for (const std::uint32_t length : {1u, 0x7fffffffu, 0x80000000u, 0xffffffffu}) {
    CHECK(error_of([&] { decode<Text>(as_bytes(le32(length))); }) == WireErrc::bad_length);
    CHECK(error_of([&] { decode<Numbers>(as_bytes(le32(length))); }) == WireErrc::bad_length);
    CHECK(error_of([&] { decode<Parts>(as_bytes(le32(length))); }) == WireErrc::bad_length);
    CHECK(error_of([&] { decode<Entries>(as_bytes(le32(length))); }) == WireErrc::bad_length);
  }
  // Two parts of at least 8 bytes each do not fit into 15.
  CHECK(error_of([&] { decode<Parts>(as_bytes(le32(2) + std::string(15, '\0'))); }) ==
        WireErrc::bad_length);
  CHECK(decode<Parts>(as_bytes(le32(2) + std::string(16, '\0'))).parts.size() == 2);
}

TEST_CASE("map keys must ascend") {
  const std::string a = le32(1) + "a" + '\1';
  const std::string b = le32(1) + "b" + '\1';
  CHECK(decode<Entries>(as_bytes(le32(2) + a + b)).entries.size() == 2);
  CHECK(error_of([&] { decode<Entries>(as_bytes(le32(2) + b + a)); }) == WireErrc::bad_value);
  CHECK(error_of([&] { decode<Entries>(as_bytes(le32(2) + a + a)); }) == WireErrc::bad_value);
}

TEST_CASE("nesting is bounded") {
  const auto nested = [](int depth) {
    std::string bytes;
    for (int i = 1; i < depth; ++i)
      bytes += le32(1);
    return bytes + le32(0);
  };
  CHECK(decode<sample::Tree>(as_bytes(nested(kMaxDepth))).children.size() == 1);
  CHECK(error_of([&] { decode<sample::Tree>(as_bytes(nested(kMaxDepth + 1))); }) ==
        WireErrc::bad_value);
  CHECK(error_of([&] { decode<sample::Tree>(as_bytes(nested(200'000))); }) == WireErrc::bad_value);
}

TEST_CASE("a message beyond the limit cannot be encoded") {
  CHECK(encode(Text{std::string(kMaxPayload - 4, 'x')}).size() == kMaxPayload);
  CHECK(error_of([] { encode(Text{std::string(kMaxPayload - 3, 'x')}); }) ==
        WireErrc::not_sendable);
}

}  // namespace troupe::wire
