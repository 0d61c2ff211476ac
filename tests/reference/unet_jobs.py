"""Whole pictures by Stable Diffusion's pipelines (XL and 1.5), and by patches of rows on their U-Nets (DistriFusion)."""
import shutil
import threading

import diffusers
import numpy as np
import torch
from diffusers import DDIMScheduler, EulerDiscreteScheduler, StableDiffusionPipeline, StableDiffusionXLPipeline, UNet2DConditionModel
from transformers import CLIPTextModel, CLIPTokenizer

from checkpoints import make_vae
from common import FIXTURES, SCHEDULER, Book, generator, randomise
from families import clip_encoder, small_vae
from unet_patches import PatchedUNet

CLIP = FIXTURES / "tiny-clip"
KINDS = {"tiny-sdxl": StableDiffusionXLPipeline, "tiny-sd15": StableDiffusionPipeline, "tiny-sdxl-deep": StableDiffusionXLPipeline}
DEFAULTS = dict(prompts=["a red circle above a blue square"], negative_prompt=None, height=64, width=48, steps=5, guidance=4.0, seed=0, n=1, max_sequence_length=77)
PNDM = dict(skip_prk_steps=True, set_alpha_to_one=False, steps_offset=1)
WHOLE = {
    "plain": dict(image=True),
    "wide": dict(height=80, width=128, negative_prompt="a black dog!", seed=1, image=True),
    "alone": dict(guidance=1.0, seed=2, image=True, steps=4),
    "two_by_two": dict(prompts=["a red circle", "A Tree"], n=2, negative_prompt="dull", seed=3, steps=3),
    "uneven": dict(height=72, width=40, seed=4),
    "one_step": dict(steps=1, seed=5),
    "ancestral": dict(scheduler="EulerAncestralDiscreteScheduler", config={}, seed=6, n=2),
    "leading": dict(scheduler="EulerDiscreteScheduler", config=dict(timestep_spacing="leading", steps_offset=1), seed=7),
    "velocity": dict(scheduler="DDIMScheduler", config=dict(prediction_type="v_prediction", clip_sample=False, set_alpha_to_one=False, steps_offset=1), seed=8),
    "velocity_euler": dict(scheduler="EulerDiscreteScheduler", config=dict(prediction_type="v_prediction"), seed=9, steps=6),
    "ddpm": dict(scheduler="DDPMScheduler", config=dict(clip_sample=False), seed=10),
    "dpm": dict(scheduler="DPMSolverMultistepScheduler", config=dict(algorithm_type="dpmsolver++", use_karras_sigmas=True), seed=11, steps=7),
    "unipc": dict(scheduler="UniPCMultistepScheduler", config={}, seed=12, steps=7),
    "lcm": dict(scheduler="LCMScheduler", config={}, guidance=1.0, seed=13, steps=4),
    # As the published Stable Diffusion 1.5 folder has it; one step; predicting velocity; with the rounds before it.
    "pndm": dict(scheduler="PNDMScheduler", config=PNDM, seed=14, steps=6, image=True),
    "pndm_one": dict(scheduler="PNDMScheduler", config=PNDM, seed=15, steps=1),
    "pndm_velocity": dict(scheduler="PNDMScheduler", config=dict(PNDM, prediction_type="v_prediction"), seed=16, steps=5, n=2, height=72, width=40),
    "pndm_rounds": dict(scheduler="PNDMScheduler", config=dict(skip_prk_steps=False), seed=17, steps=4),
    "empty_negative": dict(negative_prompt="", seed=18, steps=3, n=2),
}
PATCHES = dict(method="distrifusion", kv="stale", warmup=1, patches=3, group_norm="corrected", exchange="stale", steps=6, seed=20)
PATCHED = {
    **{norm: dict(height=96, width=64, warmup=2, group_norm=norm) for norm in ("corrected", "stale", "synchronous", "separate")},
    "none": dict(height=96, width=64, warmup=2, exchange="none"),
    "all": dict(height=96, width=64, exchange="all"),
    "naive": dict(height=96, width=64, exchange="naive", warmup=0, group_norm="separate"),
    "naive_uneven": dict(height=72, width=40, patches=4, exchange="naive", warmup=0, group_norm="separate", seed=28),
    "uneven": dict(height=72, width=40, patches=4, seed=21),
    "thin": dict(height=40, width=48, patches=5, seed=22),
    "alone": dict(height=80, guidance=1.0, patches=2, seed=23, n=2),
    "ancestral": dict(height=64, patches=2, seed=24, scheduler="EulerAncestralDiscreteScheduler", config={}),
    "dpm": dict(height=64, patches=4, seed=25, scheduler="DPMSolverMultistepScheduler", config=dict(algorithm_type="dpmsolver++"), steps=7),
    "pndm": dict(height=64, patches=3, seed=26, warmup=2, scheduler="PNDMScheduler", config=PNDM, steps=6),
    "pndm_rounds": dict(height=64, patches=2, seed=27, scheduler="PNDMScheduler", config=dict(skip_prk_steps=False), steps=4),
}
# Of those, what a second SDXL is asked.
FEW = ("plain", "wide", "two_by_two", "dpm", "thin")


def make_sdxl_deep():
    """Three levels, as the published one has, and a negative branch for a prompt that is not given."""
    (tokenizer, first), (tokenizer_2, second) = clip_encoder(53, 8, None, "quick_gelu"), clip_encoder(54, 12, 12, "gelu")
    unet = UNet2DConditionModel(
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        block_out_channels=(4, 8, 12), layers_per_block=2, transformer_layers_per_block=[1, 1, 2], attention_head_dim=[1, 2, 3], norm_num_groups=2, cross_attention_dim=20,
        use_linear_projection=True, addition_embed_type="text_time", addition_time_embed_dim=4, projection_class_embeddings_input_dim=12 + 6 * 4, sample_size=8)
    randomise(unet, 55, {"conv_out": 0.5, "to_q": 1.5, "time_emb_proj": 0.7})
    pipe = StableDiffusionXLPipeline(vae=small_vae(0.4), text_encoder=first, text_encoder_2=second, tokenizer=tokenizer, tokenizer_2=tokenizer_2, unet=unet,
                                     scheduler=EulerDiscreteScheduler(**SCHEDULER, timestep_spacing="leading", steps_offset=1), force_zeros_for_empty_prompt=False,
                                     add_watermarker=False)
    shutil.rmtree(FIXTURES / "tiny-sdxl-deep", ignore_errors=True)
    pipe.save_pretrained(FIXTURES / "tiny-sdxl-deep")


def make_sd15():
    text = CLIPTextModel.from_pretrained(CLIP / "text_encoder")
    unet = UNet2DConditionModel(block_out_channels=(8, 8, 16, 16), layers_per_block=1, attention_head_dim=2, norm_num_groups=4, cross_attention_dim=text.config.hidden_size, sample_size=8)
    randomise(unet, 51, {"conv_out": 0.5, "to_q": 1.5, "time_emb_proj": 0.7})
    scheduler = DDIMScheduler(**SCHEDULER, clip_sample=False, set_alpha_to_one=False, steps_offset=1)
    pipe = StableDiffusionPipeline(vae=make_vae(), text_encoder=text, tokenizer=CLIPTokenizer.from_pretrained(CLIP / "tokenizer"), unet=unet, scheduler=scheduler,
                                   safety_checker=None, feature_extractor=None, requires_safety_checker=False)
    shutil.rmtree(FIXTURES / "tiny-sd15", ignore_errors=True)
    pipe.save_pretrained(FIXTURES / "tiny-sd15")


def load(name):
    pipe = KINDS[name].from_pretrained(FIXTURES / name)
    pipe.set_progress_bar_config(disable=True)
    pipe.safety_checker = None
    return pipe


def draw(pipe, case):
    negative = [case["negative_prompt"]] * len(case["prompts"]) if case["negative_prompt"] is not None else None
    return pipe(case["prompts"], negative_prompt=negative, height=case["height"], width=case["width"], num_inference_steps=case["steps"],
                guidance_scale=case["guidance"], num_images_per_prompt=case["n"], generator=generator(case["seed"]), output_type="latent").images


def decode(pipe, latents):
    pixels = pipe.vae.decode(latents / pipe.vae.config.scaling_factor, return_dict=False)[0]
    return torch.from_numpy(np.stack([np.asarray(i) for i in pipe.image_processor.postprocess(pixels, output_type="pil")]))


def draw_patched(pipe, case, draw=draw):
    """The pipeline's own loop, as `draw` runs it, with each call of the U-Net by patches."""
    unet, plain, step = pipe.unet, pipe.unet.forward, [0]
    patched = PatchedUNet(unet, case["height"] // 8, case["width"] // 8, case["patches"], case["group_norm"], case.get("unbiased", False))
    mode = {"stale": "stale", "none": "frozen", "all": "sync", "naive": "naive"}[case["exchange"]]

    def forward(sample, timestep, *args, return_dict=True, **kwargs):
        if threading.current_thread() is not threading.main_thread():
            return plain(sample, timestep, *args, return_dict=return_dict, **kwargs)
        step[0] += 1
        return (patched.run(sample, "sync" if step[0] <= case["warmup"] else mode, timestep=timestep, **kwargs),)
    unet.forward = forward
    try:
        return draw(pipe, case)
    finally:
        unet.forward = plain
        patched.undo()


def scheduled(pipe, own, case):
    """Gives the pipeline the case's scheduler as a folder that has it would: StableDiffusionPipeline's constructor puts outdated
    settings right."""
    scheduler = getattr(diffusers, case["scheduler"])(**SCHEDULER, **case["config"]) if "scheduler" in case else own
    safety = {"requires_safety_checker": False} if isinstance(pipe, StableDiffusionPipeline) else {}
    pipe.scheduler = type(pipe)(**{**pipe.components, "scheduler": scheduler}, **safety).scheduler


def make():
    make_sd15()
    make_sdxl_deep()
    book = Book("unet_jobs", "Whole pictures by Stable Diffusion's pipelines of `checkpoint`; the scheduler is the folder's or `scheduler`(**beta, **config). Without a "
                "negative prompt it is null. latents: final ones [n,4,h/8,w/8]; image: uint8 [n,h,w,3] of them.", beta=SCHEDULER)
    patched = Book("unet_jobs_patches", "As unet_jobs, but every call of the U-Net in `patches` patches of rows: `warmup` synchronous steps, then by `exchange` and `group_norm`. "
                   "exact: the pipeline's own latents.", beta=SCHEDULER)
    for name in KINDS:
        pipe = load(name)
        own, short = pipe.scheduler, name.removeprefix("tiny-")
        asked = FEW if name == "tiny-sdxl-deep" else (*WHOLE, *PATCHED)
        for key, changes in ((key, WHOLE[key]) for key in WHOLE if key in asked):
            case = {"checkpoint": name, **DEFAULTS, "image": False, **changes}
            scheduled(pipe, own, case)
            latents = draw(pipe, case)
            assert torch.isfinite(latents).all()
            print(f"  {short}_{key}: {latents.abs().max():.2f}", flush=True)
            book.case(f"{short}_{key}", case, {"latents": latents, **({"image": decode(pipe, latents)} if case["image"] else {})})
        for key, changes in ((key, PATCHED[key]) for key in PATCHED if key in asked):
            case = {"checkpoint": name, **DEFAULTS, **PATCHES, **changes}
            scheduled(pipe, own, case)
            exact = draw(pipe, case)
            scheduled(pipe, own, case)
            latents = draw_patched(pipe, case)
            print(f"  {short}_{key} by patches: {(latents - exact).abs().max() / (exact.max() - exact.min()):.1e} from exact", flush=True)
            patched.case(f"{short}_{key}", case, {"latents": latents, "exact": exact})
    book.save()
    patched.save()
