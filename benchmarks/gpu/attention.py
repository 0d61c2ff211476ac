"""Attention by backend, head size and length; what a key length costs that comes for the first time; a product with its
epilogue inside and behind it."""
import argparse
import time

import rows
from device_time import microseconds

WIDTHS, LENGTHS, HEADS = (64, 72, 128), (1024, 4096, 32768), 16


def backends(device):
    from torch.nn.attention import SDPBackend
    if device == "cpu":
        return {"flash": SDPBackend.FLASH_ATTENTION}
    return {"cuDNN": SDPBackend.CUDNN_ATTENTION, "flash": SDPBackend.FLASH_ATTENTION, "efficient": SDPBackend.EFFICIENT_ATTENTION}


def operands(device, length, width, keys=None):
    import torch
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    return [torch.randn(1, HEADS, n, width, device=device).to(dtype) for n in (length, keys or length, keys or length)]


def by_backend(device, width, length):
    import torch
    from torch.nn.attention import sdpa_kernel
    qkv = operands(device, length, width)
    flops = 4 * HEADS * length * length * width
    attend = torch.nn.functional.scaled_dot_product_attention
    for name, backend in {**backends(device), "LibTorch's choice": None}.items():
        label = f"{name}, head {width}, {length} tokens"
        try:
            if backend is None:
                spent = microseconds(device, [lambda: attend(*qkv)], launches=5)
            else:
                with sdpa_kernel(backend):
                    spent = microseconds(device, [lambda: attend(*qkv)], launches=5)
        except RuntimeError as error:
            rows.say(label, note=f"not for this shape: {str(error).splitlines()[0][:80]}")
            continue
        rows.say(label, spent, "us", flops=flops, note=f"{flops / spent * 1e-6:.0f} TFLOP/s")


def once(device, work):
    import torch
    if device != "cpu":
        torch.cuda.synchronize()
    begun = time.perf_counter()
    work()
    if device != "cpu":
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - begun)


def new_lengths(device):
    """Each caption of PixArt has a length of its own: the first call with it, and the second."""
    import torch
    attend = torch.nn.functional.scaled_dot_product_attention
    queries = 64 if device == "cpu" else 4096
    first, second = [], []
    for keys in (77, 31, 52, 93, 18):
        q, k, v = operands(device, queries, 72, keys)
        first.append(once(device, lambda: attend(q, k, v)))
        second.append(once(device, lambda: attend(q, k, v)))
    rows.say("a key length for the first time", sorted(first[1:])[2], "ms", note=f"again {sorted(second)[2]:.3f} ms; the very first {first[0]:.1f} ms")


def epilogues(device):
    """PixArt's and FLUX's feed-forward: [rows, width] × [width, 4 · width], bias and GELU."""
    import torch
    for name, count, width in (("PixArt", 8192, 1152), ("FLUX", 4608, 3072)):
        count, width = (count, width) if device != "cpu" else (64, 32)
        dtype = torch.float32 if device == "cpu" else torch.bfloat16
        x, weight, bias = (torch.randn(shape, device=device).to(dtype) for shape in ((count, width), (width, 4 * width), (4 * width,)))
        flops = 2 * count * width * 4 * width
        rows.say(f"{name}: product alone", microseconds(device, [lambda: x @ weight]), "us", flops=flops)
        rows.say(f"{name}: bias and GELU behind it", microseconds(
            device, [lambda: torch.nn.functional.gelu(torch.addmm(bias, x, weight), approximate="tanh")]), "us", flops=flops)
        rows.say(f"{name}: bias and GELU in it", microseconds(
            device, [lambda: torch._addmm_activation(bias, x, weight, use_gelu=True)]), "us", flops=flops)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cpu")
    device = parser.parse_args().device
    import torch
    torch.manual_seed(0)
    epilogues(device)
    new_lengths(device)
    for width in WIDTHS:
        for length in LENGTHS if device != "cpu" else (128,):
            by_backend(device, width, length)


if __name__ == "__main__":
    main()
