#include <fstream>
#include <nlohmann/json.hpp>

#include "models/text/clean_caption.h"
#include "models/text/html_text.h"
#include "models/text/pattern.h"
#include "models/text/unicode.h"
#include "tests/support/doctest.h"

using namespace troupe::models;

TEST_CASE("captions come out as diffusers cleans them") {
  const auto book = nlohmann::json::parse(
      std::ifstream(TROUPE_SOURCE_DIR "/tests/fixtures/expected/captions.json"));
  const CaptionCleaner cleaner;
  int changed = 0;
  for (const auto& of : book.at("cases")) {
    const auto prompt = of.at("prompt").get<std::string>();
    CAPTURE(prompt);
    const auto clean = cleaner.clean(prompt);
    CHECK(clean == of.at("clean").get<std::string>());
    changed += clean != prompt;
  }
  CHECK(book.at("cases").size() >= 40);
  CHECK(changed >= 40);
}

TEST_CASE("cleaning what no caption should be neither fails nor hangs") {
  const CaptionCleaner cleaner;
  const std::string pieces[] = {"a.",    "<a b=\"", "</script", "<script>", "&#",
                                "&a",    "<!--",    "<![",      "\xff\xc3", "%ff",
                                "\x1b[", "@",       "'",        "x.png",    "%"};
  for (const auto& piece : pieces) {
    std::string text;
    while (text.size() < 1000)
      text += piece;
    CAPTURE(piece);
    CHECK_NOTHROW(cleaner.clean(text));
  }
  CHECK(cleaner.clean(std::string("a\0b", 3)) == "ab");
  CHECK(cleaner.clean("100\xff") == "100\ufffd");
}

TEST_CASE("HTML leaves its text behind") {
  CHECK(html_text("a <b>bold</b><br>tale") == "a boldtale");
  CHECK(html_text("i <3 you & me <unclosed") == "i <3 you & me <unclosed");
  CHECK(html_text("<a title='>'>link</a>") == "link");
  CHECK(html_text("x<!-- gone --><script>if (a < b) {}</script>y") == "xy");
  CHECK(html_text("<template><p>gone</template>kept</p>") == "kept");
  CHECK(html_text("&eacute; &#233; &#xe9; &#128; &nosuch; &lt;b&gt;") == "é é é € &nosuch <b>");
}

TEST_CASE("character references follow HTML's rules") {
  CHECK(unescape_html("&lt;b&gt; &amp;amp; &ltfoo &notit; &copy", References::lenient) ==
        "<b> &amp; <foo ¬it; ©");
  CHECK(unescape_html("&lt;b&gt; &ltfoo &copy &#65; &#65", References::terminated) ==
        "<b> &ltfoo &copy A &#65");
  CHECK(unescape_html("&#0;&#xd800;&#x110000;&#99999999999999999999;", References::lenient) ==
        "\ufffd\ufffd\ufffd\ufffd");
  CHECK(unescape_html("&#1;&#x7f;&#xfffe;&#x97;", References::lenient) == "—");
  CHECK(unescape_html("& && &; &#; &#x;", References::lenient) == "& && &; &#; &#x;");
  CHECK(entity_text("nGt").empty());
  CHECK(entity_text("ngt") == "≯");
  CHECK(entity_text("bne") == "=\u20e5");
}

TEST_CASE("repaired text is plain") {
  CHECK(repair_text("“ﬁne” ‘ﬂoor’ ｆｕｌｌ　ｶ ￣") == "\"fine\" 'floor' full カ  \u0304");
  CHECK(repair_text("e\u0301 o\u0302\u0301 ｶﾞ q\u0301") == "é ố ガ q\u0301");
  CHECK(repair_text("a\r\nb\rc\u2028d\u0085\u0097") == "a\nb\nc\nd…—");
  CHECK(repair_text("a\x07 \x1b[31mred\x1b[0m \ufeff\tz") == "a red \tz");
  CHECK(repair_text("&amp;amp;lt;") == "<");
  CHECK(repair_text("a < b &amp; c\n&amp;") == "a < b &amp; c\n&amp;");
  CHECK(repair_text("é Ã© \xf0\x9f\x90\xb1") == "é Ã© \xf0\x9f\x90\xb1");
  CHECK(repair_text("") == "");
}

TEST_CASE("letters and marks compose") {
  CHECK(nfc("e\u0301 A\u030A a\u0302\u0323 a\u0323\u0302") == "é Å ậ ậ");
  CHECK(nfc("\u1112\u1161\u11ab\u1100\u1173\u11af") == "한글");
  CHECK(nfc("가\u11a7 각\u11a8") == "가\u11a7 각\u11a8");
  CHECK(nfc(std::string("\0\0e\xcc\x81", 5)) == std::string("\0\0é", 4));
  CHECK(nfc("").empty());
}

TEST_CASE("patterns read classes as Python does") {
  CHECK(Pattern(R"(\w+)", "w").replace_all("über_2 日本 e\u0301 x") == "w w w\u0301 w");
  CHECK(Pattern(R"(\d)", "d").replace_all("1٣²½") == "dd²½");
  CHECK(Pattern(R"(\s)", "")
            .replace_all("a\x1c\u00a0\u3000\u180e"
                         "b") ==
        "a\u180e"
        "b");
  CHECK(Pattern(R"(\b[a-z]\b)", "-").replace_all("a é b éc d") == "- é - éc -");
  CHECK(Pattern(R"((\D)[.]\b)", "$1 ").replace_all("a.b 1.2 a.") == "a b 1.2 a.");
  CHECK(Pattern("x", std::string(100, 'y')).replace_all("xx").size() == 200);
  CHECK_THROWS_AS(Pattern("("), std::invalid_argument);
}
