"""Gathers in carry/ what a machine with a GPU and no network lacks, and checks the size of all that travels.

    python3 benchmarks/gpu/pack.py --build build --kernels build-gpu/lib/libtroupe_kernels_cuda.so --diffusers diffusers.whl

binaries.tar.xz   programs of the build, stripped, with the system libraries that they need and that machine lacks
python.tar.xz     diffusers, cut down to what the comparison imports
headers.tar.xz    for a build from source there, should the binaries not start"""
import argparse
import io
import lzma
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
PROGRAMS = ("troupe", "troupe-actor", "gpu_kernels_test", "gpu_graph_test", "gpu_models_test", "gpu_nccl_test", "gpu_nccl_peer", "gpu_bench",
            "libtroupe_nccl.so")
PLUGINS = ("libtroupe_cuda_graph.so", "libtroupe_device_probe.so")
KERNELS = "libtroupe_kernels_cuda.so"
# What the machine there has: the C and C++ runtime, the driver, and a PyTorch with CUDA 13, whose wheels bring the rest
THERE = re.compile(r"(ld-linux-x86-64|linux-vdso|libc|libm|libdl|librt|libpthread|libutil|libresolv|libgcc_s|libstdc\+\+)\.so[.\d]*$"
                   r"|lib(cuda|nvidia-ml)\.so\.1$"
                   r"|lib(torch|torch_cpu|torch_cuda|c10|c10_cuda|gomp|cudart|cupti|nccl|cublas|cublasLt|cudnn)\b.*\.so[.\d]*$")
# Newest versions of symbols that Ubuntu 24.04 has
NEWEST = {"GLIBC": (2, 39), "GLIBCXX": (3, 4, 33), "CXXABI": (1, 3, 15)}
# Pipelines that the comparison imports, and what those import
PIPELINES = ("pixart_alpha", "stable_diffusion_3", "stable_diffusion_xl", "stable_diffusion", "flux", "wan")
MIB = 1 << 20
# MiB that may travel
MOST = 56


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, required=True)
    parser.add_argument("--kernels", type=pathlib.Path, help="the library of kernels for the GPU there alone, instead of the build's")
    parser.add_argument("--diffusers", type=pathlib.Path, help="its wheel; without one it does not travel")
    parser.add_argument("--headers", type=pathlib.Path, help="folder of include/ and lib/ for a build there")
    parser.add_argument("--into", type=pathlib.Path, default=ROOT / "carry")
    parser.add_argument("--most", type=float, default=MOST, help=f"MiB that tracked files and carry/ may have together ({MOST})")
    parser.add_argument("--fast", action="store_true", help="compress less")
    return parser.parse_args()


def output(*command):
    return subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout


def needs(file):
    """Names of the libraries that this one asks for itself."""
    return re.findall(r"\(NEEDED\).*\[(.*?)\]", output("readelf", "-d", file))


def resolved(file):
    """Name → path, of all that the loader finds for it here."""
    return dict(re.findall(r"^\s*(\S+) => (/\S+)", output("ldd", file), re.MULTILINE))


def carried_libraries(files):
    """Name → path of every library that `files` need, in any depth, and that is not there. One that is nowhere is an error."""
    found, pending = {}, [file for file in files]
    own = {file.name for file in files}
    while pending:
        file = pending.pop()
        paths = resolved(file)
        for name in needs(file):
            if THERE.match(name) or name in found or name in own:
                continue
            if name not in paths:
                raise SystemExit(f"gpu-check: {file.name} needs {name}, which is neither here nor on the machine with the GPU")
            found[name] = pathlib.Path(paths[name]).resolve()
            pending.append(found[name])
    return found


def too_new(file):
    """Versions of symbols that this file asks the C and C++ runtime for and that are not there."""
    asked = set(re.findall(r"\b(GLIBC|GLIBCXX|CXXABI)_([\d.]+)\b", output("objdump", "-T", file)))
    return sorted(f"{name}_{version}" for name, version in asked if tuple(map(int, version.split("."))) > NEWEST[name])


def stripped(file, folder):
    target = pathlib.Path(folder) / file.name
    subprocess.run(["strip", "-o", str(target), str(file)], check=True)
    return target.read_bytes()


class Archive:
    """A tar file whose members have no owner and no time: the same files give the same bytes."""

    def __init__(self, path, fast):
        self.path, self.bytes = path, io.BytesIO()
        # Calls in machine code have the same target at many places once they are absolute
        code = [{"id": lzma.FILTER_X86}] if path.name.startswith("binaries") else []
        self.filters = [*code, {"id": lzma.FILTER_LZMA2, "preset": 4 if fast else 9 | lzma.PRESET_EXTREME}]
        self.tar = tarfile.open(fileobj=self.bytes, mode="w")

    def add(self, name, data, mode=0o644):
        entry = tarfile.TarInfo(name)
        entry.size, entry.mode = len(data), mode
        self.tar.addfile(entry, io.BytesIO(data))

    def close(self):
        self.tar.close()
        self.path.write_bytes(lzma.compress(self.bytes.getvalue(), filters=self.filters))


def pack_binaries(args, archive):
    kernels = args.kernels or args.build / "lib" / KERNELS
    programs = [args.build / "bin" / name for name in PROGRAMS]
    plugins = [kernels, *[args.build / "lib" / name for name in PLUGINS]]
    missing = [str(file) for file in [*programs, *plugins] if not file.is_file()]
    if missing:
        raise SystemExit(f"gpu-check: these are not built: {', '.join(missing)}")
    libraries = carried_libraries([*programs, *plugins])
    for file in [*programs, *plugins, *libraries.values()]:
        if newer := too_new(file):
            raise SystemExit(f"gpu-check: {file} asks for {', '.join(newer)}, which Ubuntu 24.04 has not: build on Debian 12 or Ubuntu 24.04")
    with tempfile.TemporaryDirectory() as scratch:
        for folder, files in (("bin", programs), ("lib", plugins)):
            for file in files:
                archive.add(f"{folder}/{file.name}", stripped(file, scratch), 0o755)
        for name, path in sorted(libraries.items()):
            archive.add(f"system/{name}", stripped(path, scratch))
    return libraries


def travels(name):
    """Whether this file of diffusers' wheel is wanted."""
    if re.match(r"diffusers/(modular_pipelines|commands)/[^/]+/", name) or name.endswith((".pyc", ".md")):
        return False
    found = re.match(r"diffusers/pipelines/([^/]+)/", name)
    return not found or found[1] in PIPELINES


def pack_python(wheel, archive):
    with zipfile.ZipFile(wheel) as files:
        for name in sorted(files.namelist()):
            if not name.endswith("/") and travels(name):
                archive.add(name, files.read(name))


def pack_headers(folder, archive):
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            archive.add(str(path.relative_to(folder)), path.read_bytes())


def tracked():
    """What travels beside carry/: files that git knows, and those that it does not ignore."""
    names = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"], check=True,
                           capture_output=True).stdout.split(b"\0")
    return [ROOT / os.fsdecode(name) for name in names if name and (ROOT / os.fsdecode(name)).is_file()]


def check_size(into, most):
    # A link travels as one
    files = {path: path.lstat().st_size for path in {*tracked(), *(path for path in into.rglob("*") if path.is_file())}}
    total, carried = sum(files.values()), sum(size for path, size in files.items() if into in path.parents)
    print(f"gpu-check: {total / MIB:.1f} MiB travel, {carried / MIB:.1f} of them in {into.name}/; {most:g} may")
    if total <= most * MIB:
        return 0
    for path, size in sorted(files.items(), key=lambda entry: -entry[1])[:15]:
        print(f"  {size / MIB:6.2f} MiB  {os.path.relpath(path, ROOT)}", file=sys.stderr)
    print("gpu-check: too much travels; the largest files are above", file=sys.stderr)
    return 1


def main(args):
    args.into.mkdir(parents=True, exist_ok=True)
    for old in args.into.glob("*.tar.xz"):
        old.unlink()
    chosen = {"binaries": lambda archive: pack_binaries(args, archive)}
    if args.diffusers:
        chosen["python"] = lambda archive: pack_python(args.diffusers, archive)
    if args.headers:
        chosen["headers"] = lambda archive: pack_headers(args.headers, archive)
    for name, fill in chosen.items():
        archive = Archive(args.into / f"{name}.tar.xz", args.fast)
        fill(archive)
        archive.close()
        print(f"gpu-check: {name}.tar.xz has {archive.path.stat().st_size / MIB:.2f} MiB")
    return check_size(args.into, args.most)


if __name__ == "__main__":
    sys.exit(main(options()))
