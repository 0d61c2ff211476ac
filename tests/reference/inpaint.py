"""Pictures of which a mask keeps a part, by diffusers' inpainting pipelines."""
import diffusers
import numpy as np
import torch
from diffusers import FluxInpaintPipeline, StableDiffusion3InpaintPipeline, StableDiffusionInpaintPipeline, StableDiffusionXLInpaintPipeline
from PIL import Image

import init_image
from common import FIXTURES, SCHEDULER, Book, generator

MASK = "init/mask.png"
PIPELINES = {"tiny-sd15": StableDiffusionInpaintPipeline, "tiny-sdxl": StableDiffusionXLInpaintPipeline,
             "tiny-sd3": StableDiffusion3InpaintPipeline, "tiny-flux": FluxInpaintPipeline}


def make_mask():
    """A disc, grays that lie about the middle, and a coloured edge, in a size that no request has."""
    y, x = np.mgrid[0:30, 0:44]
    gray = np.where((x - 14) ** 2 + (y - 12) ** 2 < 90, 255, 0) + np.where(x > 30, 6 * y, 0)
    rgb = np.stack([gray, gray, np.where(y > 25, 255, gray)], -1)
    Image.fromarray(rgb.astype(np.uint8)).save(FIXTURES / MASK, optimize=True)


def draw(pipe, case):
    call = dict(prompt=case["prompts"], image=Image.open(FIXTURES / case["init_image"]).convert("RGB"), mask_image=Image.open(FIXTURES / case["mask_image"]),
                height=case["height"], width=case["width"], strength=case["strength"], num_inference_steps=case["steps"], guidance_scale=case["guidance"],
                num_images_per_prompt=case["n"], generator=generator(case["seed"]), output_type="latent")
    if isinstance(pipe, (StableDiffusionXLInpaintPipeline, StableDiffusionInpaintPipeline)):
        return pipe(**call, negative_prompt=case["negative_prompt"]).images
    call |= dict(max_sequence_length=case["max_sequence_length"])
    if isinstance(pipe, FluxInpaintPipeline):
        return pipe._unpack_latents(pipe(**call).images, case["height"], case["width"], 8)
    return pipe(**call, negative_prompt=case["negative_prompt"]).images


ONE = dict(init_image.ONE, mask_image=MASK, width=64)
UNET = dict(ONE, guidance=3.0, max_sequence_length=77)
CASES = [("sd15", dict(UNET, **init_image.PNDM, checkpoint="tiny-sd15", strength=0.6)),
         ("sd15_all_noise", dict(UNET, checkpoint="tiny-sd15", strength=1.0, sampler="euler-ancestral", n=2)),
         ("sdxl", dict(UNET, checkpoint="tiny-sdxl", strength=0.7, steps=5)),
         ("sdxl_unipc", dict(UNET, checkpoint="tiny-sdxl", strength=0.8, sampler="unipc")),
         ("sd3", dict(ONE, checkpoint="tiny-sd3", guidance=4.5, strength=0.6)),
         ("flux", dict(ONE, checkpoint="tiny-flux", guidance=3.5, strength=0.7, height=96))]


def make():
    make_mask()
    book = Book("inpaint", "Final latents of pictures that keep what tests/fixtures/init/mask.png does not cover of the one that they start from; mask_H_W is which latents it covers. Schedulers as in init_image.", beta=SCHEDULER)
    for name, case in CASES:
        text = init_image.load(case["checkpoint"])
        components = dict(text.components, **({"add_watermarker": False} if case["checkpoint"] == "tiny-sdxl" else {}))
        if case["checkpoint"] == "tiny-sd15":
            components["requires_safety_checker"] = False
        pipe = PIPELINES[case["checkpoint"]](**components)
        pipe.set_progress_bar_config(disable=True)
        if "scheduler" in case:
            pipe.scheduler = getattr(diffusers, case["scheduler"])(**SCHEDULER, **case["config"])
        if "sampler" in case:
            pipe.scheduler = getattr(diffusers, init_image.ALL_SAMPLERS[case["sampler"]]).from_config(pipe.scheduler.config)
        latents = draw(pipe, case)
        assert torch.isfinite(latents).all()
        print(f"  {name}: latents {latents.min():.2f} to {latents.max():.2f}, std {latents.std():.2f}", flush=True)
        book.case(name, {**case, "image": False}, {"latents": latents})
        height, width = case["height"], case["width"]
        mask = pipe.mask_processor.preprocess(Image.open(FIXTURES / MASK), height=height, width=width)
        book.put(f"mask_{height}_{width}", torch.nn.functional.interpolate(mask, size=(height // 8, width // 8)).to(torch.uint8)[0, 0])
    book.save()
