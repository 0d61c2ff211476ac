"""The parts of the three calls: name, limit, and the command that is run. A part prints rows (`rows.py`) and ends with 0, with
77 where this machine has no place for it, or with another status: failed."""
import collections
import os
import pathlib
import shlex
import shutil
import sys

from shapes import SHAPES

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parents[1]
NOT_HERE = 77
# quick: part of the rehearsal that every test run makes; troupe: it needs the command, which is not built from source there;
# needs: left out where fewer seconds are left; kept: its seconds are held back from the parts before it
Part = collections.namedtuple("Part", "call name seconds command quick troupe needs kept", defaults=[False, False, 0, False])


def environment(args):
    """Of every part. Several ranks on one machine: no network is needed, and none may be looked for."""
    found = dict(os.environ, PYTHONUNBUFFERED="1", PYTHONDONTWRITEBYTECODE="1", TROUPE_SOURCE=str(ROOT), NCCL_SOCKET_IFNAME="lo", NCCL_IB_DISABLE="1",
                 NCCL_NVLS_ENABLE="0", NCCL_RUNTIME_CONNECT="0", CUDA_DEVICE_MAX_CONNECTIONS="32")
    if args.library_path:
        found["TROUPE_LIBRARY_PATH"] = args.library_path
    if not args.rehearse:
        found["TROUPE_REQUIRE_GPU"] = "1"
    # What a user has set for clusters of his own
    for name in ("TROUPE_ADDRESS", "TROUPE_JOURNAL", "TROUPE_KEYS"):
        found.pop(name, None)
    return found


def program(name, *words):
    return [sys.executable, HERE / name, *words]


def device(args):
    return ["--device", "cpu" if args.rehearse else "cuda"]


def patience(args):
    """A rehearsal may share its processors with others; a call on a GPU has ten minutes."""
    return 8 if args.rehearse else 1


def steps(args, *commands):
    """Shell that runs them one after another, each (seconds, words), and fails if one does."""
    lines = [f"timeout -k 5 {seconds * patience(args)} {shlex.join(map(str, words))} || status=1" for seconds, words in commands]
    return ["bash", "-c", "\n".join(["status=0", *lines, "exit $status"])]


def doctest(test, *words):
    return lambda args, record: program("doctest_rows.py", args.bin / test, *words)


def on_device(name):
    return lambda args, record: program(name, *device(args))


def linked(args, record):
    return program("linked.py", args.bin, *(["--rehearse"] if args.rehearse else []))


def kernels(args, record):
    return [sys.executable, HERE / "benched.py", args.bin / "gpu_bench", *(["--cpu"] if args.rehearse else [])]


def room_for_models(args):
    """In memory where it holds them: gigabytes are written and read again at once."""
    if args.rehearse:
        return args.work / "models"
    shared = pathlib.Path("/dev/shm")
    return shared / "troupe-models" if shared.is_dir() and shutil.disk_usage(shared).free > 30e9 else args.work / "models"


def model(args, name, whole_text=False):
    """The folder of a model, and the step that makes it if it is not there. Without torch a rehearsal takes the fixture."""
    if args.quick:
        return ROOT / "tests" / "fixtures" / SHAPES[name].tiny, []
    folder = room_for_models(args) / (name + ("-whole" if whole_text else ""))
    words = ["--tiny", "--dtype", "float32"] if args.rehearse else [] if whole_text else ["--text-layers", "2"]
    make = shlex.join(map(str, program("random_models.py", name, folder, *device(args), *words)))
    return folder, [(150, ["bash", "-c", f"[ -f {shlex.quote(str(folder))}/model_index.json ] || {make}"])]


def tiny(args):
    return ["--tiny", "--dtype", "float32"] if args.rehearse else []


def jobs(args, name, folder, *words):
    more = [word for word, wanted in (("--tiny", args.rehearse), ("--quick", args.quick)) if wanted]
    return program("whole_jobs.py", name, folder, "--troupe", args.bin / "troupe", *device(args), "--work", args.work / "jobs", *more, *words)


def diffusers(args, name, folder, *words):
    return program("beside_diffusers.py", name, folder, *device(args), *tiny(args), *words)


def beside(name):
    """Call 1: one model, its text encoder whole, by diffusers and by Troupe plain and with graphs."""
    def command(args, record):
        folder, made = model(args, name, whole_text=True)
        latents = args.work / f"{name}-diffusers.safetensors"
        graphs = [] if args.rehearse else ["--graphs"]
        return steps(args, *made, (90, diffusers(args, name, folder, "--latents", latents)), (120, jobs(args, name, folder, "--single", "--diffusers", latents, *graphs)))
    return command


def compiled(name):
    """The same by diffusers compiled: a part of its own, which may find no time."""
    def command(args, record):
        folder, made = model(args, name, whole_text=True)
        return steps(args, *made, (120, diffusers(args, name, folder, "--compile")))
    return command


def job(args, record):
    folder, made = model(args, "pixart", whole_text=True)
    words = ["--tiny"] if args.rehearse else []
    return steps(args, *made, (100, program("job.py", "pixart", folder, "--troupe", args.bin / "troupe", *device(args), *words, "--work", args.work / "job",
                                     "--probe", probe(args))))


def probe(args):
    return args.bin.parent / "lib" / "libtroupe_device_probe.so"


def whole(name):
    """Call 2: one model on 1, 2 and 3 actors; its folder goes when it is done, but PixArt's, which the faults take."""
    def command(args, record):
        folder, made = model(args, name)
        latents = args.work / f"{name}-diffusers.safetensors"
        compared = [] if args.quick else [(60, diffusers(args, name, folder, "--latents", latents))]
        gone = [(20, ["rm", "-rf", folder])] if not args.quick and name != "pixart" else []
        return steps(args, *made, *compared, (150, jobs(args, name, folder, "--diffusers", latents)), *gone)
    return command


def fault(kind):
    def command(args, record):
        if kind == "sticky" and args.rehearse:
            return None
        folder, made = model(args, "pixart")
        return steps(args, *made, (90, jobs(args, "pixart", folder, "--faults", kind, "--probe", probe(args))))
    return command


def sanitize(name, cases):
    def command(args, record):
        if args.rehearse:
            return program("doctest_rows.py", args.bin / "gpu_kernels_test", f"--test-case={cases}")
        return program("tools.py", "sanitize", name, args.bin / "gpu_kernels_test", cases)
    return command


def slowest(args, record):
    if args.rehearse:
        return [sys.executable, HERE / "benched.py", args.bin / "gpu_bench", "--cpu", "--once", "--only", "norm + modulate"]
    return program("tools.py", "slowest", args.out, args.bin / "gpu_bench")


# In the order of what matters most: where time runs out, it is the last ones that lack it.
PARTS = [
    Part(1, "linked", 20, linked, True),
    Part(1, "kernels-test", 60, doctest("gpu_kernels_test"), True),
    Part(1, "models-test", 30, doctest("gpu_models_test"), True),
    Part(1, "beside-pixart", 180, beside("pixart"), troupe=True),
    Part(1, "job", 100, job, True, True),
    Part(1, "ceilings", 30, on_device("ceilings.py")),
    Part(1, "kernels", 90, kernels, True),
    Part(1, "attention", 60, on_device("attention.py")),
    Part(1, "graph-test", 40, doctest("gpu_graph_test"), True),
    Part(1, "compiled-pixart", 120, compiled("pixart"), needs=80),
    # Last, for it may hang a device
    Part(1, "nccl-test", 110, doctest("gpu_nccl_test"), True, kept=True),
    Part(2, "jobs-pixart", 170, whole("pixart"), True, True),
    Part(2, "kill", 90, fault("kill"), True, True),
    Part(2, "sticky", 90, fault("sticky"), True, True),
    Part(2, "jobs-flux", 120, whole("flux"), troupe=True),
    Part(2, "jobs-wan", 120, whole("wan"), troupe=True),
    Part(2, "jobs-sd3", 110, whole("sd3"), troupe=True),
    Part(2, "jobs-sdxl", 110, whole("sdxl"), troupe=True),
    Part(3, "slowest", 150, slowest, True),
    Part(3, "memcheck", 200, sanitize("memcheck", "*norm*,*gate*"), True),
    Part(3, "racecheck", 170, sanitize("racecheck", "*moments*,*merge*"), True),
]
