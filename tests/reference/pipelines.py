"""What the constructors and calls of diffusers' pipelines make of settings and of what is left out. No tensors."""
import inspect
import json
import warnings

import diffusers
from diffusers.configuration_utils import FrozenDict

from common import FIXTURES, generator

SCHEDULERS = [("DDIMScheduler", {}), ("DDIMScheduler", dict(steps_offset=0, clip_sample=True)), ("DDIMScheduler", dict(steps_offset=3, clip_sample=False)),
              ("PNDMScheduler", {}), ("PNDMScheduler", dict(skip_prk_steps=False, steps_offset=0, clip_sample=True)), ("PNDMScheduler", dict(skip_prk_steps=True)),
              ("DDPMScheduler", {}), ("EulerDiscreteScheduler", {}), ("DPMSolverMultistepScheduler", dict(steps_offset=2)), ("LCMScheduler", dict(clip_sample=True))]
SAMPLERS = {"": None, "ddim": "DDIMScheduler", "pndm": "PNDMScheduler", "ddpm": "DDPMScheduler", "euler": "EulerDiscreteScheduler"}
SEEN = ("steps_offset", "clip_sample", "skip_prk_steps")
CALLS = {"PixArtAlphaPipeline": (None, None), "PixArtSigmaPipeline": (None, None), "HunyuanDiTPipeline": (None, None), "WanPipeline": (None, None),
         **{f"{name}Pipeline": (f"{name}Img2ImgPipeline", f"{name}InpaintPipeline") for name in ("StableDiffusion", "StableDiffusionXL", "StableDiffusion3", "Flux")}}
ARGUMENTS = ("num_inference_steps", "guidance_scale", "strength", "max_sequence_length")
OLD = {"tiny-sd15": ("StableDiffusionPipeline", "StableDiffusionImg2ImgPipeline", "StableDiffusionInpaintPipeline"), "tiny-sdxl": ("StableDiffusionXLPipeline",)}


def build(name, parts, scheduler):
    more = dict(safety_checker=None, feature_extractor=None, requires_safety_checker=False) if "XL" not in name else dict(add_watermarker=False)
    return getattr(diffusers, name)(**parts, **more, scheduler=scheduler)


def schedulers(folder, name, parts):
    for kind, config in SCHEDULERS:
        for sampler, other in SAMPLERS.items():
            if other == kind:
                continue
            own = build(name, parts, getattr(diffusers, kind).from_config(dict(config))).scheduler
            used = own if other is None else getattr(diffusers, other).from_config(own.config)
            expected = inspect.signature(type(used).__init__).parameters
            yield dict(folder=folder, pipeline=name, scheduler=kind, config=config, sampler=sampler, seen={key: used.config[key] for key in SEEN if key in expected})


def unets(folder, name, parts, scheduler):
    for version in ("0.6.0.dev0", "0.8.1", "0.9.0.dev0", "0.42.1", None):
        for size in (8, 32, 80):
            config = dict(_diffusers_version=version, sample_size=size)
            parts["unet"]._internal_dict = FrozenDict({k: v for k, v in {**parts["unet"].config, **config}.items() if v is not None})
            yield dict(folder=folder, pipeline=name, config=config, seen=build(name, parts, scheduler).unet.config.sample_size)


def calls(names):
    for name, task in zip(names, ("generation", "from_picture", "inpainting")):
        if name:
            parameters = inspect.signature(getattr(diffusers, name).__call__).parameters
            yield task, {a: parameters[a].default for a in ARGUMENTS if a in parameters}


def vae_shift(folder):
    """By how much latents of zeros differ that are decoded with a shift_factor and without one, once noise is the same."""
    pipe = diffusers.DiffusionPipeline.from_pretrained(FIXTURES / folder)
    pipe.set_progress_bar_config(disable=True)
    seen = []

    def decode(latents, *_, **__):
        seen.append(latents)
        raise StopIteration
    pipe.vae.decode = decode
    more = dict(use_resolution_binning=False) if "use_resolution_binning" in inspect.signature(pipe.__call__).parameters else {}
    for shift in (0.0, 0.25):
        pipe.vae._internal_dict = FrozenDict({**pipe.vae.config, "shift_factor": shift})
        try:
            pipe("a", height=64, width=64, num_inference_steps=2, generator=generator(0), **more)
        except StopIteration:
            pass
    return round(float((seen[1] - seen[0]).mean()), 6)


def make():
    warnings.simplefilter("ignore")  # of what the constructors change
    book = dict(about="calls: defaults of arguments, by pipeline and task. schedulers, unets: what is there once the pipeline of that class is made. vae_shifts: what is taken from latents of a VAE whose shift_factor is 0.25.",
                calls={name: dict(calls((name, *others))) for name, others in CALLS.items()},
                vae_shifts={folder: vae_shift(folder) for folder in ("tiny-pixart", "tiny-sigma", "tiny-sd15", "tiny-sdxl", "tiny-hunyuan", "tiny-sd3", "tiny-flux")},
                schedulers=[], unets=[])
    for folder, names in OLD.items():
        for name in names:
            parts = dict(getattr(diffusers, names[0]).from_pretrained(FIXTURES / folder).components)
            for unused in ("safety_checker", "feature_extractor", "image_encoder"):
                parts.pop(unused, None)
            scheduler = parts.pop("scheduler")
            book["schedulers"] += schedulers(folder, name, parts)
            book["unets"] += unets(folder, name, parts, scheduler) if name == names[0] else []
    (FIXTURES / "expected/pipelines.json").write_text(json.dumps(book) + "\n")
