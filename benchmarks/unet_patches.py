"""Quality of a U-Net by patches: an SDXL whose widths are shrunk, with random weights.

    .deps/reference/bin/python benchmarks/unet_patches.py FOLDER

FOLDER gets the checkpoint (`shapes.sdxl` at a tenth of the widths) and the latents. Prints PSNR of the final latents against
exact ones over their range, by patches, warm-up, group norms and exchange. With --unbiased what the factor n/(n-1) of the
original's variances changes, in diffusers with `tests/reference/unet_patches.py`. Seconds are `pipeline.py --models sdxl`.
"""
import itertools
import json
import math
import pathlib
import subprocess
import sys

from command_line import ROOT, Parser, add_number, add_troupe
from shapes import sdxl


def options():
    parser = Parser(__doc__, ["torch", "diffusers"])
    parser.add_argument("folder", type=pathlib.Path, metavar="FOLDER", help="for the model and the latents")
    add_troupe(parser)
    add_number(parser, "--size", 256, 16384, "pixels a side")
    add_number(parser, "--steps", 20, 1000, "sampler steps")
    add_number(parser, "--seeds", 4, 1000, "pictures of each way")
    parser.add_argument("--unbiased", action="store_true", help="only the factor n/(n-1)")
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
    ways += [(4, 4, norm, "stale") for norm in ("stale", "synchronous", "separate")]
    ways += [(4, 4, "corrected", "none"), *((p, 0, "separate", "naive") for p in (2, 4, 8))]
    print("| patches | warm-up | group norms | exchange | PSNR, dB | worst |\n|---|---|---|---|---|---|")
    for patches, warmup, norm, exchange in ways:
        found = [psnr(run(args, seed, "--method", "distrifusion", "--patches", str(patches), "--warmup", str(warmup), "--group-norm", norm, "--exchange", exchange)[0], exact[seed])
                 for seed in range(args.seeds)]
        print(f"| {patches} | {warmup} | {norm} | {exchange} | {sum(found) / len(found):.1f} | {min(found):.1f} |", flush=True)


def unbiased(args):
    """Corrected norms with and without the factor, one warm-up step."""
    sys.path.insert(0, str(ROOT / "tests" / "reference"))
    import torch
    from diffusers import StableDiffusionXLPipeline
    from unet_jobs import DEFAULTS, PATCHES, draw, draw_patched
    torch.set_grad_enabled(False)
    pipe = StableDiffusionXLPipeline.from_pretrained(args.folder / "model")
    pipe.set_progress_bar_config(disable=True)
    print("| patches | PSNR to exact, dB | with n/(n-1), dB | the two from each other, dB |\n|---|--:|--:|--:|")
    for patches in (2, 4, 8):
        rows = []
        for seed in range(args.seeds):
            case = {**DEFAULTS, **PATCHES, "prompts": [PROMPTS[seed % len(PROMPTS)]], "height": args.size, "width": args.size, "steps": args.steps, "guidance": 5.0, "patches": patches, "seed": seed}
            exact, biased = draw(pipe, case), draw_patched(pipe, case)
            other = draw_patched(pipe, {**case, "unbiased": True})
            rows.append((psnr(biased, exact), psnr(other, exact), psnr(other, biased)))
        print(f"| {patches} | " + " | ".join(f"{sum(column) / len(rows):.1f}" for column in zip(*rows)) + " |", flush=True)


if __name__ == "__main__":
    if not (ARGS.folder / "model").exists():
        sdxl(ARGS.folder / "model", widths=(32, 64, 128), groups=8)
    unbiased(ARGS) if ARGS.unbiased else quality(ARGS)
