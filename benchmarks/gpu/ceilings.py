"""What this machine is, and what it reaches at the most: a large copy, and large products of random values."""
import argparse
import os
import platform
import shutil

import rows
from device_time import copies_for, microseconds


def environment(device):
    import torch
    rows.say("processor cores", len(os.sched_getaffinity(0)))
    rows.say("memory", os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9, "GB", note=platform.platform())
    rows.say("LibTorch", torch.__version__, note=f"CUDA {torch.version.cuda}")
    for folder in ("/dev/shm", "/tmp"):
        rows.say(f"room in {folder}", shutil.disk_usage(folder).free / 1e9, "GB")
    if device != "cpu":
        found = torch.cuda.get_device_properties(0)
        rows.say("GPU", found.name, note=f"{found.multi_processor_count} multiprocessors, capability {found.major}.{found.minor}, "
                 f"cuDNN {torch.backends.cudnn.version()}, NCCL {'.'.join(map(str, torch.cuda.nccl.version()))}")
        rows.say("GPU memory", found.total_memory / 1e9, "GB")


def copy(device, count):
    import torch
    pairs = [(torch.randn(count, device=device), torch.empty(count, device=device)) for _ in range(copies_for(8 * count, device))]
    time = microseconds(device, [lambda a=a, b=b: b.copy_(a) for a, b in pairs])
    rows.say("copy", 8 * count / time * 1e-3, "GB/s", note=f"{4e-6 * count:.0f} MB read and written in {time:.0f} us")


def product(device, dtype, side, name):
    import torch
    a, b = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    time = microseconds(device, [lambda: a @ b], launches=10)
    rows.say(f"GEMM {name}", 2 * side ** 3 / time * 1e-6, "TFLOP/s", note=f"{side} a side")


def fp8_product(side):
    import torch
    a = torch.randn(side, side, device="cuda").to(torch.float8_e4m3fn)
    b = torch.randn(side, side, device="cuda").to(torch.float8_e4m3fn).t()
    one = torch.ones((), device="cuda")
    time = microseconds("cuda", [lambda: torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)], launches=10)
    rows.say("GEMM float8", 2 * side ** 3 / time * 1e-6, "TFLOP/s", note=f"{side} a side, one scale each")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    device = parser.parse_args().device
    import torch
    torch.manual_seed(0)
    environment(device)
    tiny = device == "cpu"
    copy(device, 1 << 12 if tiny else 1 << 30)
    product(device, torch.bfloat16, 64 if tiny else 8192, "bfloat16")
    product(device, torch.float32, 64 if tiny else 8192, "float32")
    if not tiny:
        fp8_product(8192)


if __name__ == "__main__":
    main()
