"""Times on a device, by its events; on a CPU, for rehearsals, by the clock."""
import itertools
import statistics
import time

ROTATED = 220e6


def copies_for(bytes_, device):
    """How many sets of operands to go through, so that none is still in the cache."""
    return 1 if device == "cpu" else max(2, min(64, int(ROTATED / max(1, bytes_)) + 1))


def microseconds(device, works, rounds=7, launches=20):
    """Median time of one of `works`, which are taken in turns; the first round is not counted."""
    import torch
    turn = itertools.cycle(works)
    times = []
    if device == "cpu":
        rounds, launches = 1, 1
    for round_ in range(rounds + 1):
        if device == "cpu":
            begun = time.perf_counter()
            next(turn)()
            times.append(1e6 * (time.perf_counter() - begun))
            continue
        first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for _ in range(launches):
            next(turn)()
        last.record()
        last.synchronize()
        if round_:
            times.append(1e3 * first.elapsed_time(last) / launches)
    return statistics.median(times)
