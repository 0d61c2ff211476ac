"""A running cluster, and the jobs that are handed to it by the command line as a user does."""
import json
import os
import pathlib
import signal
import subprocess
import time

from shapes import PROMPT, SHAPES, size_of, steps_of

STARTS_WITHIN, ENDS_WITHIN, JOB_WITHIN = 120, 20, 240


def environment(more=None):
    """Of Troupe's programs: TROUPE_LIBRARY_PATH has the libraries that came along with them. Python itself keeps its own."""
    found = {**os.environ, **(more or {})}
    paths = [path for path in (found.get("TROUPE_LIBRARY_PATH"), found.get("LD_LIBRARY_PATH")) if path]
    if paths:
        found["LD_LIBRARY_PATH"] = ":".join(paths)
    return found


class Failed(Exception):
    """What `troupe` said."""


def request(name, tiny, steps=None):
    """The options of a job as beside_diffusers.py asks for it."""
    height, width, frames = size_of(name, tiny)
    shape = SHAPES[name]
    words = ["--prompt", PROMPT, "--height", height, "--width", width, "--steps", steps or steps_of(name, tiny), "--guidance", shape.guidance, "--seed", 0]
    if shape.frames > 1:
        words += ["--frames", frames]
    words += ["--dtype", "float32"] if tiny else ["--dtype", "bfloat16", "--noise-dtype", "model"]
    return [str(word) for word in words]


class Cluster:
    def __init__(self, troupe, place, actors, device="cpu", options=(), more=None):
        self.troupe, self.place = str(troupe), pathlib.Path(place)
        self.place.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.address = f"ipc://{self.place}/control.sock"
        words = [self.troupe, "start", "--listen", self.address, "--actors", str(actors), "--device", device, "--keep-logs", str(self.place)]
        if device != "cpu" and actors > 1:
            words += ["--actors-per-gpu", str(actors)]
        self.log = open(self.place / "start.log", "w", encoding="utf-8")
        self.process = subprocess.Popen([*words, *options], stdout=self.log, stderr=subprocess.STDOUT, env=environment(more))

    def __enter__(self):
        try:
            self.wait_ready()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_):
        self.close()

    def wait_ready(self):
        deadline = time.monotonic() + STARTS_WITHIN
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise Failed(f"troupe start ended with {self.process.returncode}: {self.said()}")
            actors = self.actors()
            if actors and all(actor["state"] == "ready" for actor in actors):
                return
            time.sleep(0.1)
        raise Failed(f"troupe start has no ready actors after {STARTS_WITHIN} s: {self.said()}")

    def said(self):
        return " / ".join((self.place / "start.log").read_text(encoding="utf-8", errors="replace").splitlines()[-4:])

    def actors(self):
        done = subprocess.run([self.troupe, "status", "--connect", self.address, "--json"], capture_output=True, text=True, timeout=30, env=environment())
        return json.loads(done.stdout)["actors"] if done.returncode == 0 else []

    def console(self, command):
        done = subprocess.run([self.troupe, "repl", "--json", "--connect", self.address, "-c", command], capture_output=True, text=True, timeout=30,
                              env=environment())
        if done.returncode != 0:
            raise Failed(f"{command}: {(done.stdout + done.stderr).strip()}")

    def begin(self, model, words, output, latents=None):
        command = [self.troupe, "submit", "--connect", self.address, "--model", str(model), "--output", str(output), "--json", "--quiet", *words]
        if latents:
            command += ["--save-latents", str(latents)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment())

    def report(self, model, words, output, latents=None):
        """What `troupe submit --json` says of one job; Failed with its line."""
        return self.end(self.begin(model, words, output, latents))

    @staticmethod
    def end(job):
        try:
            out, error = job.communicate(timeout=JOB_WITHIN)
        except subprocess.TimeoutExpired:
            job.kill()
            job.communicate()
            raise Failed(f"the job has not ended after {JOB_WITHIN} s") from None
        if job.returncode != 0:
            raise Failed(error.strip().splitlines()[-1] if error.strip() else f"troupe submit ended with {job.returncode}")
        return json.loads(out)

    def close(self):
        if self.process.poll() is None:
            try:
                subprocess.run([self.troupe, "stop", "--connect", self.address], capture_output=True, timeout=ENDS_WITHIN, env=environment())
                self.process.wait(timeout=ENDS_WITHIN)
            except subprocess.TimeoutExpired:
                self.process.send_signal(signal.SIGKILL)
                self.process.wait()
        self.log.close()
