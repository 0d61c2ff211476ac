"""FLUX.1 Fill, and Depth and Canny, which are alike: tiny-flux with a wider transformer in folders of their pipelines, whole pictures by these, and by patches."""
import shutil

import torch
from diffusers import FluxControlImg2ImgPipeline, FluxControlInpaintPipeline, FluxControlPipeline, FluxFillPipeline, FluxPipeline, FluxTransformer2DModel
from PIL import Image

from common import FIXTURES, PROMPT, ROOT, Book, generator, randomise
from families import decode
from flux2 import encode_exactly
from joint_patches import add_cases, denoise

FLUX, STORED = ROOT / "tests" / "fixtures" / "tiny-flux", ROOT / "tests" / "fixtures"
PICTURE, MASK = "init/picture.png", "init/mask.png"
DEFAULTS = dict(prompts=[PROMPT], negative_prompt="", height=64, width=64, steps=3, seed=0, n=1, max_sequence_length=12, image=False)
WIDE = dict(prompts=["a cat"], height=80, width=96, seed=1, steps=2)
TWO = dict(prompts=["a red circle", "a tree"], n=2, width=48, seed=2)
LATENTS = 4  # channels of the VAE


class Tool:
    """A model: its pipeline, its folder, what its network takes beside the latents, and how it is called."""

    def __init__(self, name, pipeline, beside, defaults, cases):
        self.name, self.pipeline, self.beside = name, pipeline, beside
        self.defaults, self.cases = {**DEFAULTS, "checkpoint": self.folder.name, **defaults}, cases

    @property
    def folder(self):
        return FIXTURES / f"tiny-{self.name.replace('_', '-')}"

    def make_folder(self):
        parts = FluxPipeline.from_pretrained(FLUX).components
        config = dict(parts["transformer"].config)
        transformer = FluxTransformer2DModel.from_config({**config, "in_channels": 4 * (LATENTS + self.beside), "out_channels": 4 * LATENTS})
        randomise(transformer, 27, {"to_q": 1.5, "add_q": 1.5, "context_embedder": 2.0, "proj_out.weight": 0.6})
        parts = {k: v for k, v in parts.items() if k not in ("image_encoder", "feature_extractor")}
        shutil.rmtree(self.folder, ignore_errors=True)
        self.pipeline(**{**parts, "transformer": transformer}).save_pretrained(self.folder)
        pipe = self.pipeline.from_pretrained(self.folder)
        pipe.set_progress_bar_config(disable=True)
        encode_exactly(pipe)
        return pipe

    def draw(self, pipe, case):
        """Final latents [n, C, h/8, w/8], and what the network is given in the first step: latents as these, and packed what stands beside them."""
        seen = []
        hook = pipe.transformer.x_embedder.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        words = {word: Image.open(STORED / case[key]).convert("RGB") for word, key in (("image", "init_image"), ("mask_image", "mask_image"), ("control_image", "control_image")) if key in case}
        if "strength" in case:
            words["strength"] = case["strength"]
        if "control_image" in case and "image" in words:
            pipe = (FluxControlInpaintPipeline if "mask_image" in words else FluxControlImg2ImgPipeline)(**pipe.components)
            pipe.set_progress_bar_config(disable=True)
        packed = pipe(prompt=case["prompts"], height=case["height"], width=case["width"], num_inference_steps=case["steps"], guidance_scale=case["guidance"], num_images_per_prompt=case["n"],
                      generator=generator(case["seed"]), max_sequence_length=case["max_sequence_length"], output_type="latent", **words).images
        hook.remove()
        unpacked = lambda x: pipe._unpack_latents(x, case["height"], case["width"], 8)
        return unpacked(packed), unpacked(seen[0][:, :, :4 * LATENTS]), seen[0][:, :, 4 * LATENTS:]

    def make(self):
        pipe = self.make_folder()
        book = Book(self.name, f"Whole pictures by {self.pipeline.__name__}: latents [n,C,h/8,w/8] are the final ones before the VAE, image (uint8 [n,h,w,3]) where `image` is true.")
        for name, changes in self.cases.items():
            case = {**self.defaults, **changes}
            latents = self.draw(pipe, case)[0]
            assert torch.isfinite(latents).all()
            print(f"  {name}: latents {latents.min():.2f} to {latents.max():.2f}, std {latents.std():.2f}", flush=True)
            book.case(f"{self.name}_{name}", case, {"latents": latents, **({"image": decode(pipe, latents)} if case["image"] else {})})
        book.save()
        patches = Book(f"{self.name}_patches", f"As `{self.name}`, by `method` with `patches` and `warmup` synchronous steps, K, V `kv`. What stands beside the latents is the same in every step. "
                       "`drift`: distance from the synchronous latents by range.")
        defaults = {**self.defaults, "steps": 5}
        add_cases(patches, self.name, defaults, ["a cat", "a tree"], lambda case: denoise(pipe, case, *self.draw(pipe, case)[1:]), lambda case: self.draw(pipe, case)[0])
        patches.save()


TOOLS = [Tool("flux_fill", FluxFillPipeline, LATENTS + 64, dict(guidance=30.0, strength=1.0, init_image=PICTURE, mask_image=MASK),
              {"plain": dict(image=True), "wide": WIDE, "two": TWO, "weak": dict(strength=0.6, steps=6, seed=3), "two_weak": dict(TWO, strength=0.4, steps=5)}),
         Tool("flux_control", FluxControlPipeline, LATENTS, dict(guidance=10.0, control_image=PICTURE), {"plain": dict(image=True), "wide": WIDE, "two": TWO, "begun": dict(TWO, init_image=PICTURE, strength=0.6, steps=5), "masked": dict(TWO, init_image=PICTURE, mask_image=MASK, strength=0.7, steps=5)})]


def make():
    for tool in TOOLS:
        tool.make()
