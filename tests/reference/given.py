"""What a caller gives instead of what pipelines make: the text encoders' output, a generator and a negative prompt for each picture, eta, timesteps and sigmas."""
import diffusers
import torch
from diffusers import FluxPipeline, HunyuanDiTPipeline, PixArtAlphaPipeline, PixArtSigmaPipeline, StableDiffusionPipeline, StableDiffusionXLPipeline, WanPipeline

import families
from common import FIXTURES, SCHEDULER, Book, generator
from wan import tall

OTHERS = {"tiny-pixart": PixArtAlphaPipeline, "tiny-sd15": StableDiffusionPipeline, "tiny-sdxl": StableDiffusionXLPipeline, "tiny-wan": WanPipeline}


def load(name):
    if name not in OTHERS:
        return families.load(name)
    pipe = OTHERS[name].from_pretrained(FIXTURES / name)
    pipe.set_progress_bar_config(disable=True)
    return pipe


# By checkpoint, what its pipeline takes: name and shape of a prompt's; lengths of a mask.
EMBEDS = {
    "tiny-pixart": {"prompt_embeds": (9, 24), "prompt_attention_mask": (9,)},
    "tiny-sigma": {"prompt_embeds": (30, 24), "prompt_attention_mask": (30,)},
    "tiny-sd3": {"prompt_embeds": (89, 24), "pooled_prompt_embeds": (20,)},
    "tiny-sd35": {"prompt_embeds": (80, 24), "pooled_prompt_embeds": (20,)},
    "tiny-flux": {"prompt_embeds": (14, 24), "pooled_prompt_embeds": (16,)},
    "tiny-hunyuan": {"prompt_embeds": (77, 16), "prompt_attention_mask": (77,), "prompt_embeds_2": (256, 24), "prompt_attention_mask_2": (256,)},
    "tiny-sd15": {"prompt_embeds": None},
    "tiny-sdxl": {"prompt_embeds": None, "pooled_prompt_embeds": None},
    "tiny-wan": {"prompt_embeds": (24, 24)},
}


def embeds_of(pipe, name, prompts, guided, seed, tokens):
    g = generator(seed)
    shapes = dict(EMBEDS[name])
    if "unet" in pipe.components:
        shapes["prompt_embeds"] = (tokens, pipe.unet.config.cross_attention_dim)
        if "pooled_prompt_embeds" in shapes:
            shapes["pooled_prompt_embeds"] = (pipe.text_encoder_2.config.projection_dim,)
    tensors = {}
    for sign in ("", "negative_") if guided else ("",):
        for key, shape in shapes.items():
            if "mask" in key:
                lengths = torch.randint(3, shape[0] + 1, (prompts, 1), generator=g)
                tensors[sign + key] = (torch.arange(shape[0])[None] < lengths).long()
            else:
                tensors[sign + key] = torch.randn(prompts, *shape, generator=g)
    return tensors


def draw(pipe, case, embeds):
    """Final latents, of a video frame below frame."""
    call = dict(height=case["height"], width=case["width"], num_inference_steps=case["steps"], guidance_scale=case["guidance"], output_type="latent")
    call["generator"] = [generator(s) for s in case["seeds"]] if "seeds" in case else generator(case["seed"])
    call |= {key: case[key] for key in ("eta", "timesteps", "sigmas") if key in case}
    if "timesteps" in case or "sigmas" in case:
        call.pop("num_inference_steps")
        if isinstance(pipe, FluxPipeline) or "sd3" in case["checkpoint"]:
            call["num_inference_steps"] = case["steps"]
    if embeds:
        call |= {**embeds, "prompt": None, "negative_prompt": [case["negative_prompt"]] * len(case["prompts"]) if "negative_text" in case else None}
        if "negative_text" in case and case["checkpoint"] in ("tiny-sd3", "tiny-sd35", "tiny-wan"):
            call["max_sequence_length"] = embeds["prompt_embeds"].shape[1] - (77 if "sd3" in case["checkpoint"] else 0)
    else:
        call["prompt"] = case["prompts"]
        if not isinstance(pipe, FluxPipeline):
            call["negative_prompt"] = case.get("negative_prompts", [case["negative_prompt"]] * len(case["prompts"]))
    if isinstance(pipe, WanPipeline):
        return tall(pipe(**call, num_frames=case["num_frames"], num_videos_per_prompt=case["n"]).frames)
    call["num_images_per_prompt"] = case["n"]
    if not embeds and case["checkpoint"] not in ("tiny-hunyuan", "tiny-sd15", "tiny-sdxl"):
        call["max_sequence_length"] = case["max_sequence_length"]
    if isinstance(pipe, FluxPipeline):
        return pipe._unpack_latents(pipe(**call).images, case["height"], case["width"], 8)
    if isinstance(pipe, (HunyuanDiTPipeline, PixArtAlphaPipeline, PixArtSigmaPipeline)):
        call["use_resolution_binning"] = False
    if isinstance(pipe, (PixArtAlphaPipeline, PixArtSigmaPipeline)) and (not embeds or "negative_text" in case):
        call["clean_caption"] = False
    return pipe(**call).images


ONE = dict(prompts=["a red circle"], negative_prompt="a dog", n=1, height=64, width=48, steps=4, seed=3, guidance=4.0, max_sequence_length=12)
# Of U-Nets, not as many as the encoders make.
OTHER_TOKENS = 93
CASES = []
for k, name in enumerate(EMBEDS):
    # The other pipelines do not repeat given embeds, or lay masks and states out in different orders.
    case = dict(ONE, checkpoint=name, embeds=True, prompts=["", ""], negative_prompt=None, n=2 if name in ("tiny-pixart", "tiny-sigma", "tiny-sd15", "tiny-sdxl") else 1, steps=3, seed=20 + k, max_sequence_length=0)
    CASES.append((f"embeds_{name.removeprefix('tiny-')}", dict(case, num_frames=5, height=32, width=48) if name == "tiny-wan" else case))
CASES += [("embeds_sdxl_zeros", dict(ONE, checkpoint="tiny-sdxl", embeds=True, alone=True, prompts=[""], negative_prompt=None, max_sequence_length=0)),
          ("embeds_sigma_alone", dict(ONE, checkpoint="tiny-sigma", embeds=True, guidance=1.0, prompts=[""], negative_prompt=None, max_sequence_length=0))]

FOUR = dict(ONE, prompts=["a red circle", "a tree"], n=2, seeds=[7, 8, 7, 2**63 + 11], steps=3)
ANCESTRAL = dict(scheduler="EulerAncestralDiscreteScheduler", config={})
CASES += [("seeds_pixart", dict(FOUR, checkpoint="tiny-pixart", negative_prompts=["a dog", "a blue square, a cat"])),
          ("seeds_sdxl", dict(FOUR, **ANCESTRAL, checkpoint="tiny-sdxl", negative_prompts=["a cat and a dog", ""])),
          ("seeds_sd15", dict(FOUR, scheduler="DDPMScheduler", config=dict(clip_sample=False, steps_offset=1), checkpoint="tiny-sd15", negative_prompts=["", "a dog"])),
          ("seeds_flux", dict(FOUR, checkpoint="tiny-flux")), ("seeds_sd3", dict(FOUR, checkpoint="tiny-sd3", negative_prompts=["a dog", "a cat"]))]

DDIM = dict(scheduler="DDIMScheduler", config=dict(clip_sample=False, set_alpha_to_one=False, steps_offset=1))
CASES += [("eta_pixart", dict(ONE, **DDIM, checkpoint="tiny-pixart", eta=1.0)), ("eta_sdxl", dict(ONE, **DDIM, checkpoint="tiny-sdxl", eta=0.4, n=2)),
          ("eta_hunyuan", dict(ONE, checkpoint="tiny-hunyuan", eta=0.7, max_sequence_length=256)),
          ("eta_seeds", dict(FOUR, **DDIM, checkpoint="tiny-sd15", eta=0.6))]

TIMES = [981, 700, 423, 77]
SIGMAS = [3.9, 1.8, 0.7, 0.2, 0.0]
CASES += [("times_pixart", dict(ONE, checkpoint="tiny-pixart", timesteps=TIMES)), ("times_ddpm", dict(ONE, scheduler="DDPMScheduler", config=dict(clip_sample=False), checkpoint="tiny-sdxl", timesteps=TIMES)),
          ("times_lcm", dict(ONE, scheduler="LCMScheduler", config={}, checkpoint="tiny-sd15", timesteps=[979, 699, 419, 79])),
          ("times_euler", dict(ONE, scheduler="EulerDiscreteScheduler", config={}, checkpoint="tiny-sdxl", timesteps=TIMES)),
          ("sigmas_euler", dict(ONE, scheduler="EulerDiscreteScheduler", config={}, checkpoint="tiny-sdxl", sigmas=SIGMAS)),
          ("sigmas_pixart", dict(ONE, scheduler="EulerDiscreteScheduler", config=dict(timestep_spacing="leading"), checkpoint="tiny-sigma", sigmas=SIGMAS)),
          ("sigmas_sd3", dict(ONE, checkpoint="tiny-sd3", sigmas=[1.0, 0.8, 0.45, 0.1])), ("sigmas_flux", dict(ONE, checkpoint="tiny-flux", sigmas=[1.0, 0.8, 0.45, 0.1]))]

# The prompts' text alone: the pipeline encodes the negative one, and of SDXL only where there is one.
for k, name in enumerate(name for name in EMBEDS if name != "tiny-flux"):
    case = dict(ONE, checkpoint=name, embeds=True, alone=True, negative_text=True, prompts=["", ""] if name == "tiny-sd3" else [""], negative_prompt="" if name in ("tiny-sigma", "tiny-sd15") else "a dog, on a hill", seed=60 + k,
                steps=3, max_sequence_length=0)
    CASES.append((f"negative_{name.removeprefix('tiny-')}", dict(case, num_frames=5, height=32, width=48) if name == "tiny-wan" else case))
CASES.append(("negative_sdxl_empty", dict(ONE, checkpoint="tiny-sdxl", embeds=True, alone=True, negative_text=True, prompts=[""], negative_prompt="", seed=70, steps=3, max_sequence_length=0)))


for _, case in CASES:
    if case["checkpoint"] in ("tiny-sd15", "tiny-sdxl") and not case.get("embeds"):
        case["max_sequence_length"] = 77


def make():
    book = Book("given", "Final latents [n,C,h/8,w/8] (of a video frame below frame) where the caller gives what pipelines make: with `embeds` the tensors of that case whose names are the pipeline's "
                "own arguments, float32, masks int64; `seeds`: a generator for each picture; negative_prompts: one for each prompt. The scheduler is the folder's, or `scheduler`(**beta, **config).", beta=SCHEDULER)
    for k, (name, case) in enumerate(CASES):
        pipe = load(case["checkpoint"])
        if "scheduler" in case:
            pipe.scheduler = getattr(diffusers, case["scheduler"])(**SCHEDULER, **case["config"])
        guided = case["guidance"] > 1 and case["checkpoint"] != "tiny-flux" and "alone" not in case
        embeds = embeds_of(pipe, case["checkpoint"], len(case["prompts"]), guided, 500 + k, 77 if "negative_text" in case else OTHER_TOKENS) if "embeds" in case else {}
        latents = draw(pipe, case, embeds)
        assert torch.isfinite(latents).all()
        print(f"  {name}: latents {tuple(latents.shape)} {latents.min():.2f} to {latents.max():.2f}, std {latents.std():.2f}", flush=True)
        book.case(name, {**case, "image": False}, {"latents": latents, **embeds})
    book.save()
