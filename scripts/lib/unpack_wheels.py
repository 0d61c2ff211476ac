"""Unpacks what a C++ build needs out of LibTorch's wheels, and removes them: unpack_wheels.py cpu|cuda TARGET WHEEL..."""

import os
import re
import shutil
import sys
import zipfile

CPU = re.compile(
    r"torch/lib/lib[^/]*\.so[^/]*$|torch/include/|torch/share/|torch/version\.py$|torch-[^/]*/(licenses/|LICENSE|NOTICE)"
    r"|nvidia/[^/]*/lib/lib(cudart|cupti)\.so[^/]*$|nvidia_[^/]*/(licenses/|License)"
)
CUDA = re.compile(CPU.pattern + r"|nvidia/.*/lib/[^/]*\.so[^/]*$|nvidia/.*/include/")
# Python's own, and the binary helpers of its data loaders.
NEVER = re.compile(r"torch/lib/lib(torch_python|shm|torch_global_deps)\.so")
CUDA_ONLY = re.compile(r"torch/lib/lib(torch|torch_cuda.*|torch_nvshmem|caffe2_nvrtc)\.so")


def is_wanted(name: str, kind: str) -> bool:
    if name.endswith("/") or NEVER.match(name) or (kind == "cpu" and CUDA_ONLY.match(name)):
        return False
    return bool((CUDA if kind == "cuda" else CPU).match(name))


def main() -> int:
    kind, target, wheels = sys.argv[1], sys.argv[2], sys.argv[3:]
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            names = [name for name in archive.namelist() if is_wanted(name, kind)]
            for name in names:
                if name.startswith("/") or ".." in name.split("/"):
                    raise SystemExit(f"[unpack_wheels] {os.path.basename(wheel)}: member {name!r} leaves the folder")
                path = os.path.join(target, name)
                os.makedirs(os.path.dirname(path), exist_ok=True)
                with archive.open(name) as source, open(path, "wb") as sink:
                    shutil.copyfileobj(source, sink, 1 << 20)
        os.remove(wheel)
    return 0


if __name__ == "__main__":
    sys.exit(main())
