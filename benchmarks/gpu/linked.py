"""Whether every program and library that came along finds all that it asks for: linked.py BIN [--rehearse].

A rehearsal may lack what only a machine with a GPU has (pack.THERE)."""
import pathlib
import re
import subprocess
import sys

import rows
from cluster import environment
from pack import THERE


def cuda_half(paths):
    """LibTorch's, which is loaded before our libraries are: what they leave open is found in it."""
    return next((str(file) for path in paths.split(":") if (file := pathlib.Path(path) / "libtorch_cuda.so").is_file()), None)


def missing(file, preload, rehearse):
    more = {"LD_PRELOAD": preload} if preload else {}
    done = subprocess.run(["ldd", *(["-r"] if preload else []), str(file)], capture_output=True, text=True, env=environment(more))
    absent = re.findall(r"(\S+) => not found", done.stdout)
    if rehearse:
        absent = [name for name in absent if not THERE.match(name)]
    return absent + re.findall(r"undefined symbol: (\S+)", done.stdout + done.stderr)


def main(words):
    folder, rehearse = pathlib.Path(words[0]), "--rehearse" in words
    paths = environment().get("LD_LIBRARY_PATH", "")
    preload = cuda_half(paths)
    status = 0
    for file in sorted([*folder.iterdir(), *folder.parent.glob("lib/libtroupe_*.so")]):
        if not file.is_file() or file.read_bytes()[:4] != b"\x7fELF":
            continue
        # Programs are linked against the other half alone
        absent = missing(file, preload if file.name in ("libtroupe_nccl.so", "libtroupe_cuda_graph.so") else None, rehearse)
        rows.say(file.name, ok=not absent, note=f"lacks {', '.join(absent[:5])}" if absent else "all is found")
        status |= bool(absent)
    if not preload:
        rows.say("libtorch_cuda.so", ok=rehearse, note="not in LibTorch's folder")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
