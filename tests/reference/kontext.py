"""FLUX.1 Kontext: tiny-flux in a folder of FluxKontextPipeline, whole pictures by it, with a picture to edit and without one."""
import io
import shutil

import torch
from diffusers import FluxKontextPipeline, FluxPipeline
from PIL import Image

from common import FIXTURES, PROMPT, ROOT, Book, generator
from families import decode
from flux2 import encode_exactly, references

NAME = "tiny-kontext"
DEFAULTS = dict(checkpoint=NAME, prompts=[PROMPT], negative_prompt="", height=64, width=64, steps=2, guidance=3.5, seed=0, n=1, max_sequence_length=64, image=False)
CASES = {
    "plain": dict(steps=3),
    "edit": dict(references=[(80, 70)], image=True),
    "edit_wide": dict(references=[(70, 200)], prompts=["a red circle", "a cat"], width=96, height=48, seed=1),
}


def draw(pipe, case):
    """Final latents [n, C, h/8, w/8]."""
    words = {"image": Image.open(io.BytesIO(references(case)[0]))} if "references" in case else {}
    packed = pipe(prompt=case["prompts"], height=case["height"], width=case["width"], max_area=case["height"] * case["width"], num_inference_steps=case["steps"],
                  guidance_scale=case["guidance"], generator=generator(case["seed"]), max_sequence_length=case["max_sequence_length"], output_type="latent", **words).images
    return pipe._unpack_latents(packed, case["height"], case["width"], 8)


def make():
    shutil.rmtree(FIXTURES / NAME, ignore_errors=True)
    FluxKontextPipeline(**FluxPipeline.from_pretrained(ROOT / "tests" / "fixtures" / "tiny-flux").components).save_pretrained(FIXTURES / NAME)
    pipe = FluxKontextPipeline.from_pretrained(FIXTURES / NAME)
    pipe.set_progress_bar_config(disable=True)
    encode_exactly(pipe)
    book = Book("kontext", "Whole pictures by FluxKontextPipeline: latents [n,C,h/8,w/8] are the final ones before the VAE, image (uint8 [n,h,w,3]) where `image` is true. "
                "`references`: pictures to edit, the files reference0, ….")
    for name, changes in CASES.items():
        case = {**DEFAULTS, **changes}
        latents = draw(pipe, case)
        assert torch.isfinite(latents).all()
        print(f"  {name}: latents {latents.min():.2f} to {latents.max():.2f}, std {latents.std():.2f}", flush=True)
        files = {f"reference{k}": torch.frombuffer(bytearray(file), dtype=torch.uint8) for k, file in enumerate(references(case))}
        book.case(f"kontext_{name}", case, {"latents": latents, **files, **({"image": decode(pipe, latents)} if case["image"] else {})})
    book.save()
