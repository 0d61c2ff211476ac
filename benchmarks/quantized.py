"""What weights in 8 bits, and weights that stay in GGUF's blocks, cost in quality and save in time and memory, beside float32 and
bfloat16, taking turns in one run.

    OMP_NUM_THREADS=1 .deps/reference/bin/python benchmarks/quantized.py OUT

A cluster of one actor for each way of keeping and multiplying weights makes the pictures of all captions, a job each. Into the folder OUT:
  results.json   all figures
  quantized.md   the table: PSNR of the final latents against float32's (mean, and the worst, in decibels of their range), the captions'
                 attributes found (of the demo checkpoint), processor seconds of a step and how many times less than float32's, and bytes
                 of weights
Captions and seeds are the same every time: caption k is drawn with seed --seed + k. Seconds are those of the actor's processor time, of
the least of all captions, so that a machine's other work counts little; what a picture of one step takes is taken off as text and
decoding. q8_0 and q4_0 are the model with its denoiser's matrices in a GGUF file. --random-unet makes a U-Net of Stable Diffusion
1.5's size, of random weights, around a small text encoder and VAE. --random makes a model of that size around the demo's text encoder and VAE: PixArt-XL's width is 16 heads."""
import argparse
import contextlib
import json
import pathlib
import shutil
import subprocess
import tempfile

from command_line import ROOT, Parser, add_captions, add_model, add_number, add_out, add_troupe, numbers

WAYS = {"float32": [], "bfloat16": ["--dtype", "bfloat16"], "int8": ["--weight-dtype", "int8"],
        "int8 in bfloat16": ["--weight-dtype", "int8", "--dtype", "bfloat16"], "q8_0": [], "q4_0": [], "q8_0 in bfloat16": ["--dtype", "bfloat16"],
        "q8_0 as int8": ["--weight-dtype", "int8"]}
HEADER = "| weights | PSNR, dB | worst, dB | attributes, % | CPU s per step | faster | weights, MB |\n|---|---|---|---|---|---|---|\n"


def options():
    parser = Parser(__doc__)
    add_out(parser)
    add_troupe(parser)
    add_model(parser)
    parser.add_argument("--random", type=numbers("HEADS,BLOCKS", 2), metavar="HEADS,BLOCKS", help="random weights, heads of 72, instead of --model")
    parser.add_argument("--random-unet", action="store_true", help="a random U-Net of Stable Diffusion 1.5's size, instead of --model")
    add_captions(parser, captions=20, least_steps=2)
    add_number(parser, "--threads", 1, 1024, "threads of each actor")
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS), help="float32 first; all of them")
    args = parser.parse_args()
    if args.ways[0] != "float32":
        parser.error("--ways begins with float32, which the others are compared with")
    return args


ARGS = options() if __name__ == "__main__" else None

import numpy as np  # noqa: E402
from PIL import Image  # noqa: E402
from safetensors.numpy import load_file  # noqa: E402

import quality  # noqa: E402
from quality import scenes  # noqa: E402
from step_cache import processor_seconds  # noqa: E402


def random_model(folder, heads, blocks):
    import torch
    from diffusers import PixArtAlphaPipeline, PixArtTransformer2DModel
    pipe = PixArtAlphaPipeline.from_pretrained(ROOT / "examples/demo/model")
    torch.manual_seed(0)
    pipe.transformer = PixArtTransformer2DModel(
        num_attention_heads=heads, attention_head_dim=72, in_channels=4, out_channels=8, num_layers=blocks, sample_size=64, cross_attention_dim=72 * heads,
        patch_size=2, caption_channels=96, norm_type="ada_norm_single", norm_elementwise_affine=False, norm_eps=1e-6, attention_bias=True,
        activation_fn="gelu-approximate", num_embeds_ada_norm=1000, interpolation_scale=1, use_additional_conditions=False)
    pipe.save_pretrained(folder)
    return folder


def random_unet(folder):
    import torch
    from diffusers import UNet2DConditionModel
    small = ROOT / "tests/fixtures/tiny-sd15"
    shutil.copytree(small, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("unet"))
    torch.manual_seed(0)
    width = json.loads((small / "unet/config.json").read_text())["cross_attention_dim"]
    UNet2DConditionModel(sample_size=64, cross_attention_dim=width, attention_head_dim=8).save_pretrained(folder / "unet")
    return folder


def packed_model(folder, model, kind):
    """The model with the matrices of its denoiser in blocks, as far as rows are whole blocks."""
    import gguf
    (denoiser,) = [model / name for name in ("transformer", "unet") if (model / name).is_dir()]
    for part in model.iterdir():
        if part != denoiser:
            (folder / part.name).symlink_to(part.resolve())
    (folder / denoiser.name).mkdir()
    shutil.copy(denoiser / "config.json", folder / denoiser.name)
    writer = gguf.GGUFWriter(folder / denoiser.name / f"{kind}.gguf", "troupe-benchmark")
    blocks, plain = gguf.GGMLQuantizationType[kind.upper()], gguf.GGMLQuantizationType.F32
    for file in denoiser.glob("*.safetensors"):
        for name, tensor in load_file(file).items():
            fits = tensor.ndim == 2 and tensor.shape[1] % 32 == 0
            writer.add_tensor(name, gguf.quants.quantize(tensor, blocks) if fits else tensor, raw_dtype=blocks if fits else plain)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return folder


def draw(args, endpoint, way, caption, seed, steps):
    """One picture: latents, pixels, the actor's processor seconds, bytes of weights."""
    before = processor_seconds(args, endpoint)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        command = [args.troupe, "submit", "--connect", endpoint, "--json", "--height", str(args.size), "--width", str(args.size), "--steps", str(steps), "--guidance", "4.5", "--seed",
                   str(seed), "--output", str(folder / "p.png"), "--save-latents", str(folder / "l.safetensors"), *WAYS[way], "--prompt", caption]
        done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
        if done.returncode:
            raise RuntimeError(f"{way}: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'no reason given'}")
        report = json.loads(done.stdout)
        report = report.get("report", report)
        pixels = np.asarray(Image.open(folder / "p.png").convert("RGB"))
        seconds = processor_seconds(args, endpoint) - before
        return load_file(folder / "l.safetensors")["latents"], pixels, seconds, report["actors"][0]["weight_bytes"]


def table(args, results):
    lines = []
    step = {way: (min(r["seconds"] for r in rows) - min(r["one"] for r in rows)) / (args.steps - 1) for way, rows in results.items()}
    for way, rows in results.items():
        attributes = "" if args.random or args.random_unet else f"{100 * sum(r['right'] for r in rows) / sum(r['attributes'] for r in rows):.1f}"
        psnr = [r["psnr"] for r in rows]
        quality_cells = "| |" if way == "float32" else f"{np.mean(psnr):.1f} | {min(psnr):.1f} |"
        lines.append(f"| {way} | {quality_cells} {attributes} | {step[way]:.4f} | {step['float32'] / step[way]:.2f} × | {rows[0]['bytes'] / 1e6:.1f} |\n")
    count = min(len(rows) for rows in results.values())
    what = "random weights, {} heads of 72, {} blocks".format(*args.random) if args.random else \
        "random weights of Stable Diffusion 1.5's U-Net" if args.random_unet else args.model.name
    (args.out / "quantized.md").write_text(f"{what}: {count} captions, {args.size} px, {args.steps} steps, guidance 4.5, {args.threads} threads.\n\n" + HEADER +
                                           "".join(lines), encoding="utf-8")


def new_folder(stack):
    return pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))


def main(args):
    args.out.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(args.seed)
    captions = [scenes.sample(rng, 32)[0] for _ in range(args.captions)]
    results = {way: [] for way in args.ways}
    with contextlib.ExitStack() as stack:
        if args.random:
            args.model = random_model(new_folder(stack), *args.random)
        if args.random_unet:
            args.model = random_unet(new_folder(stack))
        models = {kind: packed_model(new_folder(stack), args.model, kind) for kind in sorted({way.split()[0] for way in args.ways} & {"q8_0", "q4_0"})}
        endpoints = {}
        for way in args.ways:
            own = argparse.Namespace(**{**vars(args), "model": models.get(way.split()[0], args.model)})
            endpoints[way] = stack.enter_context(quality.cluster(own))
        for way, endpoint in endpoints.items():
            draw(args, endpoint, way, captions[0], args.seed, 1)  # loads the model
        for index, caption in enumerate(captions):
            for way, endpoint in endpoints.items():
                one = draw(args, endpoint, way, caption, args.seed + index, 1)[2]
                latents, pixels, seconds, held = draw(args, endpoint, way, caption, args.seed + index, args.steps)
                if way == args.ways[0]:
                    plain = latents
                found = scenes.matches(caption, pixels).values()
                results[way].append(dict(psnr=float(quality.psnr(latents, plain)[0]), seconds=seconds, one=one, bytes=held, right=int(sum(found)),
                                         attributes=len(found)))
            (args.out / "results.json").write_text(json.dumps(dict(settings=vars(args), results=results), default=str, indent=1))
            table(args, results)
            print(f"{index + 1} of {args.captions}", flush=True)


if __name__ == "__main__":
    main(ARGS)
