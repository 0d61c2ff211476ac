"""A whole job by `troupe run`: seconds by phase, and what its actor asks of the driver in a step.

The probe (tests/gpu/device_probe.cpp) counts calls of the driver; what 16 steps take more than 8 is the steps' own."""
import json
import pathlib
import struct
import subprocess
import sys

import rows
from cluster import environment, request
from shapes import model_options

LAUNCHES = ("cuLaunchKernel", "cuLaunchKernelEx", "cuLaunchCooperativeKernel", "cuGraphLaunch")
WAITS = ("cuStreamSynchronize", "cuCtxSynchronize", "cuEventSynchronize", "cuMemcpyDtoH", "cuMemcpyHtoD")
COPIES = ("cuMemcpy", "cuMemset")
ENTRY = struct.Struct("56sQ")


def options():
    parser = model_options(__doc__)
    parser.add_argument("--troupe", required=True)
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--probe", type=pathlib.Path, required=True)
    return parser.parse_args()


def plain(name):
    """cuLaunchKernel_ptsz and cuMemcpyDtoH_v2 are the calls without these ends."""
    for end in ("_ptsz", "_ptds", "_v2", "_v3"):
        name = name.removesuffix(end)
    return name


def counted(files):
    calls = {}
    for file in files:
        data = file.read_bytes()
        for name, count in ENTRY.iter_unpack(data[:len(data) // ENTRY.size * ENTRY.size]):
            if count:
                key = plain(name.rstrip(b"\0").decode())
                calls[key] = calls.get(key, 0) + count
    return calls


def run(args, steps):
    stem = args.work / f"calls-{steps}"
    for old in args.work.glob(f"{stem.name}.*"):
        old.unlink()
    more = {"CUDA_INJECTION64_PATH": str(args.probe), "TROUPE_DEVICE_PROBE": str(stem)}
    command = [args.troupe, "run", "--model", str(args.folder), "--device", args.device, "--quiet", "--json", "--output", str(args.work / "job.png"),
               *request(args.name, args.tiny, steps)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(more))
    print(done.stderr, file=sys.stderr)
    if done.returncode != 0:
        rows.say("troupe run", ok=False, note=done.stderr.strip()[-200:])
        raise SystemExit(1)
    return json.loads(done.stdout), counted(args.work.glob(f"{stem.name}.*.calls"))


def tell_calls(few, many, steps):
    def each(names, exact=True):
        keys = [key for key in many if (key in names if exact else key.startswith(names))]
        return sum(many[key] - few.get(key, 0) for key in keys) / steps
    rows.say("launches a step", each(LAUNCHES), "launches")
    rows.say("waits of the host a step", each(WAITS), "waits", note=", ".join(f"{key} {(many[key] - few.get(key, 0)) / steps:g}" for key in WAITS if key in many))
    rows.say("copies and fills a step", each(COPIES, exact=False), "calls")
    most = sorted(many, key=lambda key: few.get(key, 0) - many[key])[:8]
    rows.say("the most frequent calls a step", note=", ".join(f"{key} {(many[key] - few.get(key, 0)) / steps:g}" for key in most))


def main(args):
    args.work.mkdir(parents=True, exist_ok=True)
    _, few = run(args, 8)
    report, many = run(args, 16)
    for phase in ("loading", "text", "denoising", "decoding", "total"):
        rows.say(f"{args.name}: {phase}", report["seconds"][phase], "s", note="16 steps" if phase == "denoising" else "")
    for actor in report["actors"]:
        rows.say(f"{args.name}: actor {actor['actor']} computes", actor["busy_seconds"], "s", note=f"idle {actor['idle_seconds']:.2f} s")
    if many:
        tell_calls(few, many, 8)
    else:
        rows.say("launches a step", ok=args.device == "cpu", note="the probe counted nothing: no CUPTI, or no GPU")


if __name__ == "__main__":
    main(options())
