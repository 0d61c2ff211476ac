#include "client/cli/terminal.h"

#include <sstream>

#include "tests/support/doctest.h"

using namespace troupe::cli;

namespace {

std::size_t characters(const std::string& text) {
  std::size_t count = 0;
  for (const char c : text)
    count += (static_cast<unsigned char>(c) & 0xc0) != 0x80;
  return count;
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);)
    lines.push_back(line);
  return lines;
}

const Row kHeads = {"ID", "STATE", "WHAT"};
const std::vector<Row> kRows = {{"0", "ready", "-"},
                                {"1", "busy", "job 3 step 5 patch 1 stage 0, élan vital"}};

}  // namespace

TEST_CASE("a table without a limit, or within it, is as wide as its cells") {
  const std::string whole =
      "ID  STATE  WHAT\n0   ready  -\n1   busy   job 3 step 5 patch 1 stage 0, élan vital\n";
  CHECK(table(kHeads, kRows) == whole);
  CHECK(table_width(kHeads, kRows) == 51);
  CHECK(table(kHeads, kRows, 51) == whole);
  CHECK(table(kHeads, {}, 10) == "ID  S…  W…\n");
}

TEST_CASE("a table that is too wide wraps its widest cells between words") {
  CHECK(table(kHeads, kRows, 30) ==
        "ID  STATE  WHAT\n"
        "0   ready  -\n"
        "1   busy   job 3 step 5 patch\n"
        "           1 stage 0, élan\n"
        "           vital\n");
  CHECK(table({"A"}, {{"abcdefghij"}}, 4) == "A\nabcd\nefgh\nij\n");
}

TEST_CASE("what a terminal would obey is not printed") {
  CHECK(printable("\x1b]0;a\x07 b\tc\nd\x7f") == "?]0;a? b\tc\nd?");
  CHECK(printable("\xc2\x9b"
                  "31m \xe2\x80\xae \xe2\x81\xa9 \xc2\xa0 é … \xe2\x80\x9c") ==
        "?31m ? ? \xc2\xa0 é … \xe2\x80\x9c");
  CHECK(printable("\xc2 \xff\xfe \xf0\x9f\x8e é\xa9") == "? ?? ??? é?");
  CHECK(on_one_line("a\nb\tc") == "a b c");
  CHECK(table({"A"}, {{"x\ny \xff"}, {"z"}}) == "A\nx y ?\nz\n");
  CHECK(shorten("a\x1b[31m\nb", 20) == "a?[31m b");
  for (const auto overflow : {Overflow::wrap, Overflow::shorten})
    CHECK(table({"A"}, {{"\x1b[2J"}}, 0, overflow) == "A\n?[2J\n");
}

TEST_CASE("or shortens them, so that every row stays one line") {
  CHECK(table(kHeads, kRows, 30, Overflow::shorten) ==
        "ID  STATE  WHAT\n0   ready  -\n1   busy   job 3 step 5 patch…\n");
}

TEST_CASE("no line is longer than the terminal, however narrow it is") {
  for (std::size_t width = 7; width < 60; ++width) {
    for (const auto overflow : {Overflow::wrap, Overflow::shorten}) {
      CAPTURE(width);
      for (const auto& line : lines_of(table(kHeads, kRows, width, overflow)))
        CHECK(characters(line) <= width);
    }
  }
}
