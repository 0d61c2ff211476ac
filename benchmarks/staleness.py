"""Where old keys and values hurt: PSNR of pipefusion and distrifusion against exact, by steps, size, patches and warm-up.

    OMP_NUM_THREADS=1 .deps/reference/bin/python benchmarks/staleness.py OUT

A cluster of one actor makes the demo's pictures; what more actors make is the same. One of the four changes at a time, the others
are those of the options --steps, --size, --patches and --warmup; the warm-up changes at 10 steps. Into the folder OUT:
  results.json   what is finished; the same command again goes on from there
  staleness.md   the tables: mean PSNR of the final latents against the exact ones, over their range
  staleness.svg  the same as curves
Captions and seeds are the same every time, as in quality.py; the second half of them is left out above --size."""
import json
import pathlib
import sys
import tempfile
import types

from command_line import Parser, add_captions, add_model, add_number, add_out, add_troupe

KINDS = [("pipefusion", "stale"), ("pipefusion", "predict"), ("distrifusion", "stale"), ("distrifusion", "predict")]
AXES = {"steps": [4, 6, 10, 20, 50], "size": [128, 192, 256, 384], "patches": [2, 4, 8], "warmup": [0, 1, 2, 4]}
FEW = 10  # steps in which the warm-up changes: in many it hardly matters
WORDS = {"steps": "steps", "size": "pixels a side", "patches": "patches", "warmup": f"warm-up steps of {FEW}"}
COLORS = {"pipefusion": "#1f77b4", "distrifusion": "#d62728"}


def options():
    parser = Parser(__doc__)
    add_out(parser)
    add_troupe(parser)
    add_model(parser)
    add_captions(parser, captions=12)
    add_number(parser, "--patches", 4, 1024, "patches")
    add_number(parser, "--warmup", 1, 1000, "synchronous steps", least=0)
    add_number(parser, "--threads", 1, 1024, "threads of the actor")
    return parser.parse_args()


ARGS = options() if __name__ == "__main__" else None

import numpy as np  # noqa: E402

import quality  # noqa: E402
from quality import scenes  # noqa: E402


def points(args):
    """(axis, value, settings) of every place where something is measured."""
    usual = dict(steps=args.steps, size=args.size, patches=args.patches, warmup=args.warmup)
    return [(axis, value, {**usual, **({"steps": FEW} if axis == "warmup" else {}), axis: value})
            for axis, values in AXES.items() for value in sorted({*values, usual[axis]})]


def key(settings, way):
    return " ".join([f"{name}={value}" for name, value in settings.items()] + list(way))


def latents_of(args, endpoint, settings, way, captions):
    job = types.SimpleNamespace(**{**vars(args), "size": settings["size"], "steps": settings["steps"]})
    flags = [] if way == ("exact",) else ["--method", way[0], "--kv", way[1], "--patches", str(settings["patches"]), "--warmup", str(settings["warmup"])]
    with tempfile.TemporaryDirectory() as folder:
        return quality.draw(job, endpoint, key(settings, way), flags, captions, args.seed, pathlib.Path(folder))[0]


def measure(args, captions, file):
    results = json.loads(file.read_text()) if file.exists() else {}
    missing = [(settings, way) for _, _, settings in points(args) for way in KINDS if key(settings, way) not in results]
    if not missing:
        return results
    exact = {}
    with quality.cluster(args) as endpoint:
        for settings, way in missing:
            if key(settings, way) in results:
                continue
            mine = captions[:(len(captions) + 1) // 2] if settings["size"] > args.size else captions
            picture = settings["size"], settings["steps"]
            if picture not in exact:
                exact[picture] = latents_of(args, endpoint, settings, ("exact",), mine)
            latents = latents_of(args, endpoint, settings, way, mine)
            results[key(settings, way)] = float(quality.psnr(latents, exact[picture]).mean())
            print(f"[staleness] {key(settings, way)}: {results[key(settings, way)]:.1f} dB", flush=True)
            file.write_text(json.dumps(results, indent=1), encoding="utf-8")
    return results


def table(args, axis, results):
    mine = [(value, settings) for name, value, settings in points(args) if name == axis]
    text = f"| {WORDS[axis]} | " + " | ".join(str(value) for value, _ in mine) + " |\n|---|" + "--:|" * len(mine) + "\n"
    for way in KINDS:
        text += f"| {way[0]}, {way[1]} | " + " | ".join(f"{results[key(settings, way)]:.1f}" for _, settings in mine) + " |\n"
    return text


def curves(args, results):
    """Four small plots beside each other, with one scale of decibels."""
    width, height, left, top = 210, 190, 44, 30
    values = list(results.values())
    low, high = 10 * int(min(values) // 10), 10 * (int(max(values) // 10) + 1)
    total = left + len(AXES) * (width + 16)

    def y_of(decibels):
        return top + height * (high - decibels) / (high - low)

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{total}" height="{top + height + 66}" font-family="sans-serif" font-size="11">',
             '<rect width="100%" height="100%" fill="white"/>']
    for decibels in range(low, high + 1, 10):
        parts.append(f'<text x="{left - 6}" y="{y_of(decibels) + 4:.0f}" text-anchor="end">{decibels}</text>')
    parts.append(f'<text x="6" y="{top - 12}">dB</text>')
    for index, axis in enumerate(AXES):
        mine = [(value, settings) for name, value, settings in points(args) if name == axis]
        x = [left + index * (width + 16) + width * (i + 0.5) / len(mine) for i in range(len(mine))]
        parts.append(f'<rect x="{left + index * (width + 16)}" y="{top}" width="{width}" height="{height}" fill="none" stroke="#999"/>')
        for decibels in range(low, high + 1, 10):
            parts.append(f'<path d="M{left + index * (width + 16)} {y_of(decibels):.1f}h{width}" stroke="#ddd"/>')
        for at, (value, _) in zip(x, mine):
            parts.append(f'<text x="{at:.0f}" y="{top + height + 15}" text-anchor="middle">{value}</text>')
        parts.append(f'<text x="{left + index * (width + 16) + width / 2:.0f}" y="{top + height + 32}" text-anchor="middle">{WORDS[axis]}</text>')
        for method, kv in KINDS:
            line = " ".join(f"{at:.1f},{y_of(results[key(settings, (method, kv))]):.1f}" for at, (_, settings) in zip(x, mine))
            dash = ' stroke-dasharray="5 3"' if kv == "predict" else ""
            parts.append(f'<polyline points="{line}" fill="none" stroke="{COLORS[method]}" stroke-width="1.8"{dash}/>')
    for index, (method, kv) in enumerate(KINDS):
        x, y = left + index * 170, top + height + 54
        dash = ' stroke-dasharray="5 3"' if kv == "predict" else ""
        parts.append(f'<path d="M{x} {y - 4}h26" stroke="{COLORS[method]}" stroke-width="1.8"{dash}/><text x="{x + 32}" y="{y}">{method}, {kv}</text>')
    (args.out / "staleness.svg").write_text("\n".join(parts) + "\n</svg>\n", encoding="utf-8")


def main(args):
    args.out.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(args.seed)
    captions = [scenes.sample(rng, 32)[0] for _ in range(args.captions)]
    results = measure(args, captions, args.out / "results.json")
    about = f"{args.captions} captions; {args.steps} steps, {args.size} px, {args.patches} patches, warm-up {args.warmup} where it says nothing else.\n\n"
    (args.out / "staleness.md").write_text(about + "\n".join(table(args, axis, results) for axis in AXES), encoding="utf-8")
    curves(args, results)


if __name__ == "__main__":
    main(ARGS)
