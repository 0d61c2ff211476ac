"""CLIP: a small vocabulary, two tokenizers in three forms of files, ids of many strings, two encoders' states."""
import collections
import json
import random
import shutil
import unicodedata

import torch
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

from checkpoints import WORDS
from common import FIXTURES, Book, randomise
from tokens import PROMPTS

FOLDER = FIXTURES / "tiny-clip"
LENGTH = 77


def byte_letters():
    """GPT-2's letter for each byte."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in plain]
    return {**{b: chr(b) for b in plain}, **{b: chr(256 + k) for k, b in enumerate(rest)}}


def learn(words, count, end="</w>"):
    """Byte pairs of `words` (text: how often), most frequent first; `end` is said at a word's end."""
    letters, merges = byte_letters(), []
    split = {w: [letters[b] for b in w.encode()] for w in words}
    for parts in split.values():
        parts[-1] += end
    while len(merges) < count:
        pairs = collections.Counter()
        for w, parts in split.items():
            for pair in zip(parts, parts[1:]):
                pairs[pair] += words[w]
        if not pairs:
            break
        best = max(pairs, key=lambda p: (pairs[p], p))
        merges.append(best)
        for parts in split.values():
            k = 0
            while k + 1 < len(parts):
                if (parts[k], parts[k + 1]) == best:
                    parts[k:k + 2] = ["".join(best)]
                k += 1
    return merges


def make_tokenizers():
    shutil.rmtree(FOLDER, ignore_errors=True)
    random.seed(3)
    words = collections.Counter({w: random.randint(3, 30) for w in WORDS})
    words.update({"aaaa": 9, "aaaaaaa": 7, "café": 6, "naïve": 5, "über": 4, "日本": 6, "語": 4, "кот": 5, "🐱": 6, "🐱🐱": 2, "...": 5, "!!": 3, "don": 8, "'s": 9, "'t": 8, "houses": 9})
    merges = learn(words, 230)
    vocabulary = {}
    letters = [byte_letters()[b] for b in [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)] + [b for b in range(256) if byte_letters()[b] >= "\u0100"]]
    for token in [*letters, *(c + "</w>" for c in letters), *("".join(m) for m in merges), "<|startoftext|>", "<|endoftext|>"]:
        vocabulary.setdefault(token, len(vocabulary))

    def token(content, normalized=True):
        return {"content": content, "lstrip": False, "normalized": normalized, "rstrip": False, "single_word": False}
    start, end = token("<|startoftext|>"), token("<|endoftext|>")
    head = {"add_prefix_space": False, "clean_up_tokenization_spaces": True, "do_lower_case": True, "errors": "replace", "model_max_length": LENGTH,
            "tokenizer_class": "CLIPTokenizer"}
    named = {"bos_token": {"__type": "AddedToken", **start}, "eos_token": {"__type": "AddedToken", **end}, "unk_token": {"__type": "AddedToken", **end}}
    listed = {str(vocabulary[t["content"]]): {**t, "special": True} for t in (token("!", False), start, end)}
    for name, config in (("tokenizer", {**head, **named, "pad_token": "<|endoftext|>"}),
                         ("tokenizer_2", {**head, "added_tokens_decoder": listed, "bos_token": "<|startoftext|>", "eos_token": "<|endoftext|>",
                                          "pad_token": "!", "unk_token": "<|endoftext|>"})):
        folder = FOLDER / name
        folder.mkdir(parents=True)
        (folder / "vocab.json").write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
        (folder / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges), encoding="utf-8")
        (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    (FOLDER / "tokenizer/special_tokens_map.json").write_text(
        json.dumps({"bos_token": start, "eos_token": end, "pad_token": "<|endoftext|>", "unk_token": end}, indent=2), encoding="utf-8")
    CLIPTokenizer.from_pretrained(FOLDER / "tokenizer_2").save_pretrained(FOLDER / "tokenizer_json")
    return vocabulary


def strings():
    """Written ones, and random ones of all kinds of characters."""
    out = [*PROMPTS, "don't we'll they're I'm he'd I've it's CAT'S", "''s 's's '", "<|startoftext|>", "<|ENDOFTEXT|> x", "a<|endoftext|>b !", "wow!!! !a! ! ", "a!b",
           "aaaaaaaaaaaaaaaaaaaaaaa", "ΟΔΟΣ ΣΑΣ Σ İx ẞ", "\x00a\x01\x1f b\x7f\u0085c", "a\u200db \ufeffc", "👩‍👩‍👧‍👦 👍🏽 🇫🇷", "e\u0301\u0327 a\u0323\u0302 \u0301a", "가각 \u1100\u1161\u11a8",
           "Å Ω ſ ﬁ ① ² ½ ٣٤", "１２ ＡＢ", "Ǆ ǅ", "x" * 300, "🐱" * 60, "\t\n\r\x0b\x0c \u2028\u2029\u1680", "a_b-c/d\\e", "𝔘𝔫𝔦 𐐀𐐁", "\U0002f800 \uf900 \u2126 \u0344 \u0958", "क़ क्षि ไทย עִבְרִית عَرَبِيّ"]
    r = random.Random(11)
    pools = [[w.title() if r.random() < 0.2 else w for w in WORDS], list(" \t\n  \u00a0\u3000"), list("!?.,'\"-#%&()<|>/"), list("0123456789"),
             list("éèüñçøåßÆŒĳ"), list("абвГДЖёЙ"), list("日本語中文猫한국어"), list("🐱🎨👍🏽🏳\ufe0f\u200d🌈"), [chr(c) for c in range(0x20)], [chr(c) for c in range(0x300, 0x330)],
             ["<|endoftext|>", "<|startoftext|>", "'s", "'t", "'ll"],
             [c for c in map(chr, range(0x80, 0x1FFFF)) if unicodedata.category(c) not in ("Cn", "Cs", "Co")]]
    for _ in range(260):
        chosen = r.sample(pools, r.randint(1, 4))
        joint = r.choice(["", " ", ""])
        out.append(joint.join(r.choice(r.choice(chosen)) for _ in range(r.randint(1, 24))))
    return list(dict.fromkeys(out))


def make_encoders(vocabulary):
    shared = dict(vocab_size=len(vocabulary), max_position_embeddings=LENGTH, bos_token_id=0, pad_token_id=1)
    first = CLIPTextModel(CLIPTextConfig(**shared, hidden_size=24, intermediate_size=56, num_hidden_layers=3, num_attention_heads=3, projection_dim=24,
                                         hidden_act="quick_gelu", eos_token_id=2))
    second = CLIPTextModelWithProjection(CLIPTextConfig(**shared, hidden_size=40, intermediate_size=72, num_hidden_layers=4, num_attention_heads=2,
                                                        projection_dim=16, hidden_act="gelu", eos_token_id=len(vocabulary) - 1))
    for seed, (name, model) in enumerate((("text_encoder", first), ("text_encoder_2", second)), 21):
        randomise(model, seed, {"embedding": 3.0, "q_proj": 1.5}).save_pretrained(FOLDER / name)


def make():
    vocabulary = make_tokenizers()
    make_encoders(vocabulary)
    tokenizers = {n: CLIPTokenizer.from_pretrained(FOLDER / n) for n in ("tokenizer", "tokenizer_2", "tokenizer_json")}
    book = Book("clip_tokens", "Ids by CLIPTokenizer of tests/fixtures/tiny-clip/NAME, begin and end included, not cut. `cut`: padded and cut to 12. "
                "tokenizer_2's ids are given where they are not tokenizer's. tokenizer_json is tokenizer_2 as transformers saves it; its ids are "
                "given where they differ.")
    for k, prompt in enumerate(strings()):
        ids = {n: t(prompt).input_ids for n, t in tokenizers.items()}
        case = {"prompt": prompt, "tokenizer": ids["tokenizer"]}
        if ids["tokenizer_2"] != ids["tokenizer"]:
            case["tokenizer_2"] = ids["tokenizer_2"]
        if ids["tokenizer_json"] != ids["tokenizer_2"]:
            case["tokenizer_json"] = ids["tokenizer_json"]
        if k < 60:
            case["cut"] = {n: tokenizers[n](prompt, padding="max_length", max_length=12, truncation=True).input_ids for n in ("tokenizer", "tokenizer_2")}
        book.case(str(k), case, {})
    book.save()

    book = Book("clip_encoder", "Encoder `encoder` of tests/fixtures/tiny-clip on input_ids [B, L] without a mask: last [B, L, D] (last_hidden_state, after "
                "the final norm), penultimate (hidden_states[-2]), skipped (hidden_states[-3]), pooled [B, D] or, with a projection, [B, P].")
    for name, kind in (("text_encoder", CLIPTextModel), ("text_encoder_2", CLIPTextModelWithProjection)):
        model = kind.from_pretrained(FOLDER / name).eval()
        tokenizer = tokenizers["tokenizer" if name == "text_encoder" else "tokenizer_2"]
        for k, (prompts, length) in enumerate(((["a red circle above a blue square"], LENGTH), (["", "a cat! <|endoftext|> a dog", "日本 🐱"], 16), (["a dog"], 5))):
            ids = tokenizer(prompts, padding="max_length", max_length=length, truncation=True, return_tensors="pt").input_ids
            out = model(ids, output_hidden_states=True)
            book.case(f"{name}/{k}", {"encoder": name, "prompts": prompts, "length": length},
                      {"input_ids": ids, "last": out.last_hidden_state, "penultimate": out.hidden_states[-2], "skipped": out.hidden_states[-3],
                       "pooled": out[0] if name == "text_encoder_2" else out.pooler_output})
            assert torch.isfinite(out.last_hidden_state).all()
    book.save()
