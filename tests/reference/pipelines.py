"""What the constructors and calls of diffusers' pipelines make of settings and of what is left out."""
import inspect
import json
import pathlib
import shutil
import tempfile
import warnings

import diffusers
from diffusers.configuration_utils import FrozenDict
from PIL import Image

from common import FIXTURES, generator

SCHEDULERS = [("DDIMScheduler", {}), ("DDIMScheduler", dict(steps_offset=0, clip_sample=True)), ("DDIMScheduler", dict(steps_offset=3, clip_sample=False)),
              ("PNDMScheduler", {}), ("PNDMScheduler", dict(skip_prk_steps=False, steps_offset=0, clip_sample=True)), ("PNDMScheduler", dict(skip_prk_steps=True)),
              ("DDPMScheduler", {}), ("EulerDiscreteScheduler", {}), ("DPMSolverMultistepScheduler", dict(steps_offset=2)), ("LCMScheduler", dict(clip_sample=True))]
SAMPLERS = {"": None, "ddim": "DDIMScheduler", "pndm": "PNDMScheduler", "ddpm": "DDPMScheduler", "euler": "EulerDiscreteScheduler"}
SEEN = ("steps_offset", "clip_sample", "skip_prk_steps")
CALLS = {"PixArtAlphaPipeline": (None, None), "PixArtSigmaPipeline": (None, None), "HunyuanDiTPipeline": (None, None), "WanPipeline": (None, None),
         **{f"{name}Pipeline": (f"{name}Img2ImgPipeline", f"{name}InpaintPipeline") for name in ("StableDiffusion", "StableDiffusionXL", "StableDiffusion3", "Flux")}}
ARGUMENTS = ("num_inference_steps", "guidance_scale", "strength", "max_sequence_length")
FOLDERS = ("tiny-pixart", "tiny-sigma", "tiny-hunyuan", "tiny-wan", "tiny-sd15", "tiny-sdxl", "tiny-sd3", "tiny-flux")
TASKS = ("generation", "from_picture", "inpainting")
SIZES = ({}, {"height": 80}, {"height": 80, "width": 112})
PICTURE = (70, 53)
# As Stable Diffusion's folders were before diffusers 0.9: no steps_offset, samples that are clipped, and a U-Net that says too small a size.
OLD_FILES = {"scheduler/scheduler_config.json": {"_diffusers_version": "0.6.0", "steps_offset": None, "clip_sample": True},
             "unet/config.json": {"_diffusers_version": "0.6.0.dev0", "sample_size": 8}}
OLD_CALL = dict(prompt="a red circle above a blue square", num_inference_steps=4, guidance_scale=4.0)
EVERY = 8  # rows and columns of the latents, so that the book stays small
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
    for name, task in zip(names, TASKS):
        if name:
            parameters = inspect.signature(getattr(diffusers, name).__call__).parameters
            yield task, {a: parameters[a].default for a in ARGUMENTS if a in parameters}


def vae_shift(folder):
    """By how much latents of zeros differ that are decoded with a shift_factor and without one, once noise is the same."""
    pipe = plain(folder)
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


def plain(folder):
    pipe = diffusers.DiffusionPipeline.from_pretrained(FIXTURES / folder)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def begins_with(pipe, **call):
    """The pixels that a call begins with, frames of a video, and the tokens that each text encoder gets; nothing is computed then."""
    seen = dict(tokens={})
    parameters = inspect.signature(pipe.__call__).parameters
    prepare, encode = pipe.prepare_latents, pipe.vae.encode

    def at_latents(*args, **kwargs):
        given = inspect.signature(prepare).bind(*args, **kwargs).arguments
        seen.update(size=[given["height"], given["width"]], **({"frames": given["num_frames"]} if "num_frames" in given else {}))
        raise StopIteration

    def at_picture(pixels, *_, **__):
        seen["size"] = list(pixels.shape[-2:])
        raise StopIteration

    def at_text(name):
        def look(_, args, kwargs):
            seen["tokens"][name] = (args[0] if args else kwargs["input_ids"]).shape[1]
        return look
    encoders = {name: part for name, part in pipe.components.items() if name.startswith("text_encoder") and part is not None}
    hooks = [part.register_forward_pre_hook(at_text(name), with_kwargs=True) for name, part in encoders.items()]
    if "image" in parameters:
        pipe.vae.encode = at_picture
    else:
        pipe.prepare_latents = at_latents
    try:
        pipe("a", **call, **(dict(use_resolution_binning=False) if "use_resolution_binning" in parameters else {}))
    except StopIteration:
        pass
    for hook in hooks:
        hook.remove()
    pipe.prepare_latents, pipe.vae.encode = prepare, encode
    return seen


def beginnings(folder):
    parts = plain(folder)
    for name, task in zip((type(parts).__name__, *CALLS[type(parts).__name__]), TASKS):
        if not name:
            continue
        kind = getattr(diffusers, name)
        wanted = inspect.signature(kind.__init__).parameters
        unsafe = dict(requires_safety_checker=False) if "requires_safety_checker" in wanted else {}
        pipe = kind(**{key: part for key, part in parts.components.items() if key in wanted}, **unsafe)
        pictures = dict(image=Image.new("RGB", PICTURE)) if task != "generation" else {}
        if task == "inpainting":
            pictures["mask_image"] = Image.new("L", PICTURE, 255)
        takes = inspect.signature(pipe.__call__).parameters
        for size in SIZES:
            if set(size) <= set(takes):
                yield dict(folder=folder, pipeline=name, task=task, asked=size, **begins_with(pipe, **pictures, **size))


def old_picture(folder):
    """Final latents of an old folder, of the size that its pipeline takes where none is given."""
    with tempfile.TemporaryDirectory() as scratch:
        old = pathlib.Path(shutil.copytree(FIXTURES / folder, pathlib.Path(scratch) / folder))
        for file, keys in OLD_FILES.items():
            settings = {**json.loads((old / file).read_text()), **keys}
            (old / file).write_text(json.dumps({key: value for key, value in settings.items() if value is not None}))
        pipe = diffusers.StableDiffusionPipeline.from_pretrained(old)
    pipe.set_progress_bar_config(disable=True)
    latents = pipe(**OLD_CALL, generator=generator(0), output_type="latent").images
    return dict(folder=folder, files=OLD_FILES, call=OLD_CALL, seed=0, shape=list(latents.shape), every=EVERY, latents=latents[..., ::EVERY, ::EVERY].flatten().tolist())


def make():
    warnings.simplefilter("ignore")  # of what the constructors change
    book = dict(about="calls: defaults of arguments, by pipeline and task. schedulers, unets: what is there once the pipeline of that class is made. vae_shifts: what is taken from latents of a VAE whose shift_factor is 0.25. "
                "beginnings: pixels and frames that are computed where `asked` is what a call says of them (the picture to begin with has 70 x 53), and tokens of each text encoder. "
                "old_picture: final latents of a folder whose `files` have other keys, every `every` row and column.",
                calls={name: dict(calls((name, *others))) for name, others in CALLS.items()},
                vae_shifts={folder: vae_shift(folder) for folder in ("tiny-pixart", "tiny-sigma", "tiny-sd15", "tiny-sdxl", "tiny-hunyuan", "tiny-sd3", "tiny-flux")},
                beginnings=[item for folder in FOLDERS for item in beginnings(folder)], old_picture=old_picture("tiny-sd15"), schedulers=[], unets=[])
    for folder, names in OLD.items():
        for name in names:
            parts = dict(getattr(diffusers, names[0]).from_pretrained(FIXTURES / folder).components)
            for unused in ("safety_checker", "feature_extractor", "image_encoder"):
                parts.pop(unused, None)
            scheduler = parts.pop("scheduler")
            book["schedulers"] += schedulers(folder, name, parts)
            book["unets"] += unets(folder, name, parts, scheduler) if name == names[0] else []
    (FIXTURES / "expected/pipelines.json").write_text(json.dumps(book) + "\n")
