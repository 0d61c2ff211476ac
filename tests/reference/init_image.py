"""Pictures that start from a picture, by diffusers' image-to-image pipelines."""
import diffusers
import numpy as np
import torch
from diffusers import FluxImg2ImgPipeline, FluxPipeline, StableDiffusion3Img2ImgPipeline, StableDiffusionImg2ImgPipeline, StableDiffusionPipeline, StableDiffusionXLImg2ImgPipeline, StableDiffusionXLPipeline
from PIL import Image

import families
from common import FIXTURES, SCHEDULER, Book, generator

PICTURE = "init/picture.png"


def make_picture():
    """Smooth colours, an edge and some noise, in a size that no request has."""
    (FIXTURES / PICTURE).parent.mkdir(exist_ok=True)
    y, x = np.mgrid[0:53, 0:87]
    rgb = np.stack([127 + 120 * np.sin(x / 9), 127 + 120 * np.cos(y / 7 + x / 30), 200.0 * (x > 40) + 20], -1)
    rgb += np.random.default_rng(0).normal(0, 12, rgb.shape)
    Image.fromarray(rgb.clip(0, 255).astype(np.uint8)).save(FIXTURES / PICTURE)


def load(checkpoint):
    if checkpoint == "tiny-sdxl":
        pipe = StableDiffusionXLImg2ImgPipeline(**StableDiffusionXLPipeline.from_pretrained(FIXTURES / checkpoint, add_watermarker=False).components)
    elif checkpoint == "tiny-sd15":
        text = StableDiffusionPipeline.from_pretrained(FIXTURES / checkpoint)
        pipe = StableDiffusionImg2ImgPipeline(**text.components, requires_safety_checker=False)
    else:
        text = families.load(checkpoint)
        components = {k: v for k, v in text.components.items() if k not in ("image_encoder", "feature_extractor")}
        pipe = (FluxImg2ImgPipeline if isinstance(text, FluxPipeline) else StableDiffusion3Img2ImgPipeline)(**components)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def draw(pipe, case):
    call = dict(prompt=case["prompts"], image=Image.open(FIXTURES / case["init_image"]).convert("RGB"), strength=case["strength"], num_inference_steps=case["steps"],
                guidance_scale=case["guidance"], num_images_per_prompt=case["n"], generator=generator(case["seed"]), output_type="latent")
    if isinstance(pipe, (StableDiffusionXLImg2ImgPipeline, StableDiffusionImg2ImgPipeline)):
        # This one takes the picture's size as it is.
        call["image"] = call["image"].resize((case["width"], case["height"]), Image.LANCZOS)
        return pipe(**call, negative_prompt=case["negative_prompt"]).images
    call |= dict(height=case["height"], width=case["width"], max_sequence_length=case["max_sequence_length"])
    if isinstance(pipe, FluxImg2ImgPipeline):
        return pipe._unpack_latents(pipe(**call).images, case["height"], case["width"], 8)
    return pipe(**call, negative_prompt=case["negative_prompt"]).images


ONE = dict(prompts=["a red circle"], negative_prompt=None, n=1, height=64, width=96, steps=6, seed=5, max_sequence_length=12, init_image=PICTURE)
CASES = [("sd3", dict(ONE, checkpoint="tiny-sd3", guidance=4.5, strength=0.6)),
         ("sd3_all", dict(ONE, checkpoint="tiny-sd3", guidance=4.5, strength=1.0, steps=3)),
         ("sd3_two", dict(ONE, checkpoint="tiny-sd3", guidance=3.0, strength=0.75, steps=5, prompts=["a red circle", "a tree"], height=96, width=64)),
         ("flux", dict(ONE, checkpoint="tiny-flux", guidance=3.5, strength=0.7)),
         ("sdxl", dict(ONE, checkpoint="tiny-sdxl", guidance=4.5, strength=0.7, steps=5, max_sequence_length=77))]

SAMPLERS = {"dpmsolver++": "DPMSolverMultistepScheduler", "unipc": "UniPCMultistepScheduler", "ddim": "DDIMScheduler", "ddpm": "DDPMScheduler",
            "euler-ancestral": "EulerAncestralDiscreteScheduler", "lcm": "LCMScheduler"}
ALL_SAMPLERS = {**SAMPLERS, "pndm": "PNDMScheduler"}
CASES += [(f"sdxl_{name}", dict(ONE, checkpoint="tiny-sdxl", guidance=3.0, strength=0.6, steps=8, sampler=name, height=64, width=64, max_sequence_length=77)) for name in SAMPLERS]

PNDM = dict(scheduler="PNDMScheduler", config=dict(skip_prk_steps=True, set_alpha_to_one=False, steps_offset=1))
CASES += [(f"sd15_pndm_{steps}_{strength}", dict(ONE, **PNDM, checkpoint="tiny-sd15", guidance=3.0, strength=strength, steps=steps, height=64, width=64, max_sequence_length=77))
          for steps, strength in ((6, 1.0), (6, 0.5), (8, 0.9))]
CASES += [("sd15_rounds", dict(ONE, checkpoint="tiny-sd15", guidance=3.0, strength=0.6, steps=8, sampler="pndm", height=64, width=64, max_sequence_length=77))]
CASES += [("sdxl_empty_negative", dict(ONE, checkpoint="tiny-sdxl", negative_prompt="", guidance=4.5, strength=0.7, steps=5, width=64, max_sequence_length=77))]

SIZES = [(24, 32), (100, 40), (7, 200), (3, 62), (3, 63), (40, 82), (53, 40)]


def make():
    make_picture()
    book = Book("init_image", "Final latents of pictures that start from tests/fixtures/init/picture.png, brought to their size; resized_H_W is what Pillow makes of it. The scheduler is the folder's, of class `sampler` from its config, or "
                "`scheduler`(**beta, **config).", beta=SCHEDULER)
    for name, case in CASES:
        pipe = load(case["checkpoint"])
        if "scheduler" in case:
            pipe.scheduler = getattr(diffusers, case["scheduler"])(**SCHEDULER, **case["config"])
        if "sampler" in case:
            pipe.scheduler = getattr(diffusers, ALL_SAMPLERS[case["sampler"]]).from_config(pipe.scheduler.config)
        latents = draw(pipe, case)
        assert torch.isfinite(latents).all()
        print(f"  {name}: latents {latents.min():.2f} to {latents.max():.2f}, std {latents.std():.2f}", flush=True)
        book.case(name, {**case, "image": False}, {"latents": latents})
    for height, width in SIZES:
        picture = Image.open(FIXTURES / PICTURE).resize((width, height), Image.LANCZOS)
        book.put(f"resized_{height}_{width}", torch.from_numpy(np.asarray(picture).copy()))
    book.save()
