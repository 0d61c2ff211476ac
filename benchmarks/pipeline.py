"""Whole pipeline beside diffusers, same checkpoint, same threads, in one run, taking turns.

    .deps/reference/bin/python benchmarks/pipeline.py

For each model of `shapes.py`: seconds of denoising (all steps, without text and VAE) and of the whole request. Troupe runs
as a user would run it: a started cluster, one submitted job after another; the first job of each cluster is not counted,
nor is the first call of diffusers. `scripts/fixtures` makes the Python environment."""
import contextlib
import json
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from command_line import Parser, add_number, add_troupe
from shapes import SHAPES, folder_of


def options():
    parser = Parser(__doc__)
    add_troupe(parser)
    add_number(parser, "--rounds", 3, 1000, "rounds that count")
    parser.add_argument("--models", nargs="+", default=list(SHAPES), choices=list(SHAPES), help="all of them")
    add_number(parser, "--steps", None, 1000, "steps, instead of each model's own number")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser.parse_args()


ARGS = options() if __name__ == "__main__" else None

import torch  # noqa: E402
from diffusers import DiffusionPipeline, PixArtAlphaPipeline  # noqa: E402

PROMPT = "a red circle above a blue square on a white background"


class Diffusers:
    def __init__(self, folder, threads, guidance=4.5, tokens=None):
        self.threads = threads
        self.pipe = DiffusionPipeline.from_pretrained(folder)
        self.pipe.set_progress_bar_config(disable=True)
        self.options = dict(guidance_scale=guidance)
        if tokens:
            self.options["max_sequence_length"] = tokens
        if isinstance(self.pipe, PixArtAlphaPipeline):
            self.options.update(use_resolution_binning=False, clean_caption=False)

    def run(self, size, steps):
        torch.set_num_threads(self.threads)
        marks = {}
        original = self.pipe.prepare_latents

        def prepare(*args, **kwargs):
            result = original(*args, **kwargs)
            marks["begin"] = time.perf_counter()
            return result

        decode = self.pipe.vae.decode

        def decoded(latents, *args, **kwargs):
            self.latents = latents * self.pipe.vae.config.scaling_factor
            marks["end"] = time.perf_counter()
            result = decode(latents, *args, **kwargs)
            marks["decoded"] = time.perf_counter()
            return result

        self.pipe.prepare_latents, self.pipe.vae.decode = prepare, decoded
        start = time.perf_counter()
        self.pipe(PROMPT, height=size, width=size, num_inference_steps=steps, generator=torch.Generator().manual_seed(0), **self.options)
        total = time.perf_counter() - start
        self.pipe.prepare_latents, self.pipe.vae.decode = original, decode
        return dict(denoising=marks["end"] - marks["begin"], decoding=marks["decoded"] - marks["end"], total=total)


def own_peak(folder, threads, size, steps):
    """Bytes that this process has at most while it makes a picture, its model loaded: as a report counts an actor's."""
    runner = Diffusers(folder, threads)
    with torch.no_grad():
        runner.run(size, steps)
        pathlib.Path("/proc/self/clear_refs").write_text("5")
        runner.run(size, steps)
    line = next(line for line in pathlib.Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


def diffusers_peak(folder, threads, size, steps):
    """`own_peak` of a process that does nothing else."""
    code = "import sys, pipeline; print(pipeline.own_peak(sys.argv[1], *map(int, sys.argv[2:])))"
    done = subprocess.run([sys.executable, "-c", code, str(pathlib.Path(folder).resolve()), str(threads), str(size), str(steps)],
                          cwd=pathlib.Path(__file__).resolve().parent, stdout=subprocess.PIPE, text=True, check=True)
    return int(done.stdout.split()[-1])


class Troupe:
    def __init__(self, binary, folder, actors, threads, options, scratch, guidance=4.5):
        self.binary, self.options, self.output = str(binary), ["--guidance", str(guidance), *options], scratch / "out.png"
        self.address = f"ipc://{scratch}/control-{actors}-{threads}.sock"
        self.process = subprocess.Popen([self.binary, "start", "--listen", self.address, "--actors", str(actors),
                                         "--threads-per-actor", str(threads), "--model", str(folder)],
                                        stdout=subprocess.DEVNULL)
        deadline = time.time() + 120
        while time.time() < deadline:
            status = subprocess.run([self.binary, "status", "--connect", self.address, "--json"], capture_output=True)
            actors = json.loads(status.stdout)["actors"] if status.returncode == 0 else []
            if actors and all(a["state"] == "ready" for a in actors):
                self.empty_bytes = max(a["memory_bytes"] for a in actors)
                return
            time.sleep(0.1)
        raise SystemExit(f"troupe did not start at {self.address}")

    def report(self, size, steps, *more):
        """What `troupe submit --json` says of one job."""
        done = subprocess.run([self.binary, "submit", "--connect", self.address, "--prompt", PROMPT, "--height", str(size),
                               "--width", str(size), "--steps", str(steps), "--seed", "0", "--output", str(self.output),
                               "--json", *self.options, *more], capture_output=True, text=True)
        if done.returncode != 0:
            raise SystemExit(f"troupe submit {' '.join(self.options)}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def run(self, size, steps):
        report = self.report(size, steps)
        seconds = report["seconds"]
        waits = [a["controller_wait_seconds"] / (seconds["text"] + seconds["denoising"] + seconds["decoding"])
                 for a in report["actors"]]
        return dict(denoising=seconds["denoising"], total=seconds["total"], controller_wait=max(waits))

    def close(self):
        subprocess.run([self.binary, "stop", "--connect", self.address], capture_output=True, timeout=30)
        self.process.wait(timeout=30)


def measure(name, folder, args, scratch):
    shape = SHAPES[name]
    tokens = ["--max-sequence-length", str(shape.tokens)] if shape.tokens else []
    with contextlib.ExitStack() as stack:
        runners = {(f"diffusers × {t} thread{'s' * (t > 1)}", t): Diffusers(folder, t, shape.guidance, shape.tokens) for t in (1, 2)}
        for index, cluster in enumerate(shape.clusters):
            place = scratch / f"{name}-{index}"
            place.mkdir(mode=0o700)
            troupe = Troupe(args.troupe, folder, cluster.actors, cluster.threads, [*cluster.options, *tokens], place, shape.guidance)
            runners[f"troupe, {cluster.name}", cluster.actors * cluster.threads] = troupe
            stack.callback(troupe.close)
        rounds = {key: [] for key in runners}
        for turn in range(args.rounds + 1):
            for key, runner in runners.items():
                result = runner.run(shape.size, args.steps or shape.steps)
                if turn > 0:
                    rounds[key].append(result)
    rows = []
    for (label, cores), results in rounds.items():
        row = {key: statistics.median(r[key] for r in results) for key in results[0]}
        row["best_denoising"] = min(r["denoising"] for r in results)
        rows.append(dict(model=name, engine=label, threads=cores, **row))
    return rows


def main(args):
    rows = []
    with tempfile.TemporaryDirectory() as scratch, torch.no_grad():
        scratch = pathlib.Path(scratch)
        for name in args.models:
            rows += measure(name, folder_of(name, scratch), args, scratch)
    if args.json:
        print(json.dumps(rows, indent=1))
        return
    for name in args.models:
        shape = SHAPES[name]
        print(f"\n{name} ({shape.what}, {args.steps or shape.steps} steps, guidance {shape.guidance})")
        print(f"{'':54}{'denoising s':>12}{'best':>8}{'of diffusers':>14}{'request s':>11}{'waits on controller':>21}")
        mine = [r for r in rows if r["model"] == name]
        for row in mine:
            base = next(r for r in mine if r["engine"].startswith("diffusers") and r["threads"] == row["threads"])
            wait = f"{100 * row['controller_wait']:.2f} %" if "controller_wait" in row else ""
            print(f"{row['engine']:54}{row['denoising']:12.2f}{row['best_denoising']:8.2f}"
                  f"{row['best_denoising'] / base['best_denoising']:13.2f}×{row['total']:11.2f}{wait:>21}")


if __name__ == "__main__":
    main(ARGS)
