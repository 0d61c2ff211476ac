"""Tokenizers whose folders add tokens to the vocabulary, in every form of files; ids by transformers, prompts by diffusers. After `clip` and `families`."""
import json
import pathlib
import shutil
import tempfile

import torch
from diffusers import StableDiffusionPipeline
from diffusers.loaders import TextualInversionLoaderMixin
from tokenizers import AddedToken
from transformers import BertTokenizer, CLIPTokenizer, T5Tokenizer

from common import FIXTURES, Book, generator

PROMPTS = ["a <cat> in a box", "<cat>", "a<cat>b", "A <CAT> <Cat>", "  <cat>  red  ", "<dog>", "<dog> and <dog>_1", "a <dog>_2, <dog>!", "<Dog> circle",
           "red circled circle circle's", "a  {left}  red {right}  b", "{left}{right}  {left}", "a\u00e9<word>\u00e9 <word> _<word> <word>", "<caf\u00e9> <cafe\u0301> <CAF\u00c9>",
           "a [new] red", "<plain> <extra_id_0>", "a <cat><dog><cat>_1 <ca t>"]
# What a folder may add: learned words as `load_textual_inversion` adds them, and all flags.
LEARNED = [AddedToken(t) for t in ("<cat>", "<dog>", "<dog>_1", "<dog>_2")]
FLAGS = [AddedToken("{left}", lstrip=True), AddedToken("{right}", rstrip=True, normalized=False), AddedToken("<word>", single_word=True),
         AddedToken("circle", single_word=True, normalized=False), AddedToken("<caf\u00e9>"), AddedToken("[new]", special=True), AddedToken("[PAD2]", special=True)]
KINDS = {"clip": (CLIPTokenizer, FIXTURES / "tiny-clip/tokenizer"), "clip_json": (CLIPTokenizer, FIXTURES / "tiny-clip/tokenizer_json"),
         "t5": (T5Tokenizer, FIXTURES / "tiny-pixart/tokenizer"), "bert": (BertTokenizer, FIXTURES / "tiny-hunyuan/tokenizer")}


def folders(kind, cls, base, size):
    """Names of cases with what is written into the folder; None: the file goes. `added_tokens` replaces that member of tokenizer.json."""
    every = [*LEARNED, *FLAGS]
    ids = {t.content: size + k for k, t in enumerate(LEARNED)}
    tokenizer = cls.from_pretrained(base)
    tokenizer.add_tokens(every)
    listed = {str(tokenizer.convert_tokens_to_ids(t.content)): t.__getstate__() for t in every}
    yield "listed", {"tokenizer_config.json": {"added_tokens_decoder": listed}}
    yield "extra", {"tokenizer_config.json": {"extra_special_tokens": ["<plain>", "[new]"]}}
    yield "legacy", {"added_tokens.json": {**ids, "[new]": size + len(LEARNED)}, "special_tokens_map.json": {"additional_special_tokens": ["[new]"]}}
    if kind == "clip":
        yield "pad", {"tokenizer_config.json": {"pad_token": "[new]"}, "added_tokens.json": {"[new]": size}}


def with_files(base, files, folder):
    shutil.copytree(base, folder)
    for name, content in files.items():
        file = pathlib.Path(folder, name)
        if content is None:
            file.unlink()
            continue
        before = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        file.write_text(json.dumps({**before, **content}, ensure_ascii=False), encoding="utf-8")


def saved(cls, base):
    """What save_pretrained writes of a tokenizer with more tokens, where it differs from `base`."""
    with tempfile.TemporaryDirectory() as work:
        tokenizer = cls.from_pretrained(base)
        tokenizer.add_tokens([*LEARNED, *FLAGS])
        tokenizer.save_pretrained(f"{work}/t")
        read = lambda name: json.loads(pathlib.Path(work, "t", name).read_text(encoding="utf-8"))
        return {"tokenizer.json": {"added_tokens": read("tokenizer.json")["added_tokens"]}, "tokenizer_config.json": read("tokenizer_config.json")}


def make():
    book = Book("added_tokens", "Tokenizers of `base` with the members in `files` written into their JSON files (null: the file is removed): ids of each of `prompts` "
                "as it is, and as `maybe_convert_prompt` of diffusers writes it where that differs. `learned`: the text encoder of `base` with `rows` [4, D] behind "
                "its `known` ones, states [1, 77, D] of `prompt`.", prompts=PROMPTS)
    for kind, (cls, base) in KINDS.items():
        size = len(cls.from_pretrained(base).get_vocab())
        cases = dict(folders(kind, cls, base, size))
        if (base / "tokenizer.json").exists():
            cases["saved"] = saved(cls, base)
            lines = {"bert": "vocab.txt", "t5": "spiece.model"}.get(kind)
            if lines:
                cases |= {f"{name}_{lines.split('.')[0]}": {**files, "tokenizer.json": None} for name, files in cases.items() if name != "saved"}
        for name, files in cases.items():
            with tempfile.TemporaryDirectory() as work:
                with_files(base, files, f"{work}/t")
                tokenizer = cls.from_pretrained(f"{work}/t")
            converted = [TextualInversionLoaderMixin()._maybe_convert_prompt(p, tokenizer) for p in PROMPTS]
            book.case(f"{kind}/{name}", {"base": str(base.relative_to(FIXTURES)), "files": files, "ids": [tokenizer(p).input_ids for p in PROMPTS],
                                         "converted": {str(k): c for k, c in enumerate(converted) if c != PROMPTS[k]}, "size": len(tokenizer)}, {})
    learned(book)
    book.save()


def learned(book):
    """States of a prompt with words that `load_textual_inversion` brought, one of them of three vectors."""
    pipe = StableDiffusionPipeline.from_pretrained(FIXTURES / "tiny-sd15")
    known, width = pipe.text_encoder.get_input_embeddings().weight.shape
    rows = torch.randn(4, width, generator=generator(17))
    pipe.load_textual_inversion([{"<cat>": rows[:3]}, {"shiny": rows[3]}])
    with tempfile.TemporaryDirectory() as work:
        pipe.tokenizer.save_pretrained(work)
        files = {"tokenizer.json": {"added_tokens": json.loads(pathlib.Path(work, "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]}}
    prompt = "a shiny <cat> above a red circle"
    book.case("learned", {"base": "tiny-sd15", "files": files, "prompt": prompt, "known": known},
              {"rows": rows, "states": pipe.encode_prompt(prompt, "cpu", 1, False)[0]})
