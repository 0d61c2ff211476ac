"""Prompts through the pipeline's own caption cleaning."""
from diffusers import PixArtAlphaPipeline
from diffusers.utils import is_bs4_available, is_ftfy_available

from common import PROMPT, Book

PROMPTS = [
    PROMPT, "", "   ", "A Red CIRCLE", "ÀÉÎ İstanbul ΟΔΟΣ", "a+red%20circle %c3%a9 100% 5%zz",
    "<person> holding a <Person>", "see https://example.com/a?b=c now", "WWW:/ and www.example.org/path/x_y-z/ end",
    "mail bob@example.com or @bob_1 today", "a cat.company and nets.it",
    "<b>bold</b> and <a href='x>y'>a link</a><br/>end", "i <3 you, 2 < 3 & 4 > 1", "an <unclosed tag", "<!-- note -->a<script>var x = 1 < 2;</script>b",
    "caf&eacute; &amp; bar&quot;s &#233; &#xe9; &#x80; &unknown; &copy", "&amp;lt;b&amp;gt; &amp;amp;quot; AT&T &a", "日本 の 中文 猫 ㈱ ䷀ cat",
    "a—b – c ‑ d − e ～ f", "«quoted» “double” ‘single’ `tick´ ´s", "at 192.168.10.254:80 or 1.2.3", "dinner at 7:30   ", r"one\ntwo\three",
    "#12 #1234 #12345 #tag 123456 12345", "photo_01.jpg and my.file.png!", 'wow!!! "\'\'quoted\'\' word\'s"', "wait... what.. a . b",
    "**bold** [x] {y} |z| a/b\\c ~ ¡hola! ¿que? ®™", "this-is-my-cute-cat", "a-b-c well_known", "many_words-joined_by-things here",
    "ﬁne ﬂoors, ĳs ﬅ", "ｆｕｌｌ ｗｉｄｔｈ　１２ ｶﾞ", "smart ʼquote’ ‚low‛ „x‟", "jc6640 abc123456 jc6640vc 6640vc231 a1b", "j2d1a2a x 12ab34cd5",
    "worldwide free shipping, free  shipping, Shipping", "free download free now download", "click for more, click on this", "png images jpg image mp4 ajpg", "page 12 of pages 3",
    "10x20 5.5х4 3×4cm 2x", "a : b : c", "one,two.three/four 3,000 4.5", "'single'", '"a" and "b"', "-dash at start and end-", ".hidden", ". hidden", "_", "zero\u200bwidth\u00a0space\u2028line",
    "a\x07bell \x1b[31mred\x1b[0m", "tab\tnew\nline\r\nend", "é e\u0301 naïve", "🐱 a 🐱🐱 cat", "²³ ½ x² ٣٤٥٦٧٨", "Привет-мир 10х15 см", "<ruby>a<rt>b</rt></ruby> <template>t</template>c",
    "<![CDATA[kept]]> <?pi x> <!doctype html>x", "&#38;eacute; &amp;#65;BC12 d", " ".join(["a cat-like thing, 10x10"] * 12),
]


def make():
    assert is_bs4_available() and is_ftfy_available(), "without beautifulsoup4 and ftfy diffusers does not clean at all"
    pipe = PixArtAlphaPipeline.__new__(PixArtAlphaPipeline)
    book = Book("captions", "PixArtAlphaPipeline._text_preprocessing(prompt, clean_caption=True); `once`: _clean_caption(prompt), which that calls twice.")
    for k, prompt in enumerate(PROMPTS):
        book.case(str(k), {"prompt": prompt, "once": pipe._clean_caption(prompt), "clean": pipe._text_preprocessing(prompt, clean_caption=True)[0]}, {})
    changed = sum(case["clean"] != case["prompt"].lower().strip() for case in book.cases)
    print(f"  {changed} of {len(PROMPTS)} prompts change by more than lower case")
    book.save()
