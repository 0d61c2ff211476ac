"""What fp8 weights cost in quality, worked out without a GPU: diffusers' own pipeline, whose linear layers round as ours do.

    OMP_NUM_THREADS=1 .deps/reference/bin/python benchmarks/quantized_fp8.py OUT

The products of tokens (docs/quantization.md) are taken of values in e4m3, each weight's outputs and each row of inputs with a scale,
summed in float32, as kernels/quantized.cpp has them done on a GPU; a GPU's sums are in another order. int8 is emulated beside it: its
figure should be that of benchmarks/quantized.py, which measures our own. Captions and seeds are those of that program. Into OUT:
  fp8.json   all figures
  fp8.md     the table: PSNR of the final latents against float32's, mean and worst, in decibels of their range, and the share of the
             captions' attributes found"""
import json
import sys

from command_line import ROOT, Parser, add_captions, add_model, add_out


def options():
    parser = Parser(__doc__)
    add_out(parser)
    add_model(parser)
    add_captions(parser, captions=20)
    return parser.parse_args()


ARGS = options() if __name__ == "__main__" else None

import numpy as np  # noqa: E402
from diffusers import PixArtAlphaPipeline  # noqa: E402

import quality  # noqa: E402
from quality import scenes  # noqa: E402

sys.path.insert(0, str(ROOT / "tests" / "reference"))
import common  # noqa: E402
import pipeline  # noqa: E402
import quantized  # noqa: E402

WAYS = {"float32": None, "int8": quantized.ByteLinear, "fp8": quantized.Fp8Linear}


def load(args, linear):
    pipe = PixArtAlphaPipeline.from_pretrained(args.model)
    pipe.set_progress_bar_config(disable=True)
    if linear:
        quantized.quantize(pipe.transformer, linear)
    return pipe


def draw(pipe, args, caption, seed):
    latents = pipe(caption, height=args.size, width=args.size, num_inference_steps=args.steps, guidance_scale=4.5, generator=common.generator(seed),
                   use_resolution_binning=False, clean_caption=False, output_type="latent").images
    return latents.numpy(), pipeline.decode(pipe, latents)[0].numpy()


def main(args):
    args.out.mkdir(parents=True, exist_ok=True)
    common.settle()
    rng = np.random.default_rng(args.seed)
    captions = [scenes.sample(rng, 32)[0] for _ in range(args.captions)]
    pipes = {way: load(args, linear) for way, linear in WAYS.items()}
    results = {way: [] for way in WAYS}
    for index, caption in enumerate(captions):
        for way, pipe in pipes.items():
            latents, pixels = draw(pipe, args, caption, args.seed + index)
            plain = latents if way == "float32" else plain
            found = scenes.matches(caption, pixels).values()
            results[way].append(dict(psnr=float(quality.psnr(latents, plain)[0]), right=int(sum(found)), attributes=len(found)))
        print(f"{index + 1} of {args.captions}", flush=True)
    (args.out / "fp8.json").write_text(json.dumps(dict(settings=vars(args), results=results), default=str, indent=1))
    lines = ["| weights | PSNR, dB | worst, dB | attributes, % |\n|---|---|---|---|\n"]
    for way, rows in results.items():
        psnr = [row["psnr"] for row in rows]
        cells = "| |" if way == "float32" else f"{np.mean(psnr):.1f} | {min(psnr):.1f} |"
        lines.append(f"| {way} | {cells} {100 * sum(r['right'] for r in rows) / sum(r['attributes'] for r in rows):.1f} |\n")
    (args.out / "fp8.md").write_text(f"{args.captions} captions, {args.size} px, {args.steps} steps.\n\n" + "".join(lines), encoding="utf-8")


if __name__ == "__main__":
    main(ARGS)
