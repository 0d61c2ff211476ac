"""Every parallel method on this machine in one table, beside diffusers on the same threads. Writes Markdown.

    .deps/reference/bin/python benchmarks/methods.py --output methods.md

A way is a started cluster whose jobs differ in nothing but degrees and method; ways take turns, and the first job of each is
not counted. --threads (the cores) is what all actors of a way share; a way of more actors has one thread each and is marked
*oversubscribed*: its seconds say nothing about the method, its bytes and memory do. All figures of Troupe are of its reports
(`docs/json.md`, "The report")."""
import collections
import contextlib
import datetime
import os
import pathlib
import platform
import statistics
import sys
import tempfile

from command_line import Parser, add_number, add_troupe, folder
from shapes import GUIDED, SHAPES, folder_of


def options():
    parser = Parser(__doc__)
    add_troupe(parser)
    add_number(parser, "--rounds", 3, 1000, "rounds that count")
    add_number(parser, "--threads", len(os.sched_getaffinity(0)), 1024, "that all actors of a way share")
    parser.add_argument("--models", nargs="+", default=list(GUIDED), choices=GUIDED, help="all of them")
    parser.add_argument("--model", type=folder, metavar="DIR", help="another model's folder, instead of those of --models")
    add_number(parser, "--size", None, 16384, "pixels, instead of the model's in shapes.py")
    add_number(parser, "--steps", None, 1000, "steps, instead of the model's in shapes.py")
    add_number(parser, "--decode-size", 512, 16384, "pixels of what is decoded")
    add_number(parser, "--most-actors", 4, 1024, "actors of a way at most")
    parser.add_argument("--output", type=pathlib.Path, metavar="FILE", help="the Markdown file; default: standard output")
    return parser.parse_args()


ARGS = options() if __name__ == "__main__" else None

import numpy as np  # noqa: E402
import torch  # noqa: E402
from PIL import Image  # noqa: E402
from safetensors.numpy import load_file  # noqa: E402

import pipeline  # noqa: E402
import quality  # noqa: E402

# How many pictures a job makes; its seconds are shown for each
Way = collections.namedtuple("Way", "name actors options pictures", defaults=[1])
PIPEFUSION = ["--patches", "4", "--warmup", "1"]
DISTRIFUSION = ["--method", "distrifusion", "--patches", "2", "--warmup", "1"]
WAYS = [
    Way("one actor", 1, []),
    Way("dp 2, two prompts", 2, ["--dp", "2", "--prompt", "a green star on a black background"], 2),
    Way("cfg 2", 2, ["--cfg", "2"]),
    Way("pp 2, synchronous", 2, ["--pp", "2"]),
    Way("Ulysses 2", 2, ["--ulysses", "2"]),
    Way("Ring 2", 2, ["--ring", "2"]),
    Way("tp 2", 2, ["--tp", "2"]),
    Way("PipeFusion pp 2, 4 patches", 2, ["--pp", "2", *PIPEFUSION]),
    Way("PipeFusion pp 2, 4 patches, K,V predicted", 2, ["--pp", "2", *PIPEFUSION, "--kv", "predict"]),
    Way("DistriFusion ring 2, 2 patches", 2, ["--ring", "2", *DISTRIFUSION]),
    Way("DistriFusion ring 2, 2 patches, K,V predicted", 2, ["--ring", "2", *DISTRIFUSION, "--kv", "predict"]),
    Way("cfg 2 × pp 2, synchronous", 4, ["--cfg", "2", "--pp", "2"]),
    Way("cfg 2 × PipeFusion pp 2, 4 patches", 4, ["--cfg", "2", "--pp", "2", *PIPEFUSION]),
    Way("cfg 2 × DistriFusion ring 2, 2 patches", 4, ["--cfg", "2", "--ring", "2", *DISTRIFUSION]),
    Way("cfg 2 × Ulysses 2", 4, ["--cfg", "2", "--ulysses", "2"]),
    Way("cfg 2 × tp 2", 4, ["--cfg", "2", "--tp", "2"]),
    Way("Ulysses 2 × Ring 2", 4, ["--ulysses", "2", "--ring", "2"]),
    Way("PipeFusion pp 2 × Ulysses 2, 4 patches", 4, ["--pp", "2", "--ulysses", "2", *PIPEFUSION]),
    Way("Ulysses 4", 4, ["--ulysses", "4"]),
    Way("Ring 4", 4, ["--ring", "4"]),
    Way("tp 4", 4, ["--tp", "4"]),
    Way("PipeFusion pp 4, 4 patches", 4, ["--pp", "4", *PIPEFUSION]),
    Way("cfg 2 × PipeFusion pp 2 × Ulysses 2, 4 patches", 8, ["--cfg", "2", "--pp", "2", "--ulysses", "2", *PIPEFUSION]),
]
DECODERS = [
    Way("one actor", 1, []),
    Way("one actor, tiled", 1, ["--vae-tiling"]),
    Way("2 actors, one decodes", 2, ["--cfg", "2"]),
    Way("2 actors decode", 2, ["--cfg", "2", "--vae-parallel", "2"]),
    Way("4 actors decode", 4, ["--cfg", "2", "--pp", "2", "--vae-parallel", "4"]),
]
NO_XDIT = ("xDiT is not in the table because it has no CPU path: without a CUDA, HIP, MUSA, MPS or NPU device its `envs.get_device_version()` and "
           "`get_torch_distributed_backend()` raise, `xfuser/config` reads a CUDA version when it is imported, every message ends in "
           "`torch.cuda.synchronize`, and sequence parallelism needs yunchang on a GPU.")


def on_threads(ways, threads):
    """(label, way, threads per actor, oversubscribed); where there are several threads, the first way once with one, too."""
    rows = [(ways[0], 1)] if threads > 1 else []
    rows += [(way, max(1, threads // way.actors)) for way in ways]
    return [(f"{way.name} | {way.actors} × {each}", way, each, way.actors * each > threads) for way, each in rows]


@contextlib.contextmanager
def clusters(args, folder, ways):
    """Label → (started cluster, its folder)."""
    with contextlib.ExitStack() as stack:
        started = {}
        for index, (label, way, each, _) in enumerate(on_threads(ways, args.threads)):
            place = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
            place.chmod(0o700)
            started[index] = pipeline.Troupe(args.troupe, folder, way.actors, each, way.options, place), place
            stack.callback(started[index][0].close)
        yield started


def take_turns(args, folder, ways, size, steps):
    """Per way its seconds, reports, latents and picture; of diffusers, which comes first, seconds and latents."""
    diffusers = [pipeline.Diffusers(folder, threads) for threads in dict.fromkeys((1, args.threads))]
    labels = on_threads(ways, args.threads)
    found = [dict(label=f"diffusers | 1 × {d.threads}", crowded=False, pictures=1, seconds=[], reports=[],
                  peak=pipeline.diffusers_peak(folder, d.threads, size, steps)) for d in diffusers]
    found += [dict(label=label, crowded=crowded, pictures=way.pictures, seconds=[], reports=[]) for label, way, _, crowded in labels]
    with clusters(args, folder, ways) as started:
        for turn in range(args.rounds + 1):
            for runner, entry in zip(diffusers, found):
                seconds = runner.run(size, steps)
                if turn > 0:
                    entry["seconds"].append(seconds)
                entry["latents"] = runner.latents.numpy()
            for index, entry in enumerate(found[len(diffusers):]):
                troupe, place = started[index]
                latents = place / "latents.safetensors"
                report = troupe.report(size, steps, "--save-latents", str(latents))
                if turn > 0:
                    entry["reports"].append(report)
                    entry["seconds"].append(report["seconds"])
                entry["latents"] = load_file(latents)["latents"].copy()
                entry["picture"] = np.asarray(Image.open(report["outputs"][0]).convert("RGB")).astype(int)
                entry["empty"] = troupe.empty_bytes
                print(f"[methods] round {turn}, {entry['label']}: {report['seconds']['denoising']:.2f} s, decoding "
                      f"{report['seconds']['decoding']:.2f} s", file=sys.stderr, flush=True)
    return found


def megabytes(count):
    return f"{count / 1e6:.{0 if count >= 1e8 else 1 if count >= 1e6 else 2}f}"


def most(report, key):
    return megabytes(max(actor[key] for actor in report["actors"]))


def memory(report):
    peaks = sorted(actor["peak_memory_bytes"] for actor in report["actors"])
    return megabytes(peaks[-1]) + (f" ({megabytes(peaks[0])})" if len(peaks) > 1 else "")


def by_group(report):
    groups = sorted(report["bytes"]["tensor_plane_by_group"].items(), key=lambda entry: -entry[1])
    return ", ".join(f"{name} {megabytes(count)}" for name, count in groups) or "none"


def time_cells(entry, base, phase):
    seconds = statistics.median(s[phase] for s in entry["seconds"]) / entry["pictures"]
    return [entry["label"] + (" *oversubscribed*" if entry["crowded"] else ""), f"{seconds:.2f}", f"{seconds / base:.2f}"]


def waiting(entry):
    """Share of text, denoising and decoding that the actors wait for each other's tensors, on average."""
    shares = [statistics.mean(a["waiting_seconds"] for a in report["actors"]) /
              (report["seconds"]["text"] + report["seconds"]["denoising"] + report["seconds"]["decoding"]) for report in entry["reports"]]
    return f"{100 * statistics.median(shares):.0f} %"


def table(titles, rows):
    head = "| " + " | ".join(titles) + " |\n" + "|---|---|" + "--:|" * (len(titles) - 2) + "\n"
    return head + "".join("| " + " | ".join(row) + " |\n" for row in rows)


def empty_line(found):
    return f"An actor without a model has {megabytes(max(entry.get('empty', 0) for entry in found))} MB.\n\n"


def base_of(found, phase):
    """Seconds of the whole way that is one actor with all threads."""
    entry = [e for e in found if e["label"].startswith("one actor | ")][-1]
    return entry, statistics.median(s[phase] for s in entry["seconds"])


def methods(args, folder, size, steps):
    ways = [way for way in WAYS if way.actors <= args.most_actors]
    found = take_turns(args, folder, ways, size, steps)
    one, base = base_of(found, "denoising")
    rows = []
    for entry in found:
        decibels = f"{quality.psnr(entry['latents'], one['latents'])[0]:.1f}"
        cells = time_cells(entry, base, "denoising")
        if entry["reports"]:
            last = entry["reports"][-1]
            cells += [waiting(entry), megabytes(last["bytes"]["tensor_plane"]), by_group(last), memory(last),
                      most(last, "weight_bytes"), most(last, "kv_bytes")]
        else:
            cells += ["", "", "", megabytes(entry["peak"]), "", ""]
        rows.append([*cells, "" if entry is one else decibels])
    return empty_line(found) + table(["way", "actors × threads", "denoising, s", "of one actor", "waits", "sent, MB", "by group, MB",
                                      "peak memory, MB", "weights, MB", "K,V, MB", "PSNR, dB"], rows)


def decoders(args, folder, size, steps):
    ways = [way for way in DECODERS if way.actors <= args.most_actors]
    found = take_turns(args, folder, ways, size, steps)
    one, base = base_of(found, "decoding")
    rows = []
    for entry in found:
        cells = time_cells(entry, base, "decoding")
        if entry["reports"]:
            last = entry["reports"][-1]
            vae = sum(count for name, count in last["bytes"]["tensor_plane_by_group"].items() if name == "vae")
            cells += [megabytes(vae), memory(last), str(np.abs(entry["picture"] - one["picture"]).max())]
        else:
            cells += ["", megabytes(entry["peak"]), ""]
        rows.append(cells)
    return empty_line(found) + table(["way", "actors × threads", "decoding, s", "of one actor", "sent in decoding, MB", "peak memory, MB",
                                      "levels off, of 255"], rows)


def machine():
    with open("/proc/cpuinfo") as file:
        names = [line.split(":")[1].strip() for line in file if line.startswith("model name")]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores"


def document(args, scratch):
    about = [f"{machine()}; {args.threads} threads per way; {datetime.date.today()}; median of {args.rounds} rounds, in which the ways took "
             "turns; guidance 4.5, float32. Seconds are those of one picture, or of one of two.",
             "*of one actor* is the ratio to one actor with all threads. *waits* is the share of time in which actors wait for each other's "
             "tensors, on average. Bytes are all that all actors sent in one job. Memory, weights and K,V are the fullest actor's (the leanest's "
             "in brackets). Memory is the whole process's peak in a job, with text encoder and decoder if it has them; for diffusers it is that "
             "of a process that makes its second picture. PSNR compares the "
             f"final latents with one actor's exact ones, in decibels of their range; it is cut at {quality.CEILING:.0f}.", NO_XDIT]
    yield "# Methods on one machine\n\n" + "\n\n".join(about) + "\n"
    folders = {name: pathlib.Path(args.model) for name in args.models if args.model}
    for name in args.models:
        shape = SHAPES[name]
        size, steps = args.size or shape.size, args.steps or shape.steps
        if name not in folders:
            folders[name] = folder_of(name, scratch)
        what = folders[name].name if args.model else shape.what
        yield f"\n## {what}: {size} px, {steps} steps\n\n" + methods(args, folders[name], size, steps)
    name = args.models[0]
    yield f"\n## Decoder: {folders[name].name}, {args.decode_size} px\n\n" + decoders(args, folders[name], args.decode_size, 2)


def main(args):
    if args.model:
        args.models = args.models[:1]
    text = ""
    with tempfile.TemporaryDirectory() as scratch, torch.no_grad():
        for part in document(args, pathlib.Path(scratch)):
            text += part
            if args.output:
                args.output.write_text(text, encoding="utf-8")
            else:
                print(part, end="", flush=True)


if __name__ == "__main__":
    main(ARGS)
