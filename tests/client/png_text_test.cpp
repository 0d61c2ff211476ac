#include "client/cli/png_text.h"

#include <array>

#include "tests/client/scratch.h"
#include "tests/support/doctest.h"

using namespace troupe::cli;
using troupe::testing::message_of;

namespace {

std::string number(std::uint32_t value) {
  return {static_cast<char>(value >> 24), static_cast<char>(value >> 16),
          static_cast<char>(value >> 8), static_cast<char>(value)};
}

/// By table, unlike the reader's.
std::uint32_t crc_of(const std::string& bytes) {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t n = 0; n < 256; ++n) {
    table[n] = n;
    for (int k = 0; k < 8; ++k)
      table[n] = table[n] & 1 ? 0xedb88320u ^ (table[n] >> 1) : table[n] >> 1;
  }
  std::uint32_t crc = 0xffffffffu;
  for (const unsigned char byte : bytes)
    crc = table[(crc ^ byte) & 0xff] ^ (crc >> 8);
  return crc ^ 0xffffffffu;
}

std::string chunk(const std::string& type, const std::string& data) {
  return number(static_cast<std::uint32_t>(data.size())) + type + data +
         number(crc_of(type + data));
}

const std::string kSignature("\x89PNG\r\n\x1a\n", 8);
const std::string kHead =
    chunk("IHDR", number(640) + number(480) + std::string("\x08\x02\0\0\0", 5));
const std::string kEnd = chunk("IEND", "");

std::string picture() {
  using namespace std::string_literals;
  return kSignature + kHead + chunk("tEXt", "parameters\0a red \xe9\nSteps: 20"s) +
         chunk("iTXt", "prompt\0\0\0en\0\0\xc3\xa9t\xc3\xa9"s) + chunk("zTXt", "packed\0\0xyz"s) +
         chunk("IDAT", "pixels") + kEnd;
}

}  // namespace

TEST_CASE("the checksum of an empty IEND is the one in the specification") {
  CHECK(kEnd.substr(8) == "\xae\x42\x60\x82");
}

TEST_CASE("size and texts of a picture") {
  const PngInfo info = read_png_info(picture());
  CHECK(info.width == 640);
  CHECK(info.height == 480);
  REQUIRE(info.texts.size() == 3);
  CHECK(info.texts[0].keyword == "parameters");
  CHECK(info.texts[0].text == "a red \xc3\xa9\nSteps: 20");
  CHECK(info.texts[1].keyword == "prompt");
  CHECK(info.texts[1].text == "\xc3\xa9t\xc3\xa9");
  CHECK(info.texts[2].keyword == "packed");
}

TEST_CASE("every truncation and every flipped byte outside the pixels is refused or harmless") {
  const std::string whole = picture();
  for (std::size_t length = 0; length < whole.size(); ++length) {
    CHECK_FALSE(
        message_of([&] { read_png_info(std::string_view(whole).substr(0, length)); }).empty());
  }
  for (std::size_t i = 0; i < whole.size(); ++i) {
    std::string damaged = whole;
    damaged[i] = static_cast<char>(damaged[i] ^ 0x20);
    CHECK_FALSE(message_of([&] { read_png_info(damaged); }).empty());
  }
}

TEST_CASE("no picture, no header, a text without a keyword") {
  CHECK(message_of([] { read_png_info("GIF89a"); }) == "is no PNG file");
  CHECK(message_of([] { read_png_info(kSignature + kEnd); }) == "PNG has no header");
  CHECK_FALSE(message_of([] {
                read_png_info(kSignature + kHead + chunk("tEXt", "no nul") + kEnd);
              }).empty());
  CHECK_FALSE(message_of([] {
                read_png_info(kSignature + kHead + chunk("iTXt", std::string("k\0", 2)) + kEnd);
              }).empty());
}
