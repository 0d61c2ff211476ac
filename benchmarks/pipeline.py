"""Whole pipeline beside diffusers, same checkpoint, same threads, in one run, taking turns.

    .deps/reference/bin/python benchmarks/pipeline.py [--troupe build/bin/troupe] [--rounds 3] [--json]

For each model: seconds of denoising (all steps, without text and VAE) and of the whole request. Troupe runs as a user
would run it: a started cluster, one submitted job after another; the first job of each cluster is not counted, nor is
the first call of diffusers. `scripts/fixtures` makes the Python environment."""
import argparse
import contextlib
import json
import pathlib
import statistics
import subprocess
import tempfile
import time

import torch
from diffusers import AutoencoderKL, DPMSolverMultistepScheduler, PixArtAlphaPipeline, PixArtTransformer2DModel

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROMPT = "a red circle above a blue square on a white background"
MODELS = {
    "demo": dict(size=256, steps=20, what="examples/demo/model: 8 blocks × 192, 256 tokens"),
    "pixart-12x384": dict(size=512, steps=4, what="random weights: 12 blocks × 384, 1,024 tokens"),
}
# name, actors' options, threads per actor
CLUSTERS = [
    ("1 actor × 1 thread", 1, 1, []),
    ("1 actor × 2 threads", 1, 2, []),
    ("pp 2 × 1 thread, 4 patches", 2, 1, ["--pp", "2", "--patches", "4", "--warmup", "1"]),
    ("cfg 2 × 1 thread", 2, 1, ["--cfg", "2"]),
]


def random_model(folder):
    """The demo checkpoint's text encoder and VAE around a random transformer of 12 blocks × 384."""
    pipe = PixArtAlphaPipeline.from_pretrained(ROOT / "examples/demo/model")
    torch.manual_seed(0)
    pipe.transformer = PixArtTransformer2DModel(
        num_attention_heads=6, attention_head_dim=64, in_channels=4, out_channels=8, num_layers=12, sample_size=64,
        cross_attention_dim=384, patch_size=2, caption_channels=96, norm_type="ada_norm_single",
        norm_elementwise_affine=False, norm_eps=1e-6, attention_bias=True, activation_fn="gelu-approximate",
        num_embeds_ada_norm=1000, interpolation_scale=1, use_additional_conditions=False)
    pipe.save_pretrained(folder)
    return folder


class Diffusers:
    def __init__(self, folder, threads):
        self.threads = threads
        self.pipe = PixArtAlphaPipeline.from_pretrained(folder)
        self.pipe.set_progress_bar_config(disable=True)

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
        self.pipe(PROMPT, height=size, width=size, num_inference_steps=steps, guidance_scale=4.5,
                  use_resolution_binning=False, clean_caption=False, generator=torch.Generator().manual_seed(0))
        total = time.perf_counter() - start
        self.pipe.prepare_latents, self.pipe.vae.decode = original, decode
        return dict(denoising=marks["end"] - marks["begin"], decoding=marks["decoded"] - marks["end"], total=total)


class Troupe:
    def __init__(self, binary, folder, actors, threads, options, scratch):
        self.binary, self.options, self.output = str(binary), options, scratch / "out.png"
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
                               "--width", str(size), "--steps", str(steps), "--guidance", "4.5", "--seed", "0",
                               "--output", str(self.output), "--json", *self.options, *more], capture_output=True, text=True)
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
    model = MODELS[name]
    with contextlib.ExitStack() as stack:
        runners = {f"diffusers × {t} thread{'s' * (t > 1)}": Diffusers(folder, t) for t in (1, 2)}
        for index, (label, actors, threads, options) in enumerate(CLUSTERS):
            place = scratch / f"{name}-{index}"
            place.mkdir(mode=0o700)
            runners[f"troupe, {label}"] = troupe = Troupe(args.troupe, folder, actors, threads, options, place)
            stack.callback(troupe.close)
        rounds = {label: [] for label in runners}
        for turn in range(args.rounds + 1):
            for label, runner in runners.items():
                result = runner.run(model["size"], model["steps"])
                if turn > 0:
                    rounds[label].append(result)
    rows = []
    for label, results in rounds.items():
        row = {key: statistics.median(r[key] for r in results) for key in results[0]}
        row["best_denoising"] = min(r["denoising"] for r in results)
        rows.append(dict(model=name, engine=label, **row))
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--troupe", type=pathlib.Path, default=ROOT / "build/bin/troupe")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch, torch.no_grad():
        scratch = pathlib.Path(scratch)
        for name in args.models:
            folder = ROOT / "examples/demo/model" if name == "demo" else random_model(scratch / name)
            rows += measure(name, folder, args, scratch)
    if args.json:
        print(json.dumps(rows, indent=1))
        return
    for name in args.models:
        print(f"\n{name} ({MODELS[name]['what']}, {MODELS[name]['steps']} steps, guidance 4.5)")
        print(f"{'':42}{'denoising s':>12}{'best':>8}{'of diffusers':>14}{'request s':>11}{'waits on controller':>21}")
        mine = [r for r in rows if r["model"] == name]
        for row in mine:
            threads = "2" if "2" in row["engine"].replace("4 patches", "") else "1"
            base = next(r for r in mine if r["engine"].startswith(f"diffusers × {threads}"))
            wait = f"{100 * row['controller_wait']:.2f} %" if "controller_wait" in row else ""
            print(f"{row['engine']:42}{row['denoising']:12.2f}{row['best_denoising']:8.2f}"
                  f"{row['best_denoising'] / base['best_denoising']:13.2f}×{row['total']:11.2f}{wait:>21}")


if __name__ == "__main__":
    main()
