"""Writes what the first hour is expected to measure, before it does: benchmarks/gpu/predictions.json.

    .deps/reference/bin/python benchmarks/gpu/predict.py --build build

Kernels by the bytes that they must move, models by the planner for the simulated machine, the rest by data sheets and by what
a reading of the code found. A prediction that is missed is to be explained, not adjusted."""
import argparse
import json
import pathlib
import subprocess
import tempfile

import attention
import random_models
import rows
from cluster import request
from record import PREDICTIONS, replace
from shapes import SHAPES
from whole_jobs import DISTRIFUSION_ONE, ONE, PIPEFUSION_ONE, SINGLE, WAYS

MACHINE = "h200-nvlink"
# Of the data sheet's 4.8 TB/s and 989 TFLOP/s, what such GPUs are known to reach
COPY, PRODUCTS = 4300.0, 780.0
# TFLOP/s that the planner takes for the machine (controller/plan/machine.cpp)
PLANNED = 989 * 0.55
# Share of the copy ceiling that a kernel is expected to reach: single values behind 64-bit divisions, rows read three times
REACHED = {"norm + modulate": 0.6, "gate + residual": 0.85, "q/k norm + rotary": 0.2, "K,V push": 0.7, "log-sum-exp merge": 0.2, "group moments": 0.4}
# TFLOP/s of attention by backend at long lengths
ATTENTION = {"cuDNN": {64: 420, 72: 420, 128: 560}, "flash": {64: 330, 72: 250, 128: 370}, "efficient": {64: 180, 72: 170, 128: 180}}


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    return parser.parse_args()


def ceilings():
    return {"ceilings/copy": dict(value=COPY, unit="GB/s"), "ceilings/GEMM bfloat16": dict(value=PRODUCTS, unit="TFLOP/s"),
            "ceilings/GEMM float32": dict(value=50, unit="TFLOP/s"), "ceilings/GEMM float8": dict(value=1400, unit="TFLOP/s")}


def kernels(build):
    found = {}
    done = subprocess.run([str(build / "bin" / "gpu_bench"), "--list"], check=True, capture_output=True, text=True)
    for line in done.stdout.splitlines():
        row = rows.read(line)
        share = next(value for key, value in REACHED.items() if row["name"].startswith(key))
        found[f"kernels/{row['name']}"] = dict(value=1e-3 * row["bytes"] / (share * COPY), unit="us")
    return found


def attentions():
    found = {}
    for backend, speeds in ATTENTION.items():
        for width, speed in speeds.items():
            for length in attention.LENGTHS:
                flops = 4 * attention.HEADS * length * length * width
                # Short ones leave processors idle
                reached = speed * length / (length + 1000)
                found[f"attention/{backend}, head {width}, {length} tokens"] = dict(value=1e-6 * flops / reached, unit="us")
    found["attention/a key length for the first time"] = dict(value=50, unit="ms", note="0.4 s has been reported of cuDNN")
    return found


def holes(name, folder, layers):
    random_models.make(argparse.Namespace(name=name, folder=folder, device="meta", dtype="bfloat16", text_layers=layers, tiny=False, holes=True))


def planned(build, name, folder, more):
    """The planner's seconds for one GPU."""
    words = [word for word in request(name, False) if word != "--quiet"]
    done = subprocess.run([str(build / "bin" / "troupe"), "plan", "--model", str(folder), "--simulate", f"{MACHINE}x1", "--json", *words, *more],
                          capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"predict: troupe plan of {name}: {done.stdout[-400:]}{done.stderr[-400:]}")
    return json.loads(done.stdout)["picked"]["seconds"]


def seconds(value):
    return dict(value=value, unit="s", floor=value * PLANNED / PRODUCTS)


def model(build, part, name, layers, scratch, ways):
    folder = scratch / name
    holes(name, folder, layers)
    denoising, found = {}, {}
    needed = {ONE, *(way.like for way in ways)}
    for single in (ONE, PIPEFUSION_ONE, DISTRIFUSION_ONE):
        if single in needed:
            times = planned(build, name, folder, SINGLE[single])
            denoising[single] = times["synchronous"] + times["patched"]
            found[f"{part}/{name}, {single}: denoising"] = seconds(denoising[single])
            if single == ONE:
                found[f"{part}/{name}, one actor: a step"] = {**seconds(1e3 * denoising[ONE] / SHAPES[name].steps), "unit": "ms"}
                found[f"{part}/{name}, one actor: text"] = seconds(times["text"])
                found[f"{part}/{name}, one actor: decoding"] = seconds(times["decode"])
                found[f"{part}/{name}, diffusers: denoising"] = seconds(1.3 * denoising[ONE])
                if not ways:
                    found[f"compiled-{name}/{name}, diffusers + compile: denoising"] = seconds(denoising[ONE])
    for way in ways:
        found[f"{part}/{name}, {way.name}: denoising"] = {**seconds(denoising[way.like]), "note": "they take turns on one GPU"}
    return found


def main(args):
    found = {**ceilings(), **kernels(args.build), **attentions()}
    found["job/launches a step"] = dict(value=28 * 24 + 30, unit="launches", note="24 a block by reading; at most 14 are wanted")
    found["job/waits of the host a step"] = dict(value=3, unit="waits", note="none is wanted")
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)
        found.update(model(args.build, "beside-pixart", "pixart", None, scratch, []))
        for name in SHAPES:
            found.update(model(args.build, f"jobs-{name}", name, 2, scratch, WAYS[name]))
    for row in found.values():
        row.update({key: float(f"{row[key]:.4g}") for key in ("value", "floor") if key in row})
    document = dict(machine=MACHINE, made_by="scripts/gpu-check --predict", rows=found)
    replace(PREDICTIONS, json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    print(f"gpu-check: {len(found)} predictions in {PREDICTIONS.name}")


if __name__ == "__main__":
    main(options())
