"""Latency and bandwidth of torch.distributed's Gloo between two processes, measured as
benchmarks/tensor_plane.cpp measures Troupe's backends. Needs PyTorch; prints the same JSON."""
import json
import os
import pathlib
import tempfile
import time

from command_line import Parser, add_number


def options():
    parser = Parser(__doc__)
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_number(parser, "--repeats", 3, 1000, "of each size; the best counts")
    parser.add_argument("--beside", type=pathlib.Path, metavar="FILE", help="print Markdown, beside these rows of tensor_plane --json")
    args = parser.parse_args()
    if args.beside and not args.beside.is_file():
        parser.error(f"--beside: {args.beside} is not there")
    return args


ARGS = options() if __name__ == "__main__" else None

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import torch.multiprocessing as mp  # noqa: E402


def ping_pong(rank, size, rounds):
    out, into = torch.zeros(size, dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)
    halves = []
    for i in range(-(rounds // 10), rounds):
        start = time.perf_counter()
        if rank == 0:
            dist.send(out, 1)
            dist.recv(into, 1)
        else:
            dist.recv(into, 0)
            dist.send(out, 0)
        if i >= 0:
            halves.append((time.perf_counter() - start) / 2 * 1e6)
    return sorted(halves)


def stream(rank, size, messages):
    buffers = [torch.zeros(size, dtype=torch.uint8) for _ in range(4)]
    token = torch.zeros(1)

    def run(count):
        works = [None] * 4
        for i in range(count):
            if works[i % 4] is not None:
                works[i % 4].wait()
            works[i % 4] = (dist.isend if rank == 0 else dist.irecv)(buffers[i % 4], 1 - rank)
        for work in works:
            if work is not None:
                work.wait()
        (dist.recv if rank == 0 else dist.send)(token, 1 - rank)

    run(2)
    start = time.perf_counter()
    run(messages)
    return size * messages / (time.perf_counter() - start) / 1e9


def member(rank, store, repeats, results):
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    rows = []
    size = 1 << 10
    while size <= 64 << 20:
        best = {"backend": "gloo", "bytes": size, "one_way_p50_us": float("inf"),
                "one_way_p99_us": 0.0, "gigabytes_per_second": 0.0}
        for _ in range(repeats):
            halves = ping_pong(rank, size, min(max((64 << 20) // size, 10), 1000))
            if halves[len(halves) // 2] < best["one_way_p50_us"]:
                best["one_way_p50_us"] = halves[len(halves) // 2]
                best["one_way_p99_us"] = halves[len(halves) * 99 // 100]
            rate = stream(rank, size, min(max((256 << 20) // size, 8), 1000))
            best["gigabytes_per_second"] = max(best["gigabytes_per_second"], rate)
        rows.append(best)
        size *= 4
    if rank == 0:
        results.put(rows)
    dist.destroy_process_group()


def table(rows):
    """A line a size, a column a backend: latencies, then bandwidths."""
    names = list(dict.fromkeys(row["backend"] for row in rows))
    found = {(row["backend"], row["bytes"]): row for row in rows}
    print("| bytes | " + " | ".join([f"{name}, µs" for name in names] + [f"{name}, GB/s" for name in names]) + " |")
    print("|" + "--:|" * (1 + 2 * len(names)))
    for size in sorted({row["bytes"] for row in rows}):
        cells = [f"{found[name, size][key]:.{digits}f}" if (name, size) in found else ""
                 for key, digits in (("one_way_p50_us", 1), ("gigabytes_per_second", 2)) for name in names]
        print(f"| {size:,} | " + " | ".join(cells) + " |")


def main(args):
    context = mp.get_context("spawn")
    results = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        members = [context.Process(target=member, args=(rank, store, args.repeats, results))
                   for rank in range(2)]
        for process in members:
            process.start()
        rows = results.get()
        for process in members:
            process.join()
    if args.beside:
        table(json.loads(args.beside.read_text()) + rows)
        return
    if args.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"{'backend':8} {'bytes':>12} {'p50 us':>12} {'p99 us':>12} {'GB/s':>10}")
    for row in rows:
        print(f"{row['backend']:8} {row['bytes']:12} {row['one_way_p50_us']:12.1f} "
              f"{row['one_way_p99_us']:12.1f} {row['gigabytes_per_second']:10.2f}")


if __name__ == "__main__":
    main(ARGS)
