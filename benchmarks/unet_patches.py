"""Quality and time of a U-Net by patches: an SDXL whose widths are shrunk, with random weights.

python benchmarks/unet_patches.py FOLDER [--troupe build/bin/troupe] [--size 256] [--steps 20] [--seeds 4]

FOLDER gets the checkpoint (made by diffusers, with the CLIPs and the VAE of tests/fixtures) and the latents. Prints PSNR of
the final latents against exact ones over their range, by patches, warm-up, group norms and exchange; then seconds a step
of diffusers and of `troupe run` on so many actors with one thread each.
"""
import argparse
import itertools
import json
import math
import pathlib
import subprocess
import sys
import time

import torch
from diffusers import EulerDiscreteScheduler, StableDiffusionXLPipeline, UNet2DConditionModel
from safetensors.torch import load_file

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "reference"))
from common import randomise, settle  # noqa: E402

PROMPTS = ("a red circle above a blue square", "a black dog", "a tree beside a house", "seven green cups")


def make(folder):
    pipe = StableDiffusionXLPipeline.from_pretrained(ROOT / "tests/fixtures/tiny-sdxl")
    small = pipe.unet.config
    unet = UNet2DConditionModel(
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
        block_out_channels=(32, 64, 128), layers_per_block=2, transformer_layers_per_block=[1, 2, 10], attention_head_dim=[1, 2, 4], norm_num_groups=8,
        cross_attention_dim=small.cross_attention_dim, use_linear_projection=True, addition_embed_type="text_time", addition_time_embed_dim=small.addition_time_embed_dim,
        projection_class_embeddings_input_dim=small.projection_class_embeddings_input_dim, sample_size=128)
    pipe.unet = randomise(unet, 61, {"conv_out": 0.5, "to_q": 1.5, "time_emb_proj": 0.7})
    pipe.scheduler = EulerDiscreteScheduler.from_config({**pipe.scheduler.config, "timestep_spacing": "leading", "steps_offset": 1})
    pipe.save_pretrained(folder)


def run(args, seed, *options):
    """Latents, and the report."""
    latents = args.folder / "latents.safetensors"
    done = subprocess.run([args.troupe, "run", "--model", str(args.folder / "model"), "--prompt", PROMPTS[seed % len(PROMPTS)], "--height", str(args.size), "--width", str(args.size),
                           "--steps", str(args.steps), "--guidance", "5", "--seed", str(seed), "--output", str(args.folder / "out.png"), "--save-latents", str(latents), "--json", *options],
                          capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr)
    return load_file(latents)["latents"], json.loads(done.stdout)


def psnr(latents, exact):
    span = float(exact.max() - exact.min())
    error = float(((latents - exact) ** 2).mean())
    return 10 * math.log10(span * span / error) if error else math.inf


def quality(args):
    exact = [run(args, seed)[0] for seed in range(args.seeds)]
    ways = [(p, k, "corrected", "stale") for p, k in itertools.product((2, 4, 8), (1, 4))]
    ways += [(4, 4, norm, "stale") for norm in ("stale", "synchronous", "separate")] + [(4, 4, "corrected", "none")]
    print("| patches | warm-up | group norms | exchange | PSNR, dB | worst |\n|---|---|---|---|---|---|")
    for patches, warmup, norm, exchange in ways:
        found = [psnr(run(args, seed, "--method", "distrifusion", "--patches", str(patches), "--warmup", str(warmup), "--group-norm", norm, "--exchange", exchange)[0], exact[seed])
                 for seed in range(args.seeds)]
        print(f"| {patches} | {warmup} | {norm} | {exchange} | {sum(found) / len(found):.1f} | {min(found):.1f} |", flush=True)


def seconds(args):
    torch.set_num_threads(1)
    pipe = StableDiffusionXLPipeline.from_pretrained(args.folder / "model")
    pipe.set_progress_bar_config(disable=True)
    best = math.inf
    for _ in range(args.rounds):
        begin = time.monotonic()
        pipe(PROMPTS[0], height=args.size, width=args.size, num_inference_steps=args.steps, guidance_scale=5, output_type="latent")
        best = min(best, time.monotonic() - begin)
    print(f"| who | actors | ms a step |\n|---|---|---|\n| diffusers, text included | 1 thread | {1000 * best / args.steps:.0f} |")
    ways = {"exact": [], "exact, cfg 2": ["--cfg", "2"], "exact, ring 2": ["--ring", "2"],
            "distrifusion, ring 2": ["--ring", "2", "--method", "distrifusion", "--patches", "2", "--warmup", "1"]}
    for name, options in ways.items():
        reports = [run(args, 0, "--threads-per-actor", "1", *options)[1] for _ in range(args.rounds)]
        step = min(report["seconds"]["per_step"] for report in reports)
        print(f"| troupe, {name} | {len(reports[0]['actors'])} | {1000 * step:.0f} |", flush=True)


if __name__ == "__main__":
    settle()
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--troupe", default=str(ROOT / "build/bin/troupe"))
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("quality", "seconds"))
    arguments = parser.parse_args()
    if not (arguments.folder / "model").exists():
        make(arguments.folder / "model")
    if arguments.only != "seconds":
        quality(arguments)
    if arguments.only != "quality":
        seconds(arguments)
