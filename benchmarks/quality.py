"""How far each way of working with old keys and values is from the exact picture, on captions drawn by rule.

    OMP_NUM_THREADS=1 .deps/reference/bin/python benchmarks/quality.py OUT

A cluster of one actor makes the pictures of all captions, exact and then with each method, K,V, number of patches and of warm-up
steps; what more actors make is the same. Into the folder OUT:
  results.json   what is finished; the same command again goes on from there
  quality.md     the table: PSNR of the final latents against the exact ones, by picture in decibels of the exact latents' range
                 (mean, and the tenth part that is worst), and the share of the captions' attributes that `scenes.matches` finds
  sheet.png      exact and every method at 4 patches and 1 warm-up step (or the first asked for), a caption a column
Captions and seeds are the same every time: caption k is the k-th that `scenes.sample` draws from --seed, pictures are made --batch
at a time, and batch b has seed --seed + b."""
import contextlib
import hashlib
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from command_line import ROOT, Parser, add_captions, add_model, add_number, add_out, add_troupe, whole


def options():
    parser = Parser(__doc__)
    add_out(parser)
    add_troupe(parser)
    add_model(parser)
    add_captions(parser, captions=200, size=128)
    add_number(parser, "--batch", 20, 4096, "pictures a job")
    add_number(parser, "--threads", 1, 1024, "threads of the actor")
    add_number(parser, "--columns", 8, 1000, "captions on the contact sheet")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS, help="all of them")
    parser.add_argument("--kv", nargs="+", choices=KV, default=KV, help="all of them")
    parser.add_argument("--patches", type=whole(1, 1024), nargs="+", default=[2, 4, 8], metavar="N", help="2 4 8")
    parser.add_argument("--warmup", type=whole(0, 1000), nargs="+", default=[0, 1, 2, 4], metavar="N", help="0 1 2 4")
    return parser.parse_args()


METHODS, KV = ["pipefusion", "distrifusion"], ["stale", "predict"]
ARGS = options() if __name__ == "__main__" else None

import numpy as np  # noqa: E402
from PIL import Image, ImageDraw  # noqa: E402
from safetensors.numpy import load_file  # noqa: E402

sys.path.insert(0, str(ROOT / "examples" / "demo" / "training"))
import scenes  # noqa: E402

HEADER = "| method | K,V | patches | warm-up | PSNR, dB | worst tenth, dB | attributes, % |\n|---|---|---|---|---|---|---|\n"
CEILING = 120.0  # decibels of pictures that are equal to the last bit


def name_of(way):
    return "exact" if way["method"] == "exact" else "{method} {kv} m{patches} k{warmup}".format(**way)


def ways(args):
    """Exact, then those of the contact sheet, then the rest."""
    shown = (4 if 4 in args.patches else args.patches[0], 1 if 1 in args.warmup else args.warmup[0])
    rest = [dict(method=m, kv=kv, patches=p, warmup=k) for m, kv, p, k in itertools.product(args.methods, args.kv, args.patches, args.warmup)]
    rest.sort(key=lambda way: (way["patches"], way["warmup"]) != shown)
    sheet = [way for way in rest if (way["patches"], way["warmup"]) == shown]
    return [dict(method="exact")] + rest, [dict(method="exact")] + sheet


def flags(way):
    if way["method"] == "exact":
        return ["--method", "exact"]
    kv = ["--kv", way["kv"]] if way["kv"] != "stale" else []
    return ["--method", way["method"], "--patches", str(way["patches"]), "--warmup", str(way["warmup"]), *kv]


@contextlib.contextmanager
def cluster(args):
    """A started cluster; yields its endpoint."""
    with tempfile.TemporaryDirectory() as folder:
        endpoint = f"ipc://{folder}/control.sock"
        start = [args.troupe, "start", "--listen", endpoint, "--actors", "1", "--threads-per-actor", str(args.threads), "--model", str(args.model)]
        subprocess.run([*start, "--detach", "--log", f"{folder}/log"], check=True, stdout=subprocess.DEVNULL, timeout=120)
        try:
            yield endpoint
        finally:
            subprocess.run([args.troupe, "stop", "--connect", endpoint], stdout=subprocess.DEVNULL, timeout=60)


def draw(args, endpoint, name, options, captions, seed, folder):
    """Latents [n, 4, h, w] and pictures [n, h, w, 3] of one job with these options; `name` is for those who read of its failure."""
    latents = folder / "latents.safetensors"
    prompts = [word for caption in captions for word in ("--prompt", caption)]
    command = [args.troupe, "submit", "--connect", endpoint, "-q", "--height", str(args.size), "--width", str(args.size), "--steps", str(args.steps), "--guidance", "4.5",
               "--seed", str(seed), "--output", str(folder / "p-{}.png"), "--save-latents", str(latents), *options, *prompts]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    if done.returncode:
        raise RuntimeError(f"{name}: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'no reason given'}")
    pictures = [np.asarray(Image.open(folder / f"p-{i}.png").convert("RGB")) for i in range(len(captions))]
    (folder / "latents.safetensors").rename(folder / "taken.safetensors")
    return load_file(folder / "taken.safetensors")["latents"], np.stack(pictures)


def psnr(latents, exact):
    flat, true = (x.reshape(len(x), -1).astype(np.float64) for x in (latents, exact))
    error, span = ((flat - true) ** 2).mean(1), true.max(1) - true.min(1)
    return np.minimum(CEILING, 10 * np.log10(span**2 / np.maximum(error, 1e-300)))


def measure(args, endpoint, way, captions, kept):
    """The row of one way; its first pictures go to `kept` for the contact sheet, exact latents for comparison."""
    decibels, right, asked, shown = [], 0, 0, []
    for batch, first in enumerate(range(0, len(captions), args.batch)):
        mine = captions[first:first + args.batch]
        with tempfile.TemporaryDirectory() as folder:
            latents, pictures = draw(args, endpoint, name_of(way), flags(way), mine, args.seed + batch, pathlib.Path(folder))
        reference = kept / f"exact-{batch}.npy"
        if way["method"] == "exact":
            np.save(reference, latents)
        decibels.extend(psnr(latents, np.load(reference)))
        for caption, picture in zip(mine, pictures):
            found = scenes.matches(caption, picture).values()
            right, asked = right + sum(found), asked + len(found)
        shown.extend(pictures[:max(0, args.columns - len(shown))])
    np.save(kept / f"{name_of(way)}.npy", np.stack(shown))
    worst = sorted(decibels)[:max(1, len(decibels) // 10)]
    return dict(way, psnr=float(np.mean(decibels)), worst=float(np.mean(worst)), right=int(right), attributes=int(asked))


def row(result):
    accuracy = f"{100 * result['right'] / result['attributes']:.1f}"
    if result["method"] == "exact":
        return f"| exact | | | | | | {accuracy} |\n"
    return "| {method} | {kv} | {patches} | {warmup} | {psnr:.1f} | {worst:.1f} | ".format(**result) + accuracy + " |\n"


def order(result):
    return result["method"] != "exact", result["method"] == "distrifusion", result.get("kv") == "predict", result.get("patches", 0), result.get("warmup", 0)


def table(args, settings, results):
    about = (f"{settings['captions']} captions, {settings['size']} px, {settings['steps']} steps, guidance 4.5, transformer "
             f"`{settings['transformer_sha256'][:12]}`.\n\n")
    (args.out / "quality.md").write_text(about + HEADER + "".join(row(r) for r in sorted(results.values(), key=order)), encoding="utf-8")


def contact_sheet(args, captions, shown, kept):
    shown = [way for way in shown if (kept / f"{name_of(way)}.npy").exists()]
    rows = [np.load(kept / f"{name_of(way)}.npy") for way in shown]
    columns, size, left, top = len(rows[0]), args.size, 150, 54
    sheet = Image.new("RGB", (left + columns * (size + 4), top + len(rows) * (size + 4)), "white")
    pen = ImageDraw.Draw(sheet)
    for c in range(columns):
        words, lines = captions[c].split(), [""]
        for word in words:
            lines = lines[:-1] + [f"{lines[-1]} {word}".strip()] if len(lines[-1]) + len(word) < size // 6 else lines + [word]
        pen.multiline_text((left + c * (size + 4), 2), "\n".join(lines[:4]), fill="black", spacing=0)
    for r, way in enumerate(shown):
        y = top + r * (size + 4)
        text = way["method"] if way["method"] == "exact" else "{method}\n{kv}\n{patches} patches\n{warmup} warm-up".format(**way)
        pen.multiline_text((6, y + size // 3), text, fill="black")
        for c in range(columns):
            sheet.paste(Image.fromarray(rows[r][c]), (left + c * (size + 4), y))
    sheet.save(args.out / "sheet.png")


def main(args):
    kept = args.out / "kept"
    kept.mkdir(parents=True, exist_ok=True)
    weights = (args.model / "transformer" / "diffusion_pytorch_model.safetensors").read_bytes()
    settings = dict(captions=args.captions, size=args.size, steps=args.steps, seed=args.seed, batch=args.batch,
                    transformer_sha256=hashlib.sha256(weights).hexdigest())
    file = args.out / "results.json"
    document = json.loads(file.read_text()) if file.exists() else dict(settings=settings, results={})
    if document["settings"] != settings:
        sys.exit(f"[quality] {file} was made with {document['settings']}, not {settings}: take another folder")
    results = document["results"]
    rng = np.random.default_rng(args.seed)
    captions = [scenes.sample(rng, 32)[0] for _ in range(args.captions)]
    everything, shown = ways(args)
    missing, failures = [way for way in everything if name_of(way) not in results], 0
    with cluster(args) if missing else contextlib.nullcontext() as endpoint:
        for way in missing:
            try:
                results[name_of(way)] = measure(args, endpoint, way, captions, kept)
            except RuntimeError as error:
                if way["method"] == "exact":
                    raise
                failures += 1
                print(f"[quality] {error}", file=sys.stderr, flush=True)
                continue
            draft = file.with_suffix(".new")
            draft.write_text(json.dumps(document, indent=1))
            os.replace(draft, file)
            table(args, settings, results)
            contact_sheet(args, captions, shown, kept)
            print(row(results[name_of(way)]), end="", flush=True)
    table(args, settings, results)
    contact_sheet(args, captions, shown, kept)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(ARGS))
