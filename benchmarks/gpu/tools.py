"""What NVIDIA's tools say: `tools.py sanitize TOOL TEST CASES`, `tools.py slowest FOLDER BENCH` (Nsight Compute on the kernels that are
furthest from their floor)."""
import csv
import glob
import pathlib
import re
import shutil
import subprocess
import sys

import rows
from cluster import environment
from record import Record

NOT_HERE = 77
METRICS = {"gpu__time_duration.sum": "time", "dram__throughput.avg.pct_of_peak_sustained_elapsed": "memory",
           "sm__throughput.avg.pct_of_peak_sustained_elapsed": "processors", "launch__registers_per_thread": "registers",
           "sm__warps_active.avg.pct_of_peak_sustained_active": "occupancy"}


def tool(name):
    found = shutil.which(name) or next(iter(sorted(glob.glob(f"/usr/local/cuda/bin/{name}") + glob.glob(f"/opt/nvidia/nsight-compute/*/{name}"))), None)
    if not found:
        print(f"{name} is not on this machine")
        raise SystemExit(NOT_HERE)
    return found


def sanitize(name, test, cases):
    """compute-sanitizer on some cases of a test: what it finds is a failure; what it cannot do here is said."""
    command = [tool("compute-sanitizer"), "--tool", name, "--error-exitcode", "9", test, f"--test-case={cases}"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    print(done.stdout[-20000:], done.stderr[-4000:])
    summary = re.findall(r"={9} (ERROR SUMMARY.*|RACECHECK SUMMARY.*|Error: .*|.*[Nn]ot supported.*)", done.stdout + done.stderr)
    note = "; ".join(summary[-2:]) or "it said nothing"
    if "not supported" in note.lower():
        print(note)
        raise SystemExit(NOT_HERE)
    rows.say(f"{name}, {cases}", ok=done.returncode == 0, note=note)
    return 0 if done.returncode == 0 else 1


def furthest(record, count=5):
    """Kernels by the share of their time that they need not take, largest first."""
    found = []
    for row in record.document["parts"].get("kernels", {}).get("rows", []):
        floor = record.floor(row)
        if floor and row.get("unit") == "us" and row["value"] > 0:
            found.append((floor / row["value"], row["name"]))
    return [name for _, name in sorted(found)[:count]]


def measured(name, bench):
    """Metric → value of the last kernel that gpu_bench launches under this name."""
    command = [tool("ncu"), "--clock-control", "none", "--csv", "--metrics", ",".join(METRICS), bench, "--once", "--only", name]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    print(done.stdout[-6000:], done.stderr[-2000:])
    lines = [line for line in done.stdout.splitlines() if line.startswith('"')]
    found = {}
    for row in csv.DictReader(lines):
        if "troupe" in row["Kernel Name"] or not found:
            found.setdefault(row["Kernel Name"], {})[row["Metric Name"]] = f"{row['Metric Value']} {row['Metric Unit']}"
    ours = [values for kernel, values in found.items() if "troupe" in kernel] or list(found.values())
    return (ours[-1] if ours else {}), done


def slowest(folder, bench):
    record = Record(folder)
    names = furthest(record)
    if not names:
        print("no kernels were measured: run call 1 first")
        raise SystemExit(NOT_HERE)
    status = 0
    for name in names:
        values, done = measured(name, bench)
        text = ", ".join(f"{short} {values[metric]}" for metric, short in METRICS.items() if metric in values)
        rows.say(name, ok=bool(text), note=text or (done.stdout + done.stderr).strip()[-200:])
        status |= not text
    return int(status)


def main(words):
    if words[0] == "sanitize":
        return sanitize(*words[1:4])
    if words[0] == "slowest":
        return slowest(pathlib.Path(words[1]), words[2])
    raise SystemExit("tools.py sanitize TOOL TEST CASES | slowest FOLDER BENCH")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
