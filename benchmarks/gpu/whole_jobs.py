"""Whole jobs of one model on 1, 2 and 3 actors that share a GPU: each against one actor that computes the same, one actor
against diffusers with the same weights. With --faults instead: an actor killed and a device broken under a running job.

    python3 benchmarks/gpu/whole_jobs.py pixart FOLDER --troupe build/bin/troupe --device cuda

Several actors on one GPU take turns on it: their seconds say nothing of the method, that they end and what they compute does."""
import collections
import os
import pathlib
import signal
import statistics
import subprocess
import sys
import time

import rows
from cluster import Cluster, Failed, request
from latents import difference
from shapes import model_options

# like: the way whose latents it must have; as_picture: what it changes is not in the latents
Way = collections.namedtuple("Way", "name actors options like as_picture", defaults=[False])
ONE, PIPEFUSION_ONE, DISTRIFUSION_ONE = "one actor", "one actor, 4 patches", "one actor, DistriFusion of 2 patches"
PIPEFUSION = ["--patches", "4", "--warmup", "1"]
DISTRIFUSION = ["--method", "distrifusion", "--patches", "2", "--warmup", "1"]
SINGLE = {ONE: [], PIPEFUSION_ONE: PIPEFUSION, DISTRIFUSION_ONE: DISTRIFUSION}
CFG = Way("cfg 2", 2, ["--cfg", "2"], ONE)
PP2 = Way("pp 2, 4 patches", 2, ["--pp", "2", *PIPEFUSION], PIPEFUSION_ONE)
PP3 = Way("pp 3, 4 patches", 3, ["--pp", "3", *PIPEFUSION], PIPEFUSION_ONE)
ULYSSES2, ULYSSES3 = (Way(f"ulysses {n}", n, ["--ulysses", str(n)], ONE) for n in (2, 3))
RING2, RING3 = (Way(f"ring {n}", n, ["--ring", str(n)], ONE) for n in (2, 3))
TP2, TP3 = (Way(f"tp {n}", n, ["--tp", str(n)], ONE) for n in (2, 3))
DISTRI = Way("DistriFusion ring 2", 2, ["--ring", "2", *DISTRIFUSION], DISTRIFUSION_ONE)
VAE2 = Way("ulysses 2, 2 decode", 2, ["--ulysses", "2", "--vae-parallel", "2"], ONE, True)
VAE3 = Way("ring 3, 3 decode", 3, ["--ring", "3", "--vae-parallel", "3"], ONE, True)
WAYS = {
    "pixart": [CFG, PP2, ULYSSES2, RING2, TP2, DISTRI, VAE2, PP3, ULYSSES3, RING3, TP3, VAE3],
    "sd3": [CFG, PP2, ULYSSES2, RING2, TP2, VAE2, PP3],
    "flux": [PP2, ULYSSES2, RING2, TP2, DISTRI, PP3, ULYSSES3],
    "sdxl": [CFG, DISTRI, ULYSSES2, VAE2, RING3],
    "wan": [CFG, ULYSSES2, RING2, TP2, PP2, VAE3],
}
# Relative distance of final latents that counts as the same
SAME = {"bfloat16": 0.08, "float32": 1e-3}
# The actor that is struck, and seconds that it stands still at most if nobody strikes it
STRUCK, HELD_FOR = 0, 120


def options():
    parser = model_options(__doc__)
    parser.add_argument("--troupe", required=True)
    parser.add_argument("--quick", action="store_true", help="only the first ways of 2 actors and one of 3")
    parser.add_argument("--work", type=pathlib.Path, required=True)
    parser.add_argument("--diffusers", type=pathlib.Path, help="final latents by diffusers")
    parser.add_argument("--graphs", action="store_true", help="one actor with CUDA graphs, too")
    parser.add_argument("--single", action="store_true", help="only one actor")
    parser.add_argument("--faults", choices=("kill", "sticky"))
    parser.add_argument("--probe", type=pathlib.Path, help="libtroupe_device_probe.so, for a sticky error")
    return parser.parse_args()


def pictures_apart(a, b):
    """The largest difference of two PNGs, of 255; None where nothing here reads them."""
    try:
        from PIL import Image, ImageChops
    except ImportError:
        return None
    with Image.open(a) as first, Image.open(b) as second:
        return max(high for _, high in ImageChops.difference(first.convert("RGB"), second.convert("RGB")).getextrema())


class Jobs:
    def __init__(self, args):
        self.args, self.count = args, 0
        self.words = request(args.name, args.tiny)
        self.same = SAME["float32" if args.tiny else "bfloat16"]

    def files(self, name):
        stem = "".join(c if c.isalnum() else "-" for c in name)
        return self.args.work / f"{self.args.name}-{stem}.png", self.args.work / f"{self.args.name}-{stem}.safetensors"

    def cluster(self, actors, options=(), more=None):
        self.count += 1
        # Under /tmp by itself: an address of a socket has 107 bytes
        place = self.args.work / f"c{self.count}"
        return Cluster(self.args.troupe, place, actors, self.args.device, options, more)

    def paint(self, cluster, name, options):
        picture, latents = self.files(name)
        return cluster.report(self.args.folder, [*self.words, *options], picture, latents)

    def tell_seconds(self, name, report):
        steps = report["request"]["model_calls"]
        seconds = report["seconds"]
        rows.say(f"{self.args.name}, {name}: denoising", seconds["denoising"], "s", note=f"{steps} steps")
        return seconds

    def single(self):
        with self.cluster(1) as cluster:
            for name, options in SINGLE.items():
                if name == DISTRIFUSION_ONE and DISTRI not in WAYS[self.args.name]:
                    continue
                if name == PIPEFUSION_ONE and PP2 not in WAYS[self.args.name]:
                    continue
                if name != ONE and self.args.single:
                    continue
                # The first job loads; what a resident model takes is the second's
                report = self.paint(cluster, name, options)
                loading = report["seconds"]["loading"]
                if name == ONE and not self.args.tiny:
                    report = self.paint(cluster, name, options)
                seconds = self.tell_seconds(name, report)
                if name == ONE:
                    self.tell_one(report, seconds, loading)
                    self.tell_gpu_memory(name)
        if self.args.graphs:
            self.graphs()

    def tell_one(self, report, seconds, loading):
        steps = report["request"]["model_calls"]
        rows.say(f"{self.args.name}, one actor: a step", 1e3 * seconds["denoising"] / steps, "ms")
        for phase in ("text", "decoding", "total"):
            rows.say(f"{self.args.name}, one actor: {phase}", seconds[phase], "s", note=f"loading took {loading:.1f} s" if phase == "total" else "")
        rows.say(f"{self.args.name}, one actor: memory of the process", max(actor["peak_memory_bytes"] for actor in report["actors"]) / 1e9, "GB")
        if self.args.diffusers and self.args.diffusers.is_file():
            apart = difference(self.files(ONE)[1], self.args.diffusers)
            rows.say(f"{self.args.name}, one actor: latents beside diffusers'", apart, "of their size", ok=apart <= 2 * self.same)

    def tell_gpu_memory(self, name):
        """All that the GPU holds: with one process on it, that process's, what its allocator keeps for later included."""
        if self.args.device == "cpu":
            return
        done = subprocess.run(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"], capture_output=True, text=True)
        if done.returncode == 0:
            rows.say(f"{self.args.name}, {name}: GPU memory in use", float(done.stdout.split()[0]) * 1.048576e-3, "GB")

    def graphs(self):
        with self.cluster(1, ["--cuda-graphs", "on"]) as cluster:
            name = "one actor, graphs"
            self.paint(cluster, name, [])
            report = self.paint(cluster, name, [])
            self.tell_seconds(name, report)
            apart = difference(self.files(name)[1], self.files(ONE)[1])
            told = report["actors"][0].get("cuda_graphs", {})
            rows.say(f"{self.args.name}, {name}: latents beside plain ones", apart, "of their size",
                     ok=apart <= self.same and told.get("replayed", 0) > 0,
                     note=f"{told.get('recorded', 0)} recorded, {told.get('replayed', 0)} replayed; {told.get('why_plain') or 'all'}")

    def together(self):
        ways = WAYS[self.args.name]
        if self.args.quick:
            ways = [*[way for way in ways if way.actors == 2][:2], *[way for way in ways if way.actors == 3][:1]]
        for actors in (2, 3):
            chosen = [way for way in ways if way.actors == actors]
            if not chosen:
                continue
            try:
                with self.cluster(actors) as cluster:
                    for way in chosen:
                        self.try_way(cluster, way)
            except Failed as error:
                rows.say(f"{self.args.name}, {actors} actors", ok=False, note=str(error))

    def try_way(self, cluster, way):
        try:
            report = self.paint(cluster, way.name, way.options)
        except Failed as error:
            rows.say(f"{self.args.name}, {way.name}", ok=False, note=str(error))
            return
        self.tell_seconds(way.name, report)
        apart = difference(self.files(way.name)[1], self.files(way.like)[1])
        rows.say(f"{self.args.name}, {way.name}: latents beside {way.like}", apart, "of their size", ok=apart <= self.same)
        if way.as_picture:
            levels = pictures_apart(self.files(way.name)[0], self.files(way.like)[0])
            rows.say(f"{self.args.name}, {way.name}: picture", levels, "levels of 255", ok=levels is None or levels <= (1 if self.args.tiny else 24),
                     note="" if levels is not None else "no Pillow here")

    def fault(self):
        """The job of a cluster that loses an actor must end with the latents of one that loses none and is asked for the same
        whole steps, which the report names."""
        sticky = self.args.faults == "sticky"
        name = "a sticky error" if sticky else "kill -9"
        more = {"CUDA_INJECTION64_PATH": str(self.args.probe), "TROUPE_DEVICE_PROBE": str(self.args.work / "probe")} if sticky else {}
        words = [*self.words, *PP2.options]
        # A sticky error may be met some steps after it was made
        words[words.index("--steps") + 1] = "40" if self.args.tiny else "150"
        picture, latents = self.files(f"after {name}")
        _, undisturbed = self.files(f"without {name}")
        with self.cluster(2, more=more) as cluster:
            # Its weights are loaded then
            cluster.report(self.args.folder, [*self.words, *PP2.options], picture)
            before = {actor["id"]: actor["pid"] for actor in cluster.actors()}
            # An actor that stands still there is struck under way, however busy the machine is
            cluster.console(f"inject hold {STRUCK} {HELD_FOR} step 3")
            job = cluster.begin(self.args.folder, words, picture, latents)
            struck = self.strike(cluster, sticky)
            report = cluster.end(job)
            after = {actor["id"]: actor["pid"] for actor in cluster.actors()}
            again = ",".join(map(str, report["request"]["refill_steps"]))
            cluster.report(self.args.folder, [*words, *(["--refill-steps", again] if again else [])], picture, undisturbed)
        self.tell_fault(name, report, difference(latents, undisturbed), before, after, struck)

    def strike(self, cluster, sticky):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            for actor in cluster.actors():
                if actor["id"] != STRUCK or not (actor["doing"] or "").endswith("(held)"):
                    continue
                if sticky:
                    (self.args.work / f"probe.{actor['pid']}.break").touch()
                    cluster.console(f"inject release {STRUCK}")
                else:
                    os.kill(actor["pid"], signal.SIGKILL)
                return actor["id"]
            time.sleep(0.05)
        return None

    def tell_fault(self, name, report, apart, before, after, struck):
        recoveries = report.get("recoveries", [])
        rows.say(f"{self.args.name}, {name}: struck under way", ok=struck is not None, note=f"actor {struck}")
        rows.say(f"{self.args.name}, {name}: the job went on", len(recoveries), "times", ok=len(recoveries) >= 1,
                 note=recoveries[0]["cause"] if recoveries else "it noticed nothing")
        if recoveries:
            rows.say(f"{self.args.name}, {name}: until it went on", statistics.median(r["seconds"] for r in recoveries), "s")
        replaced = struck is not None and before.get(struck) != after.get(struck)
        rows.say(f"{self.args.name}, {name}: another process in its place", ok=replaced, note=f"pid {before.get(struck)}, then {after.get(struck)}")
        rows.say(f"{self.args.name}, {name}: latents beside an undisturbed job's", apart, "of their size", ok=apart <= self.same)


def main(args):
    args.work.mkdir(parents=True, exist_ok=True)
    jobs = Jobs(args)
    try:
        if args.faults:
            jobs.fault()
        else:
            jobs.single()
            if not args.single:
                jobs.together()
    except Failed as error:
        rows.say(f"{args.name}", ok=False, note=str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(options()))
