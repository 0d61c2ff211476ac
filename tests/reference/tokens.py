"""Prompts and their ids, by sentencepiece and by transformers."""
import pathlib
import shutil
import tempfile

import sentencepiece
from transformers import T5Tokenizer

from common import FIXTURES, PROMPT, ROOT, Book

PROMPTS = [
    "", " ", "a", PROMPT, "A Red Circle", "  a  red   circle  ", "a\tred\ncircle", "red,blue.green!", "café", "cafe\u0301",
    "a ﬁne ﬂoor", "ｆｕｌｌ ｗｉｄｔｈ", "naïve Ünïcode", "日本語 の picture", "a 🐱 cat", "🐱🐱", "x½ y™ z…", "zero\u200bwidth\u00a0space",
    "cats' houses - 42%", "</s>", "a <pad> circle </s> on", "<unk> red", "▁a▁red", "antidisestablishmentarianism", "0123456789",
    " ".join(["a red circle left of a blue square on a white background"] * 14),
]


def ids_of(folder, drop=None):
    """Ids by T5Tokenizer, from the folder as it is or without one of its files."""
    with tempfile.TemporaryDirectory() as work:
        shutil.copytree(folder, f"{work}/t")
        if drop:
            pathlib.Path(work, "t", drop).unlink()
        tokenizer = T5Tokenizer.from_pretrained(f"{work}/t", extra_ids=0)
        return [tokenizer(p).input_ids for p in PROMPTS]


def make():
    book = Book("tokens", "Ids of each prompt as given (no lower-casing), with </s>, without padding or truncation. `spiece`: sentencepiece on "
                "spiece.model, then 1. `json`: transformers' T5Tokenizer reading tokenizer.json. `transformers_spiece`: T5Tokenizer where only "
                "spiece.model exists; given where it differs from `spiece`.")
    for name, folder in (("tiny-pixart", FIXTURES / "tiny-pixart/tokenizer"), ("demo", ROOT / "examples/demo/model/tokenizer")):
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(folder / "spiece.model"))
        slow = [pieces.encode(p) + [1] for p in PROMPTS]
        fast, converted = ids_of(folder), ids_of(folder, "tokenizer.json")
        for k, prompt in enumerate(PROMPTS):
            case = {"tokenizer": name, "prompt": prompt, "spiece": slow[k], "json": fast[k], "agree": slow[k] == fast[k]}
            if converted[k] != slow[k]:
                case["transformers_spiece"] = converted[k]
            book.case(f"{name}/{k}", case, {})
        print(f"  {name}: {sum(a != b for a, b in zip(slow, fast))} of {len(PROMPTS)} prompts differ between spiece.model and tokenizer.json, "
              f"{sum(a != b for a, b in zip(slow, converted))} between sentencepiece and transformers' own reading of spiece.model")
    book.save()
