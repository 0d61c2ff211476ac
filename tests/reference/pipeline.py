"""Whole pictures by PixArtAlphaPipeline."""
import numpy as np
import torch
from diffusers import DDIMScheduler, DPMSolverMultistepScheduler, EulerDiscreteScheduler

from checkpoints import load
from common import PROMPT, SCHEDULER, Book, generator
from tokens import PROMPTS

SCHEDULERS = {"DPMSolverMultistepScheduler": DPMSolverMultistepScheduler, "DDIMScheduler": DDIMScheduler, "EulerDiscreteScheduler": EulerDiscreteScheduler}
DEFAULTS = dict(checkpoint="tiny-pixart", prompts=[PROMPT], negative_prompt="", height=64, width=64, steps=8, guidance=4.5, seed=0, n=1,
                max_sequence_length=120, scheduler="DPMSolverMultistepScheduler", config=dict(solver_order=2, algorithm_type="dpmsolver++"))
CASES = {
    "plain": dict(image=True),
    "seed7": dict(seed=7),
    "no_guidance": dict(guidance=1.0, image=True),
    "wide": dict(width=96, prompts=["a cat"], image=True),
    "uneven": dict(height=80, prompts=["a blue tree right of a white river"], image=True),
    "seven_rows": dict(height=112, width=48, seed=3, steps=5),
    "negative": dict(negative_prompt="a black dog", guidance=3.0, seed=1),
    "empty_prompt": dict(prompts=[""], seed=2),
    "long_prompt": dict(prompts=[PROMPTS[-1]], seed=4),
    "cut_prompt": dict(max_sequence_length=6),
    "two_pictures": dict(n=2, width=48, image=True),
    "two_prompts": dict(prompts=["a red circle", "A purple house, 4 cats!"], width=48, seed=5),
    "two_by_two": dict(prompts=["a red circle", "a tree"], n=2, width=48, negative_prompt="a dog", seed=6, image=True),
    "twenty_steps": dict(steps=20, seed=8),
    "third_order": dict(config=dict(solver_order=3, algorithm_type="dpmsolver++"), steps=10, seed=9),
    "karras": dict(config=dict(solver_order=2, algorithm_type="dpmsolver++", use_karras_sigmas=True), seed=10),
    "ddim": dict(scheduler="DDIMScheduler", config=dict(clip_sample=False, set_alpha_to_one=False, steps_offset=1), seed=11),
    "ddim_one_step": dict(scheduler="DDIMScheduler", config=dict(clip_sample=False, set_alpha_to_one=False, steps_offset=1), steps=1, seed=12),
    "euler": dict(scheduler="EulerDiscreteScheduler", config={}, seed=13),
    "ms": dict(checkpoint="tiny-pixart-1024", image=True),
    "ms_uneven": dict(checkpoint="tiny-pixart-1024", height=112, width=80, guidance=1.0, prompts=["a dog"], seed=14, steps=4),
}


def draw(pipe, case, latents=None):
    """Final latents [n, 4, h/8, w/8] as the pipeline returns them, before the division by scaling_factor."""
    pipe.scheduler = SCHEDULERS[case["scheduler"]](**SCHEDULER, **case["config"])
    return pipe(case["prompts"], negative_prompt=case["negative_prompt"], height=case["height"], width=case["width"], num_inference_steps=case["steps"],
                guidance_scale=case["guidance"], num_images_per_prompt=case["n"], generator=generator(case["seed"]), latents=latents,
                max_sequence_length=case["max_sequence_length"], use_resolution_binning=False, clean_caption=False, output_type="latent").images


def decode(pipe, latents):
    """uint8 [n, h, w, 3], rounded as the pipeline rounds."""
    pixels = pipe.vae.decode(latents / pipe.vae.config.scaling_factor, return_dict=False)[0]
    return torch.from_numpy(np.stack([np.asarray(i) for i in pipe.image_processor.postprocess(pixels, output_type="pil")]))


def make():
    book = Book("pipeline", "PixArtAlphaPipeline(use_resolution_binning=False, clean_caption=False) with torch.Generator().manual_seed(seed); the "
                "scheduler is `scheduler`(**beta, **config), whatever the folder says. noise [n,4,h/8,w/8]: what the seed draws (unit variance); latents: "
                "final ones, before the VAE and its division; image (uint8 [n,h,w,3]) where `image` is true. Order of n: prompt 0's pictures first.",
                beta=SCHEDULER)
    pipes = {}
    for name, changes in CASES.items():
        case = {**DEFAULTS, "image": False, **changes}
        pipe = pipes.setdefault(case["checkpoint"], load(case["checkpoint"]))
        latents = draw(pipe, case)
        noise = torch.randn(latents.shape, generator=generator(case["seed"]))
        tensors = {"noise": noise, "latents": latents}
        assert torch.equal(draw(pipe, case, noise), latents), "the seed's noise is not what the pipeline drew"
        image = decode(pipe, latents)
        if case["image"]:
            tensors["image"] = image
        print(f"  {name}: range {latents.abs().max():.2f}, image mean {image.float().mean():.0f} std {image.float().std():.0f}", flush=True)
        assert torch.isfinite(latents).all()
        book.case(name, case, tensors)
    book.save()
