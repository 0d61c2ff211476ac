"""Wan 2.2's A14B models, video from text by two transformers: a small random checkpoint, whole videos, and videos by patches."""
import shutil

import torch
from diffusers import UniPCMultistepScheduler, WanPipeline
from safetensors.torch import save_file

import wan_patches
from checkpoints import make_tokenizer
from common import FIXTURES, PROMPT, Book
from lora import in_diffusers, pairs
from wan import DEFAULTS, FLOW, TRAINED, decode, draw, load, make_text_encoder, make_transformer, make_vae, pictures, tall

NAME = "tiny-wan22-a14b"
BASE = dict(DEFAULTS, checkpoint=NAME, steps=6)
LAYERS = ["blocks.0.attn1.to_q", "blocks.1.attn2.to_k", "blocks.2.ffn.net.0.proj", "proj_out"]
LORAS = {key: f"lora/a14b-{key}.safetensors" for key in ("lora", "lora_2")}
# All steps are of the first transformer, or of both; guidance of one scale, of two, of one that takes away, and of none, which the first scale alone says.
VIDEOS = [("a14b_plain", dict(image=True)), ("a14b_alone", dict(guidance=1.0, seed=3, num_frames=5)), ("a14b_first", dict(steps=1, seed=4)), ("a14b_many", dict(steps=11, seed=5, num_frames=5)),
          ("a14b_two", dict(prompts=["a red  circle", PROMPT], n=2, width=48, num_frames=5, seed=2, negative_prompt="a dog", image=True)),
          ("a14b_scales", dict(guidance_2=2.5, seed=6, image=True)), ("a14b_less", dict(guidance_2=0.5, seed=7, num_frames=5)), ("a14b_zero", dict(guidance_2=0.0, seed=8, num_frames=5)), ("a14b_unguided", dict(guidance=1.0, guidance_2=3.0, seed=9, num_frames=5)),
          ("a14b_lora", dict(lora=LORAS["lora"], seed=10, num_frames=5)), ("a14b_lora_2", dict(lora_2=LORAS["lora_2"], seed=11, num_frames=5)), ("a14b_loras", dict(**LORAS, seed=12, num_frames=5))]
PATCHES = [("pipefusion", "stale", 3, 1), ("pipefusion", "predict", 4, 2), ("distrifusion", "stale", 3, 0), ("distrifusion", "predict", 2, 1), ("pipefusion", "predict", 3, 4)]


def make_checkpoint():
    shutil.rmtree(FIXTURES / NAME, ignore_errors=True)
    tokenizer = make_tokenizer(FIXTURES / NAME / "tokenizer")
    first, second = (make_transformer(seed=seed, num_layers=3) for seed in (61, 62))
    WanPipeline(tokenizer=tokenizer, text_encoder=make_text_encoder(len(tokenizer)), vae=make_vae(), transformer=first, transformer_2=second, boundary_ratio=0.875,
                scheduler=UniPCMultistepScheduler(**TRAINED, **FLOW, flow_shift=3.0)).save_pretrained(FIXTURES / NAME)


def make_videos(pipe):
    book = Book("wan22_a14b", "Whole videos by WanPipeline with two transformers: latents [n,C,f·h,w], frame below frame, are the final ones before the VAE; image (uint8 [n,F·H,W,3], frames likewise) where `image` is true. `lora`, `lora_2`: with this file in the first, in the second transformer.")
    (FIXTURES / "lora").mkdir(exist_ok=True)
    for seed, (key, file) in enumerate(LORAS.items()):
        save_file(in_diffusers("transformer", pairs(pipe.transformer, LAYERS, 3, 81 + seed)), FIXTURES / file)
    for name, changes in VIDEOS:
        case = {**BASE, **changes}
        for key in LORAS:
            if key in case:
                pipe.load_lora_weights(FIXTURES / case[key], adapter_name=key, load_into_transformer_2=key == "lora_2")
        latents = draw(pipe, case)
        if LORAS.keys() & case.keys():
            pipe.unload_lora_weights()
        assert torch.isfinite(latents).all()
        seconds = int((pipe.scheduler.timesteps < 875).sum())
        print(f"  {name}: {seconds} of {case['steps']} steps by the second, std {latents.std():.2f}", flush=True)
        tensors = {"latents": tall(latents)}
        if case["image"]:
            tensors["image"] = pictures(pipe, latents)
        book.case(name, {**case, "seconds": seconds}, tensors)
    book.save()


def make_patches(pipe):
    book = Book("wan22_a14b_patches", "As `wan22_a14b`, by PipeFusion or DistriFusion: the second transformer's first step takes all rows.")
    for number, (method, kv, patches, warmup) in enumerate(PATCHES):
        case = {**BASE, "steps": 8, "method": method, "kv": kv, "patches": patches, "warmup": warmup, "seed": 30 + number, "guidance": 1.0 if number == 1 else 4.0, "guidance_2": 4.0 - number / 2}
        book.case(f"{method}_{kv}_m{patches}_k{warmup}", case, {"latents": wan_patches.denoise(pipe, case)})
    book.save()


def make():
    make_checkpoint()
    pipe = load(NAME)
    make_videos(pipe)
    make_patches(pipe)
