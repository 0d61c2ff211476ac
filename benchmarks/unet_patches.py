"""Quality of a U-Net by patches: an SDXL whose widths are shrunk, with random weights.

python benchmarks/unet_patches.py FOLDER [--troupe build/bin/troupe] [--size 256] [--steps 20] [--seeds 4]

FOLDER gets the checkpoint (`shapes.sdxl` at a tenth of the widths) and the latents. Prints PSNR of the final latents against
exact ones over their range, by patches, warm-up, group norms and exchange. Seconds are `pipeline.py --models sdxl`.
"""
import argparse
import itertools
import json
import math
import pathlib
import subprocess
import sys

from safetensors.torch import load_file

from shapes import ROOT, sdxl

PROMPTS = ("a red circle above a blue square", "a black dog", "a tree beside a house", "seven green cups")


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


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--troupe", default=str(ROOT / "build/bin/troupe"))
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=4)
    arguments = parser.parse_args()
    if not (arguments.folder / "model").exists():
        sdxl(arguments.folder / "model", widths=(32, 64, 128), groups=8)
    quality(arguments)
