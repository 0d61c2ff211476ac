"""One of the three calls of scripts/gpu-check: its parts one after another, each a process of its own under its own limit.
A part that dies, or hangs, costs itself alone; what it had found until then stays. All of them together end within --seconds,
whatever they do: a part whose limit does not fit into what is left gets what is left, and none where that is too little.

    scripts/gpu-check 1

Exit status: 0 all well, 1 a part failed or ran out of time."""
import argparse
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time

import parts
from record import FAILED, LEFT_OUT, OUT_OF_TIME, PASSED, Record
from rows import read

# Seconds that a part has to end by itself when it is told to, to be gone once it is killed, and in which its output is read up
GRACE, KILLING, READING = 3, 2, 2
ENDING = GRACE + KILLING + READING
# Seconds with which no part is begun
TOO_LITTLE = 10
# Bytes of a part's log that are kept
LONGEST_LOG = 2 << 20


def options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("call", type=int, choices=(1, 2, 3))
    parser.add_argument("--bin", type=pathlib.Path, required=True, help="folder of troupe, troupe-actor and gpu_*")
    parser.add_argument("--out", type=pathlib.Path, required=True, help="where gpu-check.json, gpu-check.md and logs.tar.xz go")
    parser.add_argument("--work", type=pathlib.Path, required=True, help="for models and logs")
    parser.add_argument("--seconds", type=float, default=570, help="for all parts together (570)")
    parser.add_argument("--only", default="", help="parts whose name matches this expression")
    parser.add_argument("--rehearse", action="store_true", help="without a GPU: tiny sizes on the CPU, and whether the rest starts")
    parser.add_argument("--quick", action="store_true", help="with --rehearse: only what takes seconds")
    parser.add_argument("--library-path", default="", help="for Troupe's own programs")
    return parser.parse_args()


def of_session(session):
    """The processes of it: actors have process groups of their own, but stay in the session."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[3]) == session and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def send(session, number):
    for process in of_session(session):
        try:
            os.kill(process, number)
        except OSError:
            pass


def end(process):
    """Ends a part with everything that it started. A process that a stuck device holds cannot even be killed: it is left behind."""
    for number, patience in ((signal.SIGTERM, GRACE), (signal.SIGKILL, KILLING)):
        send(process.pid, number)
        deadline = time.monotonic() + patience
        while (process.poll() is None or of_session(process.pid)) and time.monotonic() < deadline:
            time.sleep(0.05)


class Call:
    def __init__(self, args):
        self.args = args
        self.logs = args.work / "logs"
        self.logs.mkdir(parents=True, exist_ok=True)
        self.record = Record(args.out)
        self.deadline = time.monotonic() + args.seconds

    def run(self):
        chosen = [part for part in parts.PARTS if part.call == self.args.call and re.search(self.args.only, part.name)]
        if not chosen:
            print(f"gpu-check: no part of call {self.args.call} matches {self.args.only}", file=sys.stderr)
            return 0 if self.args.rehearse else 1
        outcomes = [self.run_part(part, chosen[at + 1:]) for at, part in enumerate(chosen)]
        return 0 if all(outcome in (PASSED, LEFT_OUT) for outcome in outcomes) else 1

    def run_part(self, part, later):
        kept = sum(each.seconds * parts.patience(self.args) + ENDING for each in later if each.kept)
        left = self.deadline - time.monotonic() - ENDING - kept
        needs = part.needs or min(TOO_LITTLE, part.seconds)
        self.record.begin(part.name, part.call)
        begun = time.monotonic()
        command = part.command(self.args, self.record)
        if self.args.quick and not part.quick:
            outcome, tail = LEFT_OUT, []
        elif command is None:
            outcome, tail = LEFT_OUT, ["it needs a GPU"]
        elif part.troupe and not (self.args.bin / "troupe").is_file():
            outcome, tail = LEFT_OUT, ["there is no troupe here: what was packed does not start"]
        elif left < needs:
            outcome = LEFT_OUT if part.needs else OUT_OF_TIME
            tail = [f"not begun: it needs {needs} s, {max(left, 0):.0f} were left for it of the {self.args.seconds:.0f} s of the call"]
        else:
            outcome, tail = self.watch(part, command, min(part.seconds * parts.patience(self.args), left))
        self.record.end(part.name, outcome, time.monotonic() - begun, tail)
        self.record.keep_logs(self.logs)
        print(f"gpu-check: {part.name}: {outcome}, {time.monotonic() - begun:.0f} s", flush=True)
        return outcome

    def watch(self, part, command, seconds):
        log = self.logs / f"{part.name}.log"
        rows = []
        with open(log, "w", encoding="utf-8", errors="replace") as out:
            process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                       env=parts.environment(self.args), start_new_session=True, text=True, errors="replace")
            reader = threading.Thread(target=self.take, args=(part, process.stdout, out, rows), daemon=True)
            reader.start()
            code = None
            try:
                code = process.wait(timeout=seconds)
            except subprocess.TimeoutExpired:
                pass
            finally:
                end(process)
                reader.join(timeout=READING)
                if not reader.is_alive():
                    process.stdout.close()
        if code is None:
            return OUT_OF_TIME, self.tail(log)
        if code == parts.NOT_HERE:
            return LEFT_OUT, self.tail(log)[-1:]
        wrong = [row["name"] for row in rows if not row.get("ok", True)]
        if code == 0 and not wrong:
            return PASSED, []
        return FAILED, [f"not as it must be: {', '.join(wrong)}" if wrong else f"it ended with {code}", *self.tail(log)]

    def take(self, part, stream, out, rows):
        for line in stream:
            if out.closed:
                return
            if out.tell() < LONGEST_LOG:
                out.write(line[:LONGEST_LOG])
                out.flush()
            row = read(line)
            if row:
                rows.append(row)
                self.record.add(part.name, row)

    @staticmethod
    def tail(log):
        lines = [line[:300] for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        return lines[-40:]


if __name__ == "__main__":
    # gpu-check does so where a call takes too long all the same
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(Call(options()).run())
