"""Runs a doctest program and says how its cases went: doctest_rows.py PROGRAM [ARGUMENT...]."""
import re
import subprocess
import sys

import rows
from cluster import environment

SUMMARY = re.compile(r"\[doctest\] test cases: +(\d+) \| +(\d+) passed \| +(\d+) failed")
CASE = re.compile(r"^TEST CASE: +(.*)$")


def main(command):
    name, skipped, case, failed, total = command[0].rpartition("/")[2], 0, "", [], 0
    process = subprocess.Popen(["stdbuf", "-oL", *command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", env=environment())
    for line in process.stdout:
        print(line, end="", flush=True)
        if found := CASE.match(line):
            case = found[1]
        if "ERROR:" in line and case not in failed:
            failed.append(case)
        skipped += "skipped, no GPU here" in line
        if found := SUMMARY.search(line):
            total = int(found[1])
    code = process.wait()
    ok = code == 0 and total > 0
    note = "; ".join(failed) if failed else f"skipped {skipped}, no GPU" if skipped else "" if ok else f"it ended with {code}"
    rows.say(f"{name}: cases", total, ok=ok, note=note)
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
