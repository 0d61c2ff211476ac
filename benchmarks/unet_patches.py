"""Quality of a U-Net by patches: an SDXL whose widths are shrunk, with random weights.

    .deps/reference/bin/python benchmarks/unet_patches.py FOLDER

FOLDER gets the checkpoint (`shapes.sdxl` at a tenth of the widths) and the latents. Prints PSNR of the final latents against
exact ones over their range, by patches, warm-up, group norms and exchange. Seconds are `pipeline.py --models sdxl`.
"""
import itertools
import json
import math
import pathlib
import subprocess
import sys

from command_line import Parser, add_number, add_troupe
from shapes import sdxl


def options():
    parser = Parser(__doc__, ["torch", "diffusers", "safetensors"])
    parser.add_argument("folder", type=pathlib.Path, metavar="FOLDER", help="for the model and the latents")
    add_troupe(parser)
    add_number(parser, "--size", 256, 16384, "pixels a side")
    add_number(parser, "--steps", 20, 1000, "sampler steps")
    add_number(parser, "--seeds", 4, 1000, "pictures of each way")
    return parser.parse_args()


ARGS = options() if __name__ == "__main__" else None

from safetensors.torch import load_file  # noqa: E402

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
    if not (ARGS.folder / "model").exists():
        sdxl(ARGS.folder / "model", widths=(32, 64, 128), groups=8)
    quality(ARGS)
