"""What step caches save and what they cost, on captions drawn by rule: beside the same method without a cache, by threshold.

    OMP_NUM_THREADS=1 .deps/reference/bin/python benchmarks/step_cache.py OUT

A cluster of one actor makes the pictures of all captions, a job each, with every method, cache and threshold. Into the folder OUT:
  results.json   what is finished; the same command again goes on from there
  step-cache.md  the table: of all calls (a guidance branch's patch, or whole picture, at a step) those whose blocks were skipped, processor
                 seconds of denoising a picture and how many times less than without a cache, PSNR of the final latents against those
                 without a cache (mean, and the tenth part that is worst, in decibels of their range), and the captions' attributes found
Captions and seeds are the same every time, as in quality.py; caption k is drawn with seed --seed + k. Seconds are those of the actor's
processor time, so that a machine's other work counts little; what a picture of one step takes less its step is taken off as text and
decoding."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

from command_line import Parser, add_captions, add_model, add_number, add_out, add_troupe

METHODS = {"exact": ["--method", "exact"],
           "pipefusion": ["--method", "pipefusion", "--patches", "4", "--warmup", "1"],
           "distrifusion": ["--method", "distrifusion", "--patches", "4", "--warmup", "1"]}
THRESHOLDS = {"first-block": [0.05, 0.1, 0.2], "teacache": [0.1, 0.2, 0.4]}
HEADER = ("| method | cache | threshold | skipped, % | CPU s per picture | faster | PSNR, dB | worst tenth, dB | attributes, % |\n"
          "|---|---|---|---|---|---|---|---|---|\n")


def options():
    parser = Parser(__doc__)
    add_out(parser)
    add_troupe(parser)
    add_model(parser)
    add_captions(parser, captions=40, least_steps=2)
    add_number(parser, "--threads", 1, 1024, "threads of the actor")
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS), help="exact among them; all")
    parser.add_argument("--caches", nargs="+", choices=list(THRESHOLDS), default=list(THRESHOLDS), help="all of them")
    args = parser.parse_args()
    if "exact" not in args.methods:
        parser.error("--methods lacks exact, which the others' seconds are taken with")
    return args


ARGS = options() if __name__ == "__main__" else None

import numpy as np  # noqa: E402
from PIL import Image  # noqa: E402
from safetensors.numpy import load_file  # noqa: E402

import quality  # noqa: E402
from quality import scenes  # noqa: E402


def ways(args):
    """(method, cache, threshold); each method without a cache first."""
    return [(method, cache, threshold) for method in args.methods
            for cache, thresholds in [("", [0])] + [(c, THRESHOLDS[c]) for c in args.caches] for threshold in thresholds]


def processor_seconds(args, endpoint):
    """Of the one actor so far."""
    status = json.loads(subprocess.run([args.troupe, "status", "--connect", endpoint, "--json"], capture_output=True, text=True, check=True, timeout=60).stdout)
    fields = pathlib.Path(f"/proc/{status['actors'][0]['pid']}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def draw(args, endpoint, way, caption, seed, steps=None):
    """One picture: latents, pixels, the actor's processor seconds, calls and skipped ones."""
    method, cache, threshold = way
    before = processor_seconds(args, endpoint)
    cached = ["--step-cache", cache, "--step-cache-threshold", str(threshold)] if cache else []
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        command = [args.troupe, "submit", "--connect", endpoint, "--json", "--height", str(args.size), "--width", str(args.size), "--steps", str(steps or args.steps), "--guidance", "4.5",
                   "--seed", str(seed), "--output", str(folder / "p.png"), "--save-latents", str(folder / "l.safetensors"), *METHODS[method], *cached,
                   "--prompt", caption]
        done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
        if done.returncode:
            raise RuntimeError(f"{way}: {done.stderr.strip().splitlines()[-1] if done.stderr.strip() else 'no reason given'}")
        report = json.loads(done.stdout)
        report = report.get("report", report)
        use = report.get("step_cache", dict(calls=0, skipped=0))
        pixels = np.asarray(Image.open(folder / "p.png").convert("RGB"))
        seconds = processor_seconds(args, endpoint) - before
        return load_file(folder / "l.safetensors")["latents"], pixels, seconds, use["calls"], use["skipped"]


def row(way, rows, plain, around):
    method, cache, threshold = way
    mean = lambda key, of=rows: float(np.mean([r[key] for r in of]))
    attributes = f"{100 * sum(r['right'] for r in rows) / sum(r['attributes'] for r in rows):.1f}"
    seconds, before = (mean("seconds", of) - around for of in (rows, plain))
    if not cache:
        return f"| {method} | | | | {seconds:.2f} | | | | {attributes} |\n"
    worst = sorted(r["psnr"] for r in rows)[:max(1, len(rows) // 10)]
    skipped = 100 * sum(r["skipped"] for r in rows) / sum(r["calls"] for r in rows)
    return (f"| {method} | {cache} | {threshold} | {skipped:.0f} | {seconds:.2f} | {before / seconds:.2f} × | {mean('psnr'):.1f} | {np.mean(worst):.1f} | "
            f"{attributes} |\n")


def table(args, results):
    lines = []
    one, all_steps = (float(np.mean([r["seconds"] for r in results[key]])) for key in ("one step", json.dumps(("exact", "", 0))))
    around = one - (all_steps - one) / (args.steps - 1)
    for way in ways(args):
        rows, plain = (results.get(json.dumps(w), []) for w in (way, (way[0], "", 0)))
        if rows and plain:
            lines.append(row(way, rows, plain, around))
    count = min(len(rows) for rows in results.values())
    (args.out / "step-cache.md").write_text(f"{count} captions, {args.size} px, {args.steps} steps, guidance 4.5.\n\n" + HEADER + "".join(lines), encoding="utf-8")


def main(args):
    args.out.mkdir(parents=True, exist_ok=True)
    file = args.out / "results.json"
    settings = dict(size=args.size, steps=args.steps, seed=args.seed, threads=args.threads)
    document = json.loads(file.read_text()) if file.exists() else dict(settings=settings, results={})
    if document["settings"] != settings:
        sys.exit(f"[step_cache] {file} was made with {document['settings']}, not {settings}: take another folder")
    results = document["results"]
    rng = np.random.default_rng(args.seed)
    captions = [scenes.sample(rng, 32)[0] for _ in range(args.captions)]
    done = min((len(results.get(json.dumps(way), [])) for way in ways(args)), default=0)
    with quality.cluster(args) as endpoint:
        draw(args, endpoint, ways(args)[0], captions[0], args.seed)  # loads the model
        for index in range(done, args.captions):
            plain = {}
            seconds = draw(args, endpoint, ("exact", "", 0), captions[index], args.seed + index, steps=1)[2]
            results["one step"] = results.setdefault("one step", [])[:index] + [dict(seconds=seconds)]
            for way in ways(args):
                latents, pixels, seconds, calls, skipped = draw(args, endpoint, way, captions[index], args.seed + index)
                exact = plain.setdefault(way[0], latents)
                found = scenes.matches(captions[index], pixels).values()
                mine = results.setdefault(json.dumps(way), [])[:index]
                results[json.dumps(way)] = mine + [dict(psnr=float(quality.psnr(latents, exact)[0]), seconds=seconds, calls=calls, skipped=skipped,
                                                        right=int(sum(found)), attributes=len(found))]
            draft = file.with_suffix(".new")
            draft.write_text(json.dumps(document, indent=1))
            os.replace(draft, file)
            table(args, results)
            print(f"{index + 1} of {args.captions}", flush=True)
    table(args, results)


if __name__ == "__main__":
    main(ARGS)
