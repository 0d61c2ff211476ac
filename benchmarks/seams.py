"""What patches that see nothing of each other look like: a contact sheet of the demo's pictures, exact, by old values and naive.

    OMP_NUM_THREADS=1 .deps/reference/bin/python benchmarks/seams.py OUT

A cluster of one actor makes the pictures; what more actors make is the same. Into the folder OUT:
  seams.md    PSNR of the final latents against the exact ones, over their range, and the share of the captions' attributes that
              are found in the pictures
  seams.webp   a way a row, a caption a column
Captions and seeds are the same every time, as in quality.py."""
import pathlib
import sys
import tempfile

from command_line import Parser, add_captions, add_model, add_number, add_out, add_troupe


def options():
    parser = Parser(__doc__)
    add_out(parser)
    add_troupe(parser)
    add_model(parser)
    add_captions(parser, captions=8)
    add_number(parser, "--patches", 4, 64, "patches of each way")
    add_number(parser, "--threads", 1, 1024, "threads of the actor")
    add_number(parser, "--columns", 4, 1000, "captions on the contact sheet")
    return parser.parse_args()


ARGS = options() if __name__ == "__main__" else None

import numpy as np  # noqa: E402
from PIL import Image, ImageDraw  # noqa: E402

import quality  # noqa: E402
from quality import scenes  # noqa: E402

SHOWN = 128  # pixels of a picture on the sheet
# Name and options beside --method distrifusion; exact has none.
WAYS = [("exact", None), ("stale", []), ("predicted", ["--kv", "predict"]), ("naive", ["--exchange", "naive"])]


def measure(args, captions):
    """Of each way: name, pictures, PSNR, share of the attributes."""
    found, exact = [], None
    with quality.cluster(args) as endpoint:
        for name, more in WAYS:
            flags = [] if more is None else ["--method", "distrifusion", "--patches", str(args.patches), "--warmup", "1", *more]
            with tempfile.TemporaryDirectory() as folder:
                latents, pictures = quality.draw(args, endpoint, name, flags, captions, args.seed, pathlib.Path(folder))
            exact = latents if exact is None else exact
            right = [value for caption, picture in zip(captions, pictures) for value in scenes.matches(caption, picture).values()]
            found.append((name, pictures, float(quality.psnr(latents, exact).mean()), 100 * float(np.mean(right))))
            print("[seams] {0}: {2:.1f} dB, attributes {3:.1f} %".format(*found[-1]), flush=True)
    return found


def sheet(args, captions, rows):
    columns, left, top = min(args.columns, len(captions)), 64, 40
    image = Image.new("RGB", (left + columns * (SHOWN + 4), top + len(rows) * (SHOWN + 4)), "white")
    pen = ImageDraw.Draw(image)
    for c in range(columns):
        words, lines = captions[c].split(), [""]
        for word in words:
            lines = lines[:-1] + [f"{lines[-1]} {word}".strip()] if len(lines[-1]) + len(word) < SHOWN // 6 else lines + [word]
        pen.multiline_text((left + c * (SHOWN + 4), 1), "\n".join(lines[:3]), fill="black", spacing=0)
    for r, (name, pictures, *_) in enumerate(rows):
        y = top + r * (SHOWN + 4)
        pen.text((4, y + SHOWN // 2 - 6), name, fill="black")
        for c in range(columns):
            image.paste(Image.fromarray(pictures[c]).resize((SHOWN, SHOWN), Image.Resampling.LANCZOS), (left + c * (SHOWN + 4), y))
    image.save(args.out / "seams.webp", quality=80, method=6)


def main(args):
    args.out.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(args.seed)
    captions = [scenes.sample(rng, 32)[0] for _ in range(args.captions)]
    rows = measure(args, captions)
    text = f"{args.captions} captions, {args.size} px, {args.steps} steps, {args.patches} patches.\n\n"
    text += "| distrifusion | PSNR, dB | attributes, % |\n|---|--:|--:|\n"
    for name, _, decibels, right in rows:
        text += f"| {name} | {'' if name == 'exact' else f'{decibels:.1f}'} | {right:.1f} |\n"
    (args.out / "seams.md").write_text(text, encoding="utf-8")
    sheet(args, captions, rows)


if __name__ == "__main__":
    sys.exit(main(ARGS))
