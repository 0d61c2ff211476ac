"""A whole tiny SDXL folder, and final latents by StableDiffusionXLPipeline with samplers that add noise and that do not."""
import shutil

import diffusers
import torch
from diffusers import EulerDiscreteScheduler, StableDiffusionXLPipeline, UNet2DConditionModel
from transformers import CLIPTextModel, CLIPTextModelWithProjection, CLIPTokenizer

from checkpoints import make_vae
from common import FIXTURES, SCHEDULER, Book, generator, randomise

FOLDER = FIXTURES / "tiny-sdxl"
CLIP = FIXTURES / "tiny-clip"
DEFAULTS = dict(prompts=["a red circle above a blue square"], negative_prompt=None, height=64, width=48, steps=5, guidance=4.0, seed=0, n=1,
                scheduler="EulerDiscreteScheduler", config={})
CASES = {
    "plain": {},
    "negative": dict(negative_prompt="a black dog!", seed=1),
    "no_guidance": dict(guidance=1.0, seed=2),
    "two_by_two": dict(prompts=["a red circle", "A Tree"], n=2, negative_prompt="", seed=3, steps=3),
    "uneven": dict(height=72, width=40, seed=4),
    "ancestral": dict(scheduler="EulerAncestralDiscreteScheduler", seed=5, n=2),
    "ddpm": dict(scheduler="DDPMScheduler", config=dict(clip_sample=False), seed=6),
    "sde": dict(scheduler="DPMSolverMultistepScheduler", config=dict(algorithm_type="sde-dpmsolver++"), seed=7, steps=8),
    "lcm": dict(scheduler="LCMScheduler", guidance=1.0, seed=8, steps=4, n=2),
    "unipc": dict(scheduler="UniPCMultistepScheduler", seed=9, steps=8),
}


def make_pipeline():
    first, second = CLIPTextModel.from_pretrained(CLIP / "text_encoder"), CLIPTextModelWithProjection.from_pretrained(CLIP / "text_encoder_2")
    unet = UNet2DConditionModel(
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"), block_out_channels=(8, 16),
        layers_per_block=1, transformer_layers_per_block=[1, 2], attention_head_dim=[1, 2], norm_num_groups=4,
        cross_attention_dim=first.config.hidden_size + second.config.hidden_size, use_linear_projection=True, addition_embed_type="text_time",
        addition_time_embed_dim=6, projection_class_embeddings_input_dim=second.config.projection_dim + 6 * 6, sample_size=8)
    randomise(unet, 41, {"conv_out": 0.5, "to_q": 1.5, "time_emb_proj": 0.7})
    pipe = StableDiffusionXLPipeline(
        vae=make_vae(), text_encoder=first, text_encoder_2=second, tokenizer=CLIPTokenizer.from_pretrained(CLIP / "tokenizer"),
        tokenizer_2=CLIPTokenizer.from_pretrained(CLIP / "tokenizer_2"), unet=unet, scheduler=EulerDiscreteScheduler(**SCHEDULER), add_watermarker=False)
    shutil.rmtree(FOLDER, ignore_errors=True)
    pipe.save_pretrained(FOLDER)
    pipe.set_progress_bar_config(disable=True)
    return pipe


def make():
    pipe = make_pipeline()
    book = Book("unet_pipeline", "StableDiffusionXLPipeline of tests/fixtures/tiny-sdxl with torch.Generator().manual_seed(seed) for start and steps; the "
                "scheduler is `scheduler`(**beta, **config), whatever the folder says. latents: final ones, before the VAE. Without a negative prompt "
                "(null) its states are zero. Order of n: prompt 0's pictures first.", beta=SCHEDULER)
    for name, changes in CASES.items():
        case = {**DEFAULTS, **changes}
        pipe.scheduler = getattr(diffusers, case["scheduler"])(**SCHEDULER, **case["config"])
        latents = pipe(case["prompts"], negative_prompt=None if case["negative_prompt"] is None else [case["negative_prompt"]] * len(case["prompts"]), height=case["height"],
                       width=case["width"], num_inference_steps=case["steps"], guidance_scale=case["guidance"], num_images_per_prompt=case["n"],
                       generator=generator(case["seed"]), output_type="latent").images
        assert torch.isfinite(latents).all()
        print(f"  {name}: range {latents.abs().max():.2f}", flush=True)
        book.case(name, case, {"latents": latents})
    book.save()
