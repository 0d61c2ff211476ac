"""U-Nets trained for inpainting: tiny-sd15 and tiny-sdxl with nine channels in folders of their pipelines, whole pictures by these, and by patches."""
import shutil

import diffusers
import torch
from diffusers import StableDiffusionInpaintPipeline, StableDiffusionPipeline, StableDiffusionXLInpaintPipeline, StableDiffusionXLPipeline, UNet2DConditionModel
from PIL import Image

from common import FIXTURES, ROOT, SCHEDULER, Book, generator, randomise
from unet_jobs import DEFAULTS, decode, draw_patched

STORED = ROOT / "tests" / "fixtures"
FILES = dict(init_image="init/picture.png", mask_image="init/mask.png")
ANCESTRAL = dict(scheduler="EulerAncestralDiscreteScheduler", config={})
WHOLE = {"plain": dict(strength=1.0, image=True), "wide": dict(prompts=["a cat"], height=72, width=96, strength=1.0, steps=3, seed=1),
         "weak": dict(strength=0.6, steps=6, seed=2, n=2), "noisy": dict(ANCESTRAL, strength=1.0, seed=3, n=2),
         "noisy_weak": dict(ANCESTRAL, strength=0.7, seed=4, prompts=["a red circle", "a tree"], negative_prompt="dull")}
PATCHES = dict(method="distrifusion", kv="stale", warmup=1, patches=3, group_norm="corrected", exchange="stale", strength=1.0, steps=5, seed=5)
PATCHED = {"corrected": {}, "uneven": dict(height=72, width=40, patches=4, seed=6), "stale": dict(group_norm="stale", strength=0.7, seed=7), "none": dict(exchange="none"),
           "naive": dict(exchange="naive", warmup=0, group_norm="separate", patches=2)}
KINDS = {"sd15": (StableDiffusionPipeline, StableDiffusionInpaintPipeline, dict(requires_safety_checker=False)),
         "sdxl": (StableDiffusionXLPipeline, StableDiffusionXLInpaintPipeline, dict(add_watermarker=False))}


def make_folder(name, base, kind, more):
    folder, given = FIXTURES / f"tiny-{name}-inpaint", {} if name == "sd15" else more
    parts = base.from_pretrained(STORED / f"tiny-{name}", **given).components
    unet = UNet2DConditionModel.from_config({**parts["unet"].config, "in_channels": 9})
    randomise(unet, 57, {"conv_out": 0.5, "to_q": 1.5, "time_emb_proj": 0.7})
    shutil.rmtree(folder, ignore_errors=True)
    kind(**{**parts, "unet": unet}, **more).save_pretrained(folder)
    pipe = kind.from_pretrained(folder, **given)
    pipe.set_progress_bar_config(disable=True)
    pipe.safety_checker = None
    return pipe


def draw(pipe, case):
    files = {word: Image.open(STORED / case[key]).convert("RGB") for word, key in (("image", "init_image"), ("mask_image", "mask_image"))}
    negative = [case["negative_prompt"]] * len(case["prompts"]) if case["negative_prompt"] is not None else None
    return pipe(case["prompts"], negative_prompt=negative, height=case["height"], width=case["width"], num_inference_steps=case["steps"], guidance_scale=case["guidance"],
                num_images_per_prompt=case["n"], strength=case["strength"], generator=generator(case["seed"]), output_type="latent", **files).images


def make():
    book = Book("unet_inpaint", "Whole pictures by Stable Diffusion's inpainting pipelines and U-Nets of nine channels; the scheduler is the folder's or `scheduler`(**beta, **config). "
                "latents: final ones [n,4,h/8,w/8]; image: uint8 [n,h,w,3] of them.", beta=SCHEDULER)
    patched = Book("unet_inpaint_patches", "As unet_inpaint, but every call of the U-Net in `patches` patches of rows: `warmup` synchronous steps, then by `exchange` and `group_norm`.", beta=SCHEDULER)
    for name, parts in KINDS.items():
        pipe = make_folder(name, *parts)
        own = pipe.scheduler
        for cases, run, into in ((WHOLE, draw, book), (PATCHED, lambda pipe, case: draw_patched(pipe, case, draw), patched)):
            for key, changes in cases.items():
                case = {"checkpoint": f"tiny-{name}-inpaint", **DEFAULTS, **FILES, "image": False, **({} if cases is WHOLE else PATCHES), **changes}
                pipe.scheduler = getattr(diffusers, case["scheduler"])(**SCHEDULER, **case["config"]) if "scheduler" in case else own
                latents = run(pipe, case)
                assert torch.isfinite(latents).all()
                print(f"  {name}_{key}: {latents.abs().max():.2f}", flush=True)
                into.case(f"{name}_{key}", case, {"latents": latents, **({"image": decode(pipe, latents)} if case["image"] else {})})
    book.save()
    patched.save()
