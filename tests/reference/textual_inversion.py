"""Textual inversions as files of their own, and the pictures that they make: diffusers' `load_textual_inversion`. After `families` and `unet_jobs`."""
import json
import pathlib
import shutil
import tempfile

import torch
from safetensors.torch import load_file, save_file

import families
import unet_jobs
from common import FIXTURES, Book, generator

FOLDER = FIXTURES / "embeddings"
CASE = dict(negative_prompt="", height=64, width=48, steps=4, guidance=4.0, n=1, max_sequence_length=77)
SD15 = dict(CASE, checkpoint="tiny-sd15")
SDXL = dict(CASE, checkpoint="tiny-sdxl", negative_prompt=None)
# File and word ("": the one that the file names).
CASES = [
    ("single", dict(SD15, prompts=["a shiny red circle"], seed=1), [("shiny", "")]),
    ("several", dict(SD15, prompts=["a shiny <cat> above a Blue-Sky, <cat>", "a red circle"], negative_prompt="dull blue-sky", seed=2),
     [("cat", ""), ("webui", "blue-sky"), ("shiny", "")]),
    ("sdxl", dict(SDXL, prompts=["a style red circle"], negative_prompt="not style", seed=3), [("style", "")]),
    ("sdxl_first", dict(SDXL, prompts=["a <cat> in a box"], seed=4), [("cat", ""), ("style", "<s>")]),
    ("flux", dict(CASE, checkpoint="tiny-flux", prompts=["a <dog> in a box"], seed=5, guidance=3.5, max_sequence_length=12), [("dog", "")]),
]


def load(name):
    return unet_jobs.load(name) if name in unet_jobs.KINDS else families.load(name)


def draw(pipe, case):
    return unet_jobs.draw(pipe, case) if case["checkpoint"] in unet_jobs.KINDS else families.draw(pipe, case)


def make_files():
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir(parents=True)
    width = lambda name, encoder: getattr(load(name), encoder).config.hidden_size
    first, second = width("tiny-sdxl", "text_encoder"), width("tiny-sdxl", "text_encoder_2")
    assert width("tiny-sd15", "text_encoder") == first
    g = generator(18)
    rows = lambda *shape: torch.randn(*shape, generator=g)
    save_file({"<cat>": rows(3, first)}, FOLDER / "cat.safetensors")
    save_file({"shiny": rows(first)}, FOLDER / "shiny.safetensors")
    save_file({"emb_params": rows(2, first).half()}, FOLDER / "webui.safetensors")
    save_file({"<dog>": rows(1, width("tiny-flux", "text_encoder"))}, FOLDER / "dog.safetensors")
    save_file({"clip_l": rows(2, first), "clip_g": rows(2, second).bfloat16()}, FOLDER / "style.safetensors")


def learn(pipe, file, token):
    tensors = load_file(FOLDER / f"{file}.safetensors")
    if "clip_l" in tensors:
        for key, number in (("clip_l", ""), ("clip_g", "_2")):
            pipe.load_textual_inversion({"any": tensors[key]}, token=token or file, text_encoder=getattr(pipe, f"text_encoder{number}"),
                                        tokenizer=getattr(pipe, f"tokenizer{number}"))
    else:
        pipe.load_textual_inversion(str(FOLDER / f"{file}.safetensors"), token=token or None)


def files_of(pipe):
    """What the tokenizer with the words has in its folder, beside what is there."""
    with tempfile.TemporaryDirectory() as work:
        pipe.tokenizer.save_pretrained(work)
        return {"tokenizer.json": {"added_tokens": json.loads(pathlib.Path(work, "tokenizer.json").read_text(encoding="utf-8"))["added_tokens"]}}


def make():
    make_files()
    book = Book("textual_inversion", "Final latents with textual inversions of tests/fixtures/embeddings; `plain` are those of the same words without. `files`: members that the "
                "tokenizer's files have where a folder has the words itself, with `rows` behind its text encoder's.", fixtures="tests/fixtures/embeddings")
    for name, case, learned in CASES:
        plain = draw(load(case["checkpoint"]), case)
        pipe = load(case["checkpoint"])
        known = len(pipe.tokenizer)
        for file, token in learned:
            learn(pipe, file, token)
        latents = draw(pipe, case)
        assert torch.isfinite(latents).all()
        print(f"  {name}: std {latents.std():.2f}, changed by {(latents - plain).abs().max() / plain.abs().max():.2f} of the largest", flush=True)
        tensors = {"latents": latents, "plain": plain}
        fields = {**case, "image": False, "embeddings": [{"file": f"{f}.safetensors", "token": t} for f, t in learned]}
        if name == "several":
            fields["files"] = files_of(pipe)
            tensors["rows"] = pipe.text_encoder.get_input_embeddings().weight[known:]
        book.case(name, fields, tensors)
    book.save()
